"""A federation of clients that share out arrays of a program, and the fit of a method to it.

>>> import tempfile, torch
>>> from fedsink.federation import Federation
>>> from fedsink.privacy import PrivacyPlan, RecordClip
>>> from fedsink.strategies.recipes import DPSinkhorn
>>> images, labels = torch.rand(40, 1, 6, 6), torch.arange(40) % 2
>>> plan = PrivacyPlan.solve(rate=0.5, clip=RecordClip(1.0), delta=1e-5, sigma=2.0, rounds=2)
>>> federation = Federation(images, labels, clients=4, classes=2, nominal_records=40)
>>> with tempfile.TemporaryDirectory() as folder:
...     run = federation.fit(DPSinkhorn("mlp", plan, lam=2.0), folder, seed=0)
...     pictures, drawn = run.sample(5)
...     print(f"ε = {run.privacy['epsilon']:.1f}", tuple(pictures.shape))
ε = 1.8 (5, 1, 6, 6)
"""

from __future__ import annotations

import hmac
import itertools
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from fedsink.clients.node_settings import NodeSettings
from fedsink.configuration import COMPOSED, START_PLANS
from fedsink.data.labelled import LabelledData, Reading, checked_records, described, number_of
from fedsink.data.partition import PartitionSpec, scheme_from_dict
from fedsink.data.sources import held
from fedsink.data.spec import ARRAYS, DataSpec
from fedsink.environment import undisturbed
from fedsink.errors import CheckpointError, ConfigError, DataError, ModelError, PrivacyError
from fedsink.models import Observation
from fedsink.privacy import LOCAL_NOISE
from fedsink.privacy.adjacency import USER
from fedsink.reporting.loggers import logger_names
from fedsink.server.folder import RunFolder
from fedsink.server.loop import InterruptedRunError, LoopSettings
from fedsink.server.running import ServerSettings
from fedsink.simulation.engine import EngineSettings, chosen_engine
from fedsink.simulation.experiment import Experiment, hosted, pools
from fedsink.simulation.run_identity import RunIdentity
from fedsink.simulation.simulated_run import play, resume
from fedsink.strategies.recipes import Method, Table
from fedsink.values import Config, checks, leaves, read_json, strictly

if TYPE_CHECKING:
    from fedsink.api import Run
    from fedsink.simulation.run_figures import Measured

_NUMBERS = itertools.count(1)
_READ_OFF = (
    "These facts were read off the records and are taken as public: the guarantee says nothing of "
    "what they tell. An argument of fedsink.Federation states each of them instead."
)


class Federation:
    """Clients that share out the records of arrays; `fit` trains a generator on them.

    Facts that the guarantee rests on are arguments. One that is left out is read off the arrays,
    and privacy.json then says that it is *assumed public*. Arrays are not copied where their type
    allows it: leave them as they are until the run has ended.

    Guarantees:
        - Values outside the range are refused, and not clipped into it.
        - What is read off the arrays is listed in privacy.json as assumed public.
        - A run is continued only with the arrays that it began with.
        - The run folder holds no digest of the arrays that somebody without the key could compare.

    Args:
        images: (N, channels, height, width), (N, height, width) in grey, or points (N, d): NumPy
            or torch. uint8 counts as black 0 to white 255, floats lie in `range`.
        labels: (N,) whole numbers below the number of classes; None: the generator learns none.
        clients: K, among whom the records are dealt out.
        classes: the number of classes, or their names; None: read off the labels.
        nominal_records: N, a public number of records, which no run exceeds; None: read off.
        range: the values of black and of white. None: [0, 1] of floats, uint8 as above.
        users: (N,), a number or a name of each record's user, for adjacency "user" and
            partition "by_user".
        partition: "iid", "by_user", or a mapping such as {"name": "dirichlet", "alpha": 0.3}.
        partition_seed: public seed of the deal.
        engine: "local", "ray" or "auto", or a mapping such as {"name": "ray", "actors": 4}. Ray
            gets the records once a machine.

    Raises:
        DataError: the arrays contradict one another or the public facts.
        ConfigError: a fact is none.
    """

    def __init__(
        self,
        images: Any,
        labels: Any = None,
        *,
        clients: int = 10,
        classes: int | Sequence[str] | None = None,
        nominal_records: int | None = None,
        range: tuple[float, float] | None = None,
        users: Any = None,
        partition: str | Mapping[str, Any] | PartitionSpec = "iid",
        partition_seed: int = 0,
        engine: str | Mapping[str, Any] = "local",
    ) -> None:
        self._range, self._labelled = range, labels is not None
        values = self._values(images)
        numbers = _labels(labels, len(values))
        self._assumed = [
            name
            for name, left_out in (
                ("classes", classes is None and labels is not None),
                ("nominal_records", nominal_records is None),
            )
            if left_out
        ]
        self.clients = checks.count("clients", clients)
        names = _names(classes, None if labels is None else numbers)
        nominal = len(values) if nominal_records is None else nominal_records
        if len(values) > checks.count("nominal_records", nominal):
            raise DataError(
                f"images holds {len(values)} records, more than the public nominal_records="
                f"{nominal}: raise that number, or leave some out."
            )
        self._partition = _scheme(partition)
        self._partition_seed = checks.count("partition_seed", partition_seed, minimum=0)
        self._engine: dict[str, Any] = {"name": engine} if isinstance(engine, str) else {**engine}
        checks.choice("engine", self._engine.get("name"), "local", "ray", "auto")
        # Tells this federation's records apart from any other's in this process.
        where = f"memory {next(_NUMBERS)}"
        self.data = DataSpec(ARRAYS, tuple(values.shape[1:]), names, nominal, root=where)
        self._records = self._checked(values, numbers, users)

    @undisturbed()
    def fit(
        self,
        method: Method,
        folder: str | os.PathLike[str] | None = None,
        *,
        seed: int | None = None,
        noise: Literal["fast", "secure"] = "fast",
        start: str | os.PathLike[str] | None = None,
        start_plan: str = COMPOSED,
        observation: Table | None = None,
        report: Table | None = None,
        log: str | Sequence[str] | None = None,
    ) -> Run:
        """Trains a generator, or continues in a folder where the same fit was stopped.

        Args:
            method: a `DPSinkhorn`, `GSWGAN` or `EntropicLDP`.
            folder: the run folder, new or empty, or that of the stopped fit; None: a new one under
                `runs`.
            seed: reproducible noise, which protects nothing; None: secret noise.
            noise: "fast", or "secure", float-safe and without a seed.
            start: folder of a run with the weights before round 1: of public data, or of this
                federation's (make the plan with `PrivacyPlan.solve(before=…)` for one total ε).
            start_plan: how the plan of a private start counts: "composed" or "added".
            observation: values that replace those of `Observation`, how pictures are drawn after
                training, as {"latent_range": 1.1}.
            report: values that replace those of `LoopSettings`, when the run is saved and shown, as
                {"pictures": 0, "html": False}.
            log: names of loggers.

        Returns:
            The finished run, with its `privacy`, `sample` and report.html.

        Raises:
            FedsinkError: bad input (nothing was written), or another fit began in the folder.
            KeyboardInterrupt: the run was stopped; the same call with its folder continues it.
        """
        from fedsink.api import Run

        assemble = partial(
            self._experiment, method, seed, noise, start, start_plan,
            Observation.from_dict(observation or {}),
            strictly(LoopSettings, report or {}, "report"), log,
        )  # fmt: skip
        path = _new_folder() if folder is None else Path(folder).expanduser().absolute()
        began = RunFolder(path)
        if began.finished:
            raise ConfigError(
                f"The run in {path} has ended: open it by fedsink.load({str(path)!r}), or choose "
                "another folder."
            )
        try:
            with held(self.data, train=self._records), _in_words_of_arguments():
                if began.config.is_file():
                    return Run(resume(path, partial(self._again, assemble, path)))
                return Run(play(assemble(RunIdentity.fresh(seed)), path))
        except InterruptedRunError as error:
            raise KeyboardInterrupt(
                f"{error.stopped} Continue with the same fit(…, folder={str(path)!r})."
            ) from error

    @undisturbed()
    def evaluate(self, run: Run, images: Any, labels: Any = None, **options: Any) -> Measured:
        """Measures a run of this federation on test records, as `Run.evaluate` with its options.

        The figures are computed on real data without privacy, for public benchmarks.
        """
        data = DataSpec.from_config(run.config["data"])
        if data != replace(self.data, root=None):
            raise ConfigError(
                f"The run in {run.folder} was not fitted to this federation: its public facts are "
                "others."
            )
        values = self._values(images)
        test = self._checked(values, _labels(labels, len(values)), None)
        with held(data, train=self._records, test=test):
            return run.evaluate(**options)

    def _values(self, images: Any) -> Tensor:
        """Returns uint8 values as they are, and others as float32 in [0, 1] (points as given)."""
        values = _tensor("images", images)
        if values.ndim == 3:
            values = values.unsqueeze(1)
        if values.ndim not in (2, 4) or 0 in values.shape:
            raise DataError(
                "images is (N, channels, height, width), (N, height, width) or points (N, d), "
                f"received the shape {tuple(values.shape)}."
            )
        if values.ndim == 4 and values.shape[3] <= 4 < values.shape[1]:
            raise DataError(
                f"images has its channels last, in the shape {tuple(values.shape)}: move them to "
                "the front, by images.transpose(0, 3, 1, 2) or permute."
            )
        if values.dtype == torch.uint8 and values.ndim == 4 and self._range in (None, (0, 255)):
            return values.contiguous()
        if self._range is None and not values.dtype.is_floating_point:
            raise DataError(
                f"images holds {values.dtype}: say range=(black, white), or convert it to uint8."
            )
        low, high = (0.0, 1.0) if self._range is None else _range(self._range)
        if values.ndim == 2 and self._range is None:
            low, high = -torch.inf, torch.inf  # the limit of points is checked with the records
        smallest, largest = float(values.min()), float(values.max())
        if smallest < low or largest > high:  # a NaN is found with the records
            raise DataError(
                f"images holds values from {smallest:g} to {largest:g}, outside the public range "
                f"[{low:g}, {high:g}]: say range=(black, white), or fix them. They are not clipped."
            )
        if values.ndim == 4 and (low, high) != (0.0, 1.0):
            values = ((values.to(torch.float64) - low) / (high - low)).clamp(0.0, 1.0)  # rounding
        return values.to(torch.float32).contiguous()

    def _checked(self, values: Tensor, labels: Tensor, users: Any) -> LabelledData:
        """Returns records that suit the public facts."""
        if tuple(values.shape[1:]) != self.data.shape:
            raise DataError(
                f"images holds records of the shape {tuple(values.shape[1:])}, and those of this "
                f"federation have {self.data.shape}."
            )
        classes = len(self.data.classes)
        if bool(((labels < 0) | (labels >= classes)).any()):
            raise DataError(
                f"labels holds {int(labels.min())} to {int(labels.max())}, and the {classes} "
                f"classes are 0 to {classes - 1}: state classes=, or fix them."
            )
        return checked_records(Reading(values, labels, _users(users, len(values))), self.data)

    def _experiment(
        self,
        method: Method,
        seed: int | None,
        noise: str,
        start: str | os.PathLike[str] | None,
        start_plan: str,
        observation: Observation,
        report: LoopSettings,
        log: str | Sequence[str] | None,
        identity: RunIdentity,
    ) -> Experiment:
        if not isinstance(method, Method):
            raise ConfigError(
                f"method is a DPSinkhorn, GSWGAN or EntropicLDP, or derives from Method, not "
                f"{described(method)}."
            )
        if seed is not None:
            checks.count("seed", seed, minimum=0)
        checks.choice("noise", noise, "fast", "secure")
        observation.check(self.data.shape)
        strategy = method.settings(self.data, self.clients, identity.name)
        plan: Any = strategy.plan
        if getattr(plan, "unit", None) == USER and self._records.users is None:
            raise DataError(
                "The plan protects users, and the federation was not told whose records these "
                "are: give it users=."
            )
        engine = chosen_engine(EngineSettings.from_config(self._engine), strategy)
        if engine.name == "ray":
            engine = replace(engine, data="object_store")
        name, options = method.architecture(self.data, self.clients)
        server = ServerSettings(
            strategy=strategy,
            generator=name,
            generator_options=options,
            shape=self.data.shape,
            classes=self.data.classes,
            server_seed=identity.server_seed,
            loop=report,
            engine=engine,
            log=logger_names(log),
            source=None if start is None else Path(start).expanduser().resolve(),
            start_plan=checks.choice("start_plan", start_plan, *START_PLANS),
        )
        share = getattr(strategy, "share", LOCAL_NOISE)
        node = NodeSettings(
            data=self.data,
            partition=self._partition,
            clients=self.clients,
            partition_seed=self._partition_seed,
            seed=seed,
            noise=cast("Literal['fast', 'secure']", noise),
            unprotected=not getattr(plan, "protected", True),
            pooled=pools(share, strategy, engine, noise),
            masked=share.masked,
            **hosted(engine, identity),
        )
        scheme = type(self._partition).__name__
        config = {
            "mode": strategy.mode,
            "clients": self.clients,
            "conditional": self._labelled,
            "data": {**asdict(self.data), "root": None},
            "partition": {"name": scheme, **vars(self._partition), "seed": self._partition_seed},
            "noise": {"backend": noise},
            "seed": seed,
            "rounds": getattr(strategy, "rounds", getattr(plan, "rounds", None)),
            "observation": asdict(observation),
            "report": asdict(report),
            "start": None if server.source is None else str(server.source),
            **({} if server.source is None else {"start_plan": server.start_plan}),
            "log": list(server.log),
            "engine": engine.stored(self._engine),
            "generator": {"name": name, **options},
            "strategy": {"name": strategy.name, **strategy.identity()},
        }
        assumed = {"facts": self._assumed, "meaning": _READ_OFF}
        return Experiment(
            server=server,
            node=node,
            engine=engine,
            identity=identity,
            config=read_json(json.dumps(config, default=str)),
            privacy={"assumed_public": assumed} if self._assumed else {},
            arrays=self._records.digest(),
        )

    def _again(
        self, assemble: Any, path: Path, stored: Config, identity: RunIdentity
    ) -> Experiment:
        """Returns the experiment that began in a folder; refuses any other."""
        sealed = (stored.get("run") or {}).get("arrays")
        if sealed is None:
            raise ConfigError(
                f"The run in {path} began on data with a source, and is continued by "
                f"fedsink.resume({str(path)!r})."
            )
        experiment: Experiment = assemble(identity)
        if not hmac.compare_digest(identity.seal(experiment.arrays or ""), str(sealed)):
            raise CheckpointError(
                f"The run in {path} began with other arrays, and the noise of its rounds is never "
                "added to others: give it the same images, labels and users."
            )
        before, now = (
            {k: v for k, v in c.items() if k != "run"} for c in (stored, experiment.config)
        )
        was, this = dict(leaves(before)), dict(leaves(now))
        for key in [*was, *(this.keys() - was.keys())]:
            if was.get(key) != this.get(key):
                raise CheckpointError(
                    f"The run in {path} began with {key}={was.get(key)!r}, and this fit has "
                    f"{this.get(key)!r}: give it the same arguments, or choose another folder."
                )
        return experiment


@contextmanager
def _in_words_of_arguments() -> Iterator[None]:
    """Names arguments in errors of settings that also have a place in configurations."""
    try:
        yield
    except (ConfigError, DataError, ModelError, PrivacyError) as error:
        told = re.sub(r"\b(strategy|noise|data|engine|partition|report)\.(?=[a-z])", "", str(error))
        raise error if told == str(error) else type(error)(told) from error


def _new_folder() -> Path:
    now = datetime.now()
    return Path("runs").absolute() / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S-%f}-federation"


def _tensor(name: str, values: Any) -> Tensor:
    try:
        with warnings.catch_warnings():  # records are only read, so that an array may be read-only
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"{name} is a NumPy array or a tensor of numbers, received {described(values)}."
        ) from None


def _labels(labels: Any, records: int) -> Tensor:
    """Returns a label for every record; 0 where there are none."""
    if labels is None:
        return torch.zeros(records, dtype=torch.int64)
    numbers = _tensor("labels", labels)
    whole = not (numbers.dtype.is_floating_point or numbers.dtype.is_complex)
    if numbers.shape != (records,) or not whole or numbers.dtype == torch.bool:
        raise DataError(
            f"labels is a whole number for each of {records} records, received {numbers.dtype} of "
            f"the shape {tuple(numbers.shape)}."
        )
    return numbers.to(torch.int64)


def _names(classes: int | Sequence[str] | None, labels: Tensor | None) -> tuple[str, ...]:
    """Returns the names of the classes, of which unlabelled records have one."""
    if labels is None:
        if classes is not None:
            raise ConfigError(
                "classes= names what labels tell apart, and there are none: leave it out, or give "
                "labels."
            )
        return ("any",)
    if classes is None:
        classes = int(labels.max()) + 1
    if isinstance(classes, int):
        return tuple(map(str, range(checks.count("classes", classes))))
    return tuple(classes)


def _users(users: Any, records: int) -> Tensor | None:
    """Returns a number for each record's user: that of a name depends on the name alone."""
    if users is None:
        return None
    found = users.cpu().numpy() if isinstance(users, Tensor) else np.asarray(users)
    if found.shape != (records,) or found.dtype.kind not in "iuUSO":
        raise DataError(
            f"users is a whole number or a name for each of {records} records, received "
            f"{found.dtype} of the shape {found.shape}."
        )
    if found.dtype.kind in "iu":
        return torch.as_tensor(found.astype(np.int64))
    return torch.tensor([number_of(str(name)) for name in found.tolist()], dtype=torch.int64)


def _range(values: Any) -> tuple[float, float]:
    try:
        low, high = map(float, values)
    except (TypeError, ValueError):
        low = high = 0.0
    if not -torch.inf < low < high < torch.inf:
        raise ConfigError(
            f"range is (black, white), two numbers of which the second is larger, not {values!r}."
        )
    return low, high


def _scheme(partition: str | Mapping[str, Any] | PartitionSpec) -> PartitionSpec:
    if isinstance(partition, str):
        return scheme_from_dict({"name": partition})
    return scheme_from_dict(partition) if isinstance(partition, Mapping) else partition
