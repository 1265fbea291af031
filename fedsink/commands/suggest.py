"""`fedsink suggest data=…`: settings by the rule, from public sizes only."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsink.commands.hydra_keys import one_sentence, overrides
from fedsink.conf.acting import compose_config, lacking
from fedsink.conf.loading import choices, composed
from fedsink.conf.rule import Sizes, sizes_of
from fedsink.configuration import Configuration
from fedsink.data.views import view_from_dict
from fedsink.environment import typed_name
from fedsink.errors import ConfigError
from fedsink.protocol.requests import UNNAMED
from fedsink.reporting.displays import format_table
from fedsink.strategies.dp_sinkhorn.settings import DPSinkhornSettings
from fedsink.strategies.methods import settings_of
from fedsink.strategies.privatize_once.settings import PrivatizeOnceSettings

HELP = """Usage: fedsink suggest data=NAME [mode=central|ldp] [eps=…] [clients=…] [key=value …]

Prints the settings that the rule of fedsink/conf/rule.py gives for public sizes: the shape of a
record, the number of classes, the nominal number of records, the clients, ε and δ. It reads no
record, and no file of the data has to exist. Keys are those of `fedsink simulate`; keys that you
set keep their values.

  fedsink suggest data=shapes eps=3
  fedsink suggest data=image_folder data.shape=[1,64,64] data.classes=[a,b] \\
    data.nominal_records=8000 clients=20
  fedsink suggest mode=ldp mechanism=gaussian data=mnist eps=10"""

Setting = tuple[str, Any, str]
"""A key, its value, and why."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints a command line, the reasons for it, and its noise."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    try:
        return _suggest(overrides(arguments))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_sentence(error)) from error


def _suggest(stated: list[str]) -> int:
    keys = {argument.partition("=")[0] for argument in stated}
    nowhere = OmegaConf.is_missing(composed(stated).data, "root")
    place = ["data.root=DIR"] if nowhere else []
    config = compose_config([*stated, *place])
    sizes = _sizes(config)
    central = config["mode"] == "central"
    settings = _central(sizes, config["clip"]) if central else _local(sizes, config)
    chosen = [s for s in settings if s[0] not in keys and not lacking(s[0], config)]
    typed = [*place, *(f"{key}={_typed(value)}" for key, value, _ in chosen)]
    planned = settings_of(Configuration.read(compose_config([*stated, *typed])), UNNAMED)
    command = [f"{typed_name()} simulate", *(shlex.quote(word) for word in [*stated, *typed])]
    print(" \\\n  ".join(_lines(command)))
    print()
    table = [{"setting": key, "value": _typed(value), "why": why} for key, value, why in chosen]
    print(format_table(table))
    print()
    print(format_table([{"expected": key, "": text} for key, text in _noise(planned, sizes)]))
    recipe = f"recipe/{config['mode']}/{config['mechanism']['name']}"
    if (name := config["data"]["name"]) in choices(recipe):
        print(
            f"\ndata={name} has a file, {recipe}/{name}.yaml, which `fedsink simulate` "
            "takes where you state nothing."
        )
    return 0


def _sizes(config: dict[str, Any]) -> Sizes:
    """Returns the sizes that the rule needs.

    Raises:
        ConfigError: the data are points, or the method is another than the rule was read off.
    """
    methods = (DPSinkhornSettings.name, PrivatizeOnceSettings.name)
    if (name := config["strategy"]["name"]) not in methods:
        raise ConfigError(
            f"The rule was read off strategy={' and '.join(methods)}, and says nothing of "
            f"strategy={name}: leave it out."
        )
    sizes = sizes_of(config)
    if sizes is None:  # a fact is null, and this says which
        Configuration.read(config)
        raise ConfigError("The rule needs data.shape, data.classes and data.nominal_records.")
    return sizes


def _central(sizes: Sizes, clip: str) -> list[Setting]:
    rule = sizes.central()
    of_clip, noisy = rule[clip], "noise limits" if sizes.noisy else "the generator limits"
    signal = f"{noisy}: (N/C)·μ/√K = {sizes.signal:,.0f}, the border is 2500"
    if clip == "record":
        why = {
            "rate": f"{signal}; σ/q falls with q",
            "rows": "√(N/C)/4, from 5 to 20",
            "bound": f"0.3·√(C·H·W){', halved' if sizes.noisy else ''}",
            "lam": f"0.16·√(C·H·W){' times 4' if sizes.noisy else ''}",
        }
    else:
        why = {
            "rate": "four records of a class in a client's batch",
            "rows": "√(N/C)/8, from 3 to 10",
            "bound": "the same for every size",
            "lam": "0.16·√(C·H·W)",
        }
    return [
        ("rate", of_clip["rate"], why["rate"]),
        ("rounds", 4000, "more rounds than this bring little at any ε"),
        (
            "view.radius",
            rule["radius"],
            "half the shorter side, at least 6, at most about 200 coordinates",
        ),
        ("generator.radius", rule["radius"], "the band in which there is a gradient"),
        ("generator.latent_dim", rule["latent_dim"], "grows with log₂(N/C)"),
        ("generator.hidden", rule["hidden"], "by the size of a picture"),
        ("strategy.rows", of_clip["rows"], why["rows"]),
        ("strategy.bound", of_clip["bound"], why["bound"]),
        ("strategy.lam", of_clip["lam"], why["lam"]),
        ("strategy.history", of_clip["history"], "about 50 remembered rows"),
        ("strategy.optimizer.lr", of_clip["lr"], "falls with √(N/C) below 6000 records of a class"),
        ("observation.latent_range", rule["latent_range"], "noise leaves generators too narrow"),
    ]


def _local(sizes: Sizes, config: dict[str, Any]) -> list[Setting]:
    rule = sizes.local()
    pool = [("map.pool", rule["pool"], "halves sides from 24 pixels")]
    label = [("mechanism.label_eps", rule["label_eps"], "where a class's mean is known best")]
    return [
        *(label if sizes.classes > 1 else []),
        *(pool if config["map"]["pool"] is not None else []),
        ("map.block", rule["block"], "1.6 ln ε, more for more records of a class"),
        ("strategy.batch", rule["batch"], "a quarter of the records, from 100 to 1000"),
        ("strategy.finite_batch_factor", rule["finite_batch_factor"], "smaller for little noise"),
        ("rounds", rule["rounds"], "they cost nothing"),
        ("generator.latent_dim", rule["latent_dim"], "grows with log₂(N/C)"),
        ("generator.hidden", rule["hidden"], "by the size of a picture"),
    ]


def _noise(settings: Any, sizes: Sizes) -> list[tuple[str, str]]:
    """Describes the noise of the settings, and the signal that stays visible in it."""
    if isinstance(settings, PrivatizeOnceSettings):
        plan = settings.plan
        image = plan.image_mechanism
        kept = 1.0
        if plan.label_epsilon is not None:
            e = math.exp(plan.label_epsilon)
            kept = (e - 1) / (e + sizes.classes - 1)
        mean = image.scale / math.sqrt(sizes.per_class) / kept
        return [
            ("ε", f"{plan.total_epsilon:.4g}: image {plan.epsilon:.4g}, label the rest"),
            ("noise", f"scale {image.scale:.3g} in each of {plan.map.dimension} coordinates"),
            ("largest difference", f"{image.sensitivity:.3g} between two records' vectors"),
            ("a class's mean", f"known to about {mean:.2g} a coordinate"),
        ]
    plan = settings.plan
    if math.isinf(sizes.eps):
        return [("ε", "∞: neither clip nor noise, nothing is protected")]
    layout = settings.layout
    entries = layout.block_rows * view_from_dict(settings.view).dimension
    signal = plan.clip.bound * math.sqrt(settings.clients / layout.blocks)
    if plan.clip.per_record:  # a sum over records, each on the rows of its class
        signal *= settings.nominal_batch * math.sqrt(layout.block_rows / settings.rows)
    ratio = signal / math.sqrt(settings.mean_noise_variance * entries)
    return [
        ("ε", f"{plan.epsilon():.4g} at δ = {plan.delta:g}, {plan.uses} uses of a record"),
        (
            "noise",
            f"σ = {plan.noise_multiplier:.4g}, std {plan.noise_std:.4g} in each of {entries}",
        ),
        ("signal to noise", f"at most {ratio:.2g} a round, if all contributions agree"),
    ]


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lines(words: list[str], width: int = 96) -> list[str]:
    """Words in lines of at most `width` characters, where a word is shorter than one."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
