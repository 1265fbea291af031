"""Several methods on the same clients and the same data, and a page that compares them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedsink.clients.node_settings import NodeSettings
from fedsink.conf.acting import compose_config
from fedsink.conf.loading import choices
from fedsink.data.sources import load
from fedsink.errors import ConfigError
from fedsink.pages.compare_page import NAME, Comparison
from fedsink.pages.run_groups import Compared
from fedsink.reporting.displays import ForgivingStream
from fedsink.server.finished import FinishedRun
from fedsink.server.recorded import RecordedRun
from fedsink.simulation.run_figures import evaluate_run
from fedsink.simulation.studies.study import Study, StudyPlan
from fedsink.strategies.methods import STRATEGIES
from fedsink.values import Config, checks, leaves

SHARED = (
    "data", "partition", "clients", "conditional", "seed", "engine", "noise", "policy", "report",
)  # fmt: skip
"""Keys of the study's configuration that hold for all of its runs."""


@dataclass(frozen=True)
class MethodComparison(Study):
    """Runs each method on the same clients, evaluates it, and compares them in one page.

    The clients hold the same records in every run. A method's configuration is what
    `fedsink simulate mode=… strategy=METHOD data=…` composes, its recipes included, with the ε of
    its privacy model, its overrides, and the study's values of the keys in `SHARED`.

    Runs of one seed differ only in their method: they share reproducible noise, which is no
    secret. Without `seed` each run has its own key.

    Attributes:
        methods: names of strategies.
        eps: ε by privacy model, "central" and "ldp", which promise different things; null: the
            recipe's.
        overrides: further overrides of single methods, as they are typed.
        seeds: a run of each method for each of these; None: one run, of the configuration's seed.
        images: drawn from each run by `fedsink evaluate`'s suite=fast; 0: no evaluation.

    Raises:
        ConfigError: a value out of range, or an unknown method.
    """

    name: ClassVar[str] = "compare"

    methods: tuple[str, ...]
    eps: Mapping[str, float | None] = field(default_factory=dict)
    overrides: Mapping[str, list[str]] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    images: int = 10000

    def __post_init__(self) -> None:
        if self.images != 0:
            checks.count("study.images", self.images, minimum=20, also="0 or ")
        if not isinstance(self.methods, tuple) or len(set(self.methods)) < len(self.methods):
            raise ConfigError(
                f"study.methods is a list of methods, each once, not {_plain(self.methods)!r}."
            )
        if len(self.methods) < 2:
            raise ConfigError(
                f"study.methods={_plain(self.methods)} leaves nothing to compare: name two or more "
                f"of {', '.join(sorted(STRATEGIES))}."
            )
        for method in (*self.methods, *_table(self, "overrides")):
            STRATEGIES.find(method)
        for method, typed in self.overrides.items():
            if not isinstance(typed, list) or not all(isinstance(text, str) for text in typed):
                raise ConfigError(
                    f"study.overrides.{method} is a list of key=value, as in [rounds=100], not "
                    f"{typed!r}."
                )
        if unknown := set(_table(self, "eps")) - {"central", "ldp"}:
            raise ConfigError(f"study.eps has central and ldp, not {sorted(unknown)[0]!r}.")
        if self.seeds is not None:
            seeds = self.seeds if isinstance(self.seeds, tuple) else ()
            if not 0 < len(set(seeds)) == len(seeds):
                raise ConfigError(
                    f"study.seeds is null or a list of numbers, each once, not "
                    f"{_plain(self.seeds)!r}."
                )
            for seed in self.seeds:
                checks.count("study.seeds", seed, minimum=0)

    def plan(self, config: Config, node: NodeSettings) -> StudyPlan:
        """Composes the configuration of each run.

        Raises:
            ConfigError: a key is stated that belongs to single methods, or to `study.seeds`.
            DataError: the data have no test split to evaluate on.
            HydraException, OmegaConfBaseException: an override of a method is malformed, or names
                nothing.
        """
        if self.seeds is not None and config["seed"] is not None:
            raise ConfigError(
                f"seed={config['seed']} and study.seeds={_plain(self.seeds)} both name seeds: "
                "leave one of them out."
            )
        if self.images:
            load(node.data, "test")  # a missing part is reported before anything runs
        data = node.data.name
        if data not in choices("data"):
            raise ConfigError(
                f"study.name={self.name} composes configurations with data={data}, and there is "
                "no such file: name the file in the group data as its data.name."
            )
        shared = {key: config[key] for key in SHARED}
        _refuse_the_rest(config, compose_config([f"data={data}"], shared))
        runs = {}
        for method in self.methods:
            composed = {**compose_config(self._overrides(method, data), shared), "study": None}
            if self.seeds is None:
                runs[method] = composed
            for seed in self.seeds or ():
                runs[f"{method}-seed{seed}"] = {**composed, "seed": seed}
        return StudyPlan(runs)

    def _overrides(self, method: str, data: str) -> list[str]:
        mode = STRATEGIES.find(method).Settings.mode
        own = self.overrides.get(method, [])
        eps = self.eps.get(mode)
        if eps is None or any(text.startswith("eps=") for text in own):
            return [f"data={data}", f"mode={mode}", f"strategy={method}", *own]
        return [f"data={data}", f"mode={mode}", f"strategy={method}", f"eps={eps}", *own]

    def conclude(self, folder: Path, notes: Config, runs: Mapping[str, FinishedRun]) -> str:
        """Evaluates the runs that have not been, and writes compare.html."""
        if self.images:
            for number, (name, run) in enumerate(runs.items(), start=1):
                if "evaluation" not in RecordedRun(run.folder).evaluations:
                    line = f"Evaluating {name}, {number} of {len(runs)}\n"
                    ForgivingStream(sys.stderr).write(line)
                    evaluate_run(str(run.folder.path), n=self.images)
        comparison = Comparison(Compared.of([folder]))
        comparison.write(folder / NAME)
        return comparison.text()


def _table(study: MethodComparison, key: str) -> Mapping[str, Any]:
    table = getattr(study, key)
    if not isinstance(table, Mapping):
        raise ConfigError(f"study.{key} is a table by name, not {table!r}.")
    return table


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _refuse_the_rest(config: Config, expected: Config) -> None:
    """Refuses keys that the runs would not get from the study's configuration."""
    stated = dict(leaves({**config, "study": None}))
    usual = dict(leaves({**expected, "study": None}))
    different = [key for key in {**stated, **usual} if stated.get(key) != usual.get(key)]
    own = [key for key in different if not key.startswith("recipe.")]
    if not own:
        return
    if "eps" in own:
        raise ConfigError(
            f"eps={stated['eps']} says nothing about which promise: the central and the local "
            "model's ε are different ones; give study.eps.central=… and study.eps.ldp=…."
        )
    key = "mode" if "mode" in own else own[0]
    raise ConfigError(
        f"{key}={stated.get(key)} is for a single method, and study.name={MethodComparison.name} "
        "runs several: leave it out, or give it in study.overrides.METHOD, as in "
        "'study.overrides.gs_wgan=[rounds=100]'."
    )
