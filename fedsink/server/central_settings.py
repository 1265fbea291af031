"""From a configuration of the central mode to its strategy's settings."""

from __future__ import annotations

import math

from fedsink.data.spec import DataSpec
from fedsink.data.views import view_from_dict
from fedsink.errors import ConfigError
from fedsink.privacy import ClippedGaussian
from fedsink.protocol import Objective
from fedsink.server.central_budget import central_plan
from fedsink.server.values import (
    Config,
    given,
    integer,
    noise_share,
    number,
    optimizer,
    positive,
)
from fedsink.strategies import DPSinkhornSettings, ParameterGradientSettings
from fedsink.strategies.self_term import SelfTermSettings
from fedsink.transport import solver_named

_STRATEGIES: dict[str, type[DPSinkhornSettings]] = {
    "dp_sinkhorn": DPSinkhornSettings,
    "parameter_gradient": ParameterGradientSettings,
}


def central_settings(config: Config, data: DataSpec, clients: int, run: str) -> DPSinkhornSettings:
    """Settings of the central strategy that `strategy.name` names.

    Raises:
        FedsinkError: a value is unknown, out of range, or belongs to the other mode.
    """
    chosen, mechanism = config["strategy"], config["mechanism"]
    if chosen["name"] not in _STRATEGIES:
        raise ConfigError(
            f"mode=central runs strategy={' or '.join(_STRATEGIES)}, not {chosen['name']!r}."
        )
    if mechanism["name"] != ClippedGaussian.choice:
        raise ConfigError(
            f"mode=central noises gradients with mechanism={ClippedGaussian.choice}, not "
            f"{mechanism['name']!r}; mechanism={mechanism['name']} belongs to mode=ldp."
        )
    if config["shuffler"] != "none":
        raise ConfigError(
            f"shuffler={config['shuffler']} belongs to mode=ldp: a shuffler amplifies reports that "
            "are private one by one, and those of mode=central are sums over a batch."
        )
    classes = len(data.classes) if config["conditional"] else 1
    plan = central_plan(config, classes, math.ceil(data.nominal_records / clients))
    view = {"shape": list(data.shape), **given(config["view"])}
    view_from_dict(view)  # refuse these now rather than in a client
    solver_named(str(chosen["solver"]))
    label_weight = number(chosen, "label_weight", minimum=0.0, where="strategy.")
    return _STRATEGIES[chosen["name"]](
        plan=plan,
        objective=Objective(
            lam=positive(chosen, "lam", where="strategy."),
            classes=classes,
            m=number(chosen, "m", minimum=0.0, where="strategy."),
            label_weight=label_weight if classes > 1 else 0.0,
            solver=str(chosen["solver"]),
            cost=str(chosen["cost"]),
        ),
        self_term=SelfTermSettings(
            chosen["self_term"],
            integer(chosen, "history", minimum=1, where="strategy."),
            number(chosen, "p", minimum=0.0, where="strategy."),
        ),
        view=view,
        rows=integer(chosen, "rows", minimum=1, where="strategy."),
        optimizer=optimizer(chosen),
        clients=clients,
        nominal_records=data.nominal_records / clients,
        uses_per_message=integer(chosen, "uses_per_message", minimum=1, where="strategy."),
        accountant=str(config["accountant"]),
        run=run,
        share=noise_share(config),
    )
