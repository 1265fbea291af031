"""A key that is set acts, or it is refused: every key, under every method, on every kind of data.

Each cell of the matrix changes one key of a run of two rounds to another legal value, and demands
other weights, another privacy.json, other pictures (`observation`) or another deal (`partition`);
or a refusal that names the key. All keys that are refused because they change nothing are set in
one run, which has to be that of none. Keys come from the composed configuration, so that a new one
is in the matrix by itself; its other value follows from its type, or stands in `OTHERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedsink.clients.node import close_nodes
from fedsink.commands.hydra_keys import one_sentence
from fedsink.conf import acting
from fedsink.conf.acting import acting_values, compose_config
from fedsink.conf.loading import as_overrides, choices, composed
from fedsink.data import sources
from fedsink.errors import ConfigError, FedsinkError
from fedsink.privacy.accounting import accountants, composition, grids
from fedsink.server.finished import open_run
from fedsink.simulation.simulated_run import start
from fedsink.values import leaves

from ..support import picture_files

Install = Callable[[dict[str, str], str], None]
SHORT = (
    "seed=0", "rounds=2", "clients=2", "engine=local", "report.pictures=0", "report.html=false",
)  # fmt: skip
BATCH = "clip=batch strategy.lam=0.5"
PUBLISHED = f"{BATCH} strategy.schedule=joint strategy.self_term=semi_debiased strategy.m=1"
CRITICS = "strategy=gs_wgan strategy.critics=2 strategy.critic.steps=1 strategy.critic.warm=1"
METHODS = {
    "sinkhorn": "mode=central",
    "joint": "mode=central strategy.schedule=joint",
    "joint_shared": "mode=central strategy.schedule=joint noise.share=secure_aggregation "
    "noise.draw=sum",
    "batch": f"mode=central {BATCH}",
    "batch_joint": f"mode=central {BATCH} strategy.schedule=joint",
    "batch_l1": f"mode=central {BATCH} strategy.cost=l1",
    "semi_debiased": f"mode=central {BATCH} strategy.self_term=semi_debiased",
    "published_loss": f"mode=central {PUBLISHED} strategy.solver=annealed view=pixel",
    "unprotected": "mode=central eps=inf",
    "unprotected_batch": f"mode=central eps=inf {BATCH}",
    "unconditional": "mode=central conditional=false",
    "unconditional_batch": f"mode=central conditional=false {BATCH}",
    "gs_wgan": f"mode=central {CRITICS}",
    "gs_wgan_unconditional": f"mode=central {CRITICS} conditional=false",
    "gs_wgan_unprotected": f"mode=central {CRITICS} eps=inf",
    "gs_wgan_convolution": f"mode=central {CRITICS} view=pixel strategy.critic.kind=convolution "
    "strategy.critic.hidden=2",
    "gs_wgan_published": f"mode=central {CRITICS} clients=1 strategy.critics=1 "
    "strategy.published=true strategy.row_sigma=1.07 strategy.critic.mismatch=0.0",
    "parameter_gradient": "mode=central strategy=parameter_gradient",
    "parameter_gradient_published": f"mode=central strategy=parameter_gradient {PUBLISHED}",
    "ldp": "mode=ldp",
    "ldp_gaussian": "mode=ldp mechanism=gaussian",
    "ldp_sigma": "mode=ldp sigma=0.5",
    "ldp_annealed": "mode=ldp strategy.solver=annealed",
    "ldp_debiased": "mode=ldp strategy.loss=debiased",
    "ldp_unregularised": "mode=ldp strategy.loss=unregularised",
    "ldp_noisy_w1": "mode=ldp strategy.loss=noisy_w1",
    "ldp_noisy_wgan": "mode=ldp strategy.loss=noisy_wgan conditional=false",
    "ldp_denoised": "mode=ldp strategy.loss=denoised map=l1_ball",
    "ldp_unmatched": "mode=ldp strategy.unmatched=true strategy.cost=l1",
    "ldp_unconditional": "mode=ldp conditional=false",
    "ldp_shuffled": "mode=ldp shuffler=trusted eps=2",
}
"""Each method with its losses, solvers and clips."""

OF_GROUPS = {
    "view=dct view.radius=5": "view",
    "generator=mlp": "generator",
    "generator=conv": "generator",
    "generator=dct_mlp generator.per_class_first_layer=true": "generator",
    "generator=biggan generator.width=4": "generator",
    "generator=biggan generator.width=4 conditional=false": "generator",
    "generator=dct_mlp conditional=false": "generator",
    "mode=ldp map=l1_ball": "map",
    "mode=ldp mechanism=gaussian map=l2_ball": "map",
    "mode=ldp map=pixel_range": "map",
    "partition=by_label partition.labels_per_client=5": "partition",
    "partition=dirichlet": "partition",
    "partition=unequal": "partition",
    "strategy.optimizer.name=sgd": "strategy.optimizer",
    "strategy.optimizer.name=rmsprop": "strategy.optimizer",
    "strategy.optimizer.schedule=constant strategy.optimizer.ema=0.0": "strategy.optimizer",
    "observation.deformation.std=0.0 observation.noise.std=0.0": "observation",
}
"""Choices whose own group of keys is changed, on digits."""

DATA = {
    "digits": "data=digits",
    "half_circle": "data=half_circle",
    "own": "data=image_folder data.root={root}/own data.classes=[x,y] data.nominal_records=60 "
    "data.shape=[3,10,9]",
    "mnist": "data=mnist data.root={root} data.nominal_records=200",
}
EVERYWHERE = (
    "sinkhorn", "published_loss", "gs_wgan", "parameter_gradient", "ldp", "ldp_noisy_wgan",
)  # fmt: skip
"""Methods that meet all kinds of data; the others meet digits."""

WITHOUT = {
    "mode": "which method it is",
    "strategy.name": "which method it is",
    "mechanism.name": "which method it is",
    "data.name": "which data it is",
    "data.classes": "names, which the report and folders of pictures have",
    "public": "what privacy.json says of the data",
    "data.range": "black and white of pictures of more than 8 bits, which none of these are",
    "data.nominal_records": "a fact about the data, stated for every method; averages read it",
    "log": "whom the run is told to",
    "report.checkpoint_seconds": "when checkpoints are written",
    "report.pictures": "how many pictures are drawn while it trains",
    "report.html": "whether a page is written at the end",
    "resume": "which folder is continued",
    "scale": "of experiments that have scales",
    "scales": "of experiments that have scales",
    "paper": "what privacy.json compares the run with",
    "engine.name": "engines have the same results",
    "engine.threads": "how fast it computes",
    "engine.device": "where it computes",
    "strategy.quorum": "how many must answer, where a client is missing",
    "strategy.chunk_size": "how large messages are",
}
"""Keys that change neither weights nor guarantee, and why they are there."""

OTHERS: Mapping[str, Sequence[object]] = {
    "accountant": ["rdp"], "adjacency": ["replace-one", "add-remove"], "capacity": [2000],
    "clip": ["batch", "record"], "data.clients_file": ["/nowhere.csv"], "data.shape": [[3, 9, 8]],
    "delta": [1e-6], "eps": [7.0],
    "engine.timeout": [77], "generator.output": ["linear", "sigmoid"], "generator.radius": [5.0],
    "map.background": [0.4], "map.black": [0.25], "map.block": [2], "map.norm": ["l2", "l1"],
    "map.pool": [2], "map.power": [2.5], "map.radius": [0.5], "map.white": [0.8],
    "mechanism.label_eps": [0.5], "noise.backend": ["secure"], "noise.draw": ["sum", "clients"],
    "noise.share": ["secure_aggregation", "local"], "partition.keep": [[0]],
    "policy": ["/nowhere.toml"], "rate": [0.4], "recipe.label_eps": [2.0],
    "recipe.map": [{"name": "l1_ball"}], "sigma": [2.0], "shuffler": ["trusted", "none"],
    "start": ["/nowhere"], "start_plan": ["added"],
    "strategy.backend": ["keops"], "strategy.batch": [200], "strategy.critic.late": [0.0, 1.0],
    "strategy.default_clip": ["record"], "strategy.cost": ["l1", "mixed", "squared_l2"],
    "strategy.critic": [{"hidden": 5}], "strategy.critic.history": [1],
    "strategy.critic.kind": ["convolution", "perceptron"], "strategy.finite_batch_factor": [0.5],
    "strategy.lam": [0.3], "strategy.loss": ["debiased", "matched"], "strategy.m": [1.5],
    "strategy.max_iterations": [1], "strategy.optimizer.betas": [[0.3, 0.5]],
    "strategy.optimizer.ema": [0.0, 0.5], "strategy.optimizer.name": ["sgd", "adam"],
    "strategy.optimizer.schedule": ["constant", "cosine"], "strategy.row_sigma": [2.0],
    "strategy.p": [0.6], "strategy.schedule": ["joint", "class"],
    "strategy.self_term": ["semi_debiased", "history"],
    "strategy.solver": ["annealed", "converged"], "strategy.tether": [1.01],
    "strategy.tolerance": [0.0, 0.3], "strategy.turns": [2], "view.dc": [False, True],
    "view.frequency_weight": [3.0], "view.radius": [3.5],
}  # fmt: skip
"""Other values of keys whose type does not tell one; the first of them that differs is taken."""

REPEATED = rb'"finite_batch_factor": [^,\n]*'
"""What privacy.json says of a key as it was set, whether the loss reads it or not."""

CHOSEN = ("generator", "map", "noise", "partition", "view")
"""Groups of which another choice is a key like any other."""
NAMES_OF = tuple(f"{group}.name" for group in CHOSEN)
NO_OTHER = ("recipe", "by_user", "biggan")
"""Choices that are never the other one: no choice, FEMNIST's own, twenty minutes on MNIST."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders with the same kinds of pictures and other ones in them."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed, name in enumerate(("one", "other")):
        picture_files.write(folder / name, seed)
        picture_files.write_classes(folder / name / "own", ["x", "y"], seed=seed)
    return folder / "one", folder / "other"


@pytest.fixture(scope="module")
def coarse() -> Iterator[None]:
    """Grids of the accountant ten times coarser: another ε shows on them as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "_GRID", 1e-3)
        yield
    for cached in (accountants.pld_epsilon, composition._epsilon):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("fedsink.server.loop.snapshot", lambda strategy, folder, classes: folder)
    yield
    close_nodes()
    sources.forget()


def other(key: str, value: object) -> object:
    """Another value of a key; None where nothing tells one."""
    if key in OTHERS:
        return next(each for each in OTHERS[key] if each != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value / 2 or 0.5
    if isinstance(value, list) and all(type(each) in (int, float) for each in value):
        return [each + 1 for each in value]
    return "another" if key.startswith("recipe.") else None


def typed(key: str, value: object) -> list[str]:
    """A key as it is typed."""
    return as_overrides({key: value}, ())


class Cells:
    """The keys of one method on one kind of data, and the outcome of changing each."""

    def __init__(self, method: str, data: str, folder: Path) -> None:
        words = [*method.split(), *data.split()]
        typed = {word.partition("=")[0] for word in words}
        self.base = [*words, *(word for word in SHORT if word.partition("=")[0] not in typed)]
        self.base = list({word.partition("=")[0]: word for word in self.base}.values())
        self._typed, self._folder, self._count = typed, folder, 0
        self._config = composed(self.base)
        self.values = acting_values(self._config, self.base)
        folder_before = self._played(self.values)
        self._before = _files(folder_before), _drawn(folder_before)

    def keys(self, group: str = "") -> Iterator[tuple[str, object]]:
        """The keys and another value of each; None where no other is known."""
        for key, value in leaves(self.values):
            if key.startswith(group) and key not in (*WITHOUT, *NAMES_OF):
                yield key, other(key, value)
        for name in CHOSEN:
            if name not in self._typed and name.startswith(group):
                own = self.values[name].get("backend" if name == "noise" else "name")
                yield name, next(c for c in choices(name) if c not in (own, *NO_OTHER))

    def _composed(self, key: str, value: object) -> DictConfig:
        if key in CHOSEN:
            return composed([*self.base, f"{key}={value}"])
        return self._changed({key: value})

    def _changed(self, values: Mapping[str, object]) -> DictConfig:
        config = deepcopy(self._config)
        with open_dict(config):
            for key, value in values.items():
                OmegaConf.update(config, key, value)
        return config

    def outcomes(self, changes: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Yields each key with "acts", "refused: …" or a description of the defect."""
        idle: dict[str, str] = {}
        for key, value in changes.items():
            if value is None:
                yield key, "has no other value"
                continue
            try:
                config = self._composed(key, value)
                plain: Any = OmegaConf.to_container(config, resolve=True)
                acting.refuse_idle(config, plain, [*self.base, *typed(key, value)])
            except ConfigError as refusal:
                if str(refusal).startswith(key):
                    idle[key] = f"refused: {refusal}"
                else:  # another typed key has no meaning beside it
                    yield key, self._named(refusal, key, value)
            except (FedsinkError, OmegaConfBaseException, HydraException) as error:
                yield key, self._named(error, key, value)
            else:
                yield key, self._outcome(plain, key, value)
        alone = [key for key in idle if key in CHOSEN]  # a group's keys do not fit another choice
        together = {key: changes[key] for key in idle if key not in alone}
        together = {key: value for key, value in together.items() if not key.startswith("recipe.")}
        if together and self._acts(self._changed(together)) is not False:
            alone += together
        for key, refusal in idle.items():
            wrongly = key in alone and self._acts(self._composed(key, changes[key]))
            yield key, f"wrongly {refusal}" if wrongly else refusal

    def _outcome(self, plain: Mapping[str, Any], key: str, value: object) -> str:
        """Outcome of the run of a key that is not refused as idle."""
        if key.startswith("recipe."):
            return "acts"  # through the keys that refer to it, tested as such
        try:
            if self._differs(plain):
                return "acts"
        except (FedsinkError, OmegaConfBaseException, HydraException) as error:
            return self._named(error, key, value)
        said = f"{key}={value} changes nothing here" in self._said
        return "refused: said" if said else "silent"

    def _named(self, error: Exception, key: str, value: object) -> str:
        text = str(error) if isinstance(error, FedsinkError) else one_sentence(error)
        group, _, last = key.rpartition(".")
        words = (last, f"{group}=", *([str(value)] if key in CHOSEN else []))
        named = any(word in text for word in words)
        return f"refused: {text}" if named else f"refused without its name: {text}"

    def _acts(self, config: DictConfig) -> bool | None:
        """True if a run differs from the one before any change; None if it is refused."""
        plain: Any = OmegaConf.to_container(config, resolve=True)
        try:
            return self._differs(plain)
        except FedsinkError:
            return None

    def _differs(self, values: Mapping[str, Any]) -> bool:
        """Tells whether weights, guarantee, deal or drawn pictures are others than before."""
        folder = self._played(values)
        return _files(folder) != self._before[0] or _drawn(folder) != self._before[1]

    def _played(self, values: Mapping[str, Any]) -> Path:
        self._count += 1
        with redirect_stderr(StringIO()) as said:
            folder = start(dict(values), self._folder / str(self._count))
        self._said = said.getvalue()
        close_nodes()
        return folder


def _files(folder: Path) -> list[bytes]:
    names = ("generator.safetensors", "privacy.json", "partition.json")
    return [re.sub(REPEATED, b"", (folder / name).read_bytes()) for name in names]


def _drawn(folder: Path) -> list[Any]:
    pictures: list[Any] = open_run(str(folder)).draw(8, 0)[0].tolist()
    return pictures


PAIRS = [
    (METHODS[method], data, "")
    for method in METHODS
    for data in DATA
    if data == "digits" or method in EVERYWHERE
] + [(choice, "digits", group) for choice, group in OF_GROUPS.items()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("method", "data", "group"), PAIRS)
def test_every_key_acts_or_is_refused(
    method: str, data: str, group: str, places: tuple[Path, Path], tmp_path: Path
) -> None:
    if data == "half_circle":  # of one class: every method is unconditional there
        for without in (" conditional=false", " strategy.schedule=joint"):
            method = method.replace(without, "")
    cells = Cells(method, DATA[data].format(root=places[0]), tmp_path)
    changes = dict(cells.keys(group))
    if "data.root" in changes:
        changes["data.root"] = str(places[1] / "own" if data == "own" else places[1])
    wrong = [
        f"{key}={changes[key]}: {found}"
        for key, found in cells.outcomes(changes)
        if not found.startswith(("acts", "refused: "))
    ]
    assert wrong == []


REFUSED = {
    "strategy.p=0.5": "strategy.self_term=semi_debiased",
    "strategy.label_weight=3": "clip=batch and strategy.schedule=joint",
    "strategy.solver=annealed": "clip=batch",
    "map=l1_ball": "mode=ldp",
    "map.radius=3": "mode=ldp",
    "mechanism.label_eps=2": "mode=ldp",
    "data.root=/nowhere": "data that is read from files",
    "data.download=false": "data that is downloaded",
    "engine=local engine.timeout=7": "engine=ray",
    "mode=ldp rate=0.5": "mode=central",
    "data=half_circle partition=by_label": "data of more than one class",
    "clients=1 partition.seed=3": "clients above 1",
    "mode=ldp clip=batch": "mode=central",
    "mode=ldp view=pixel": "mode=central",
    "clip=batch strategy.self_term=semi_debiased strategy.history=4": "strategy.self_term=history",
    "mode=ldp strategy.solver=annealed strategy.tolerance=0.5": "strategy.solver=converged",
    "mode=ldp strategy.solver=annealed strategy.max_iterations=9": "strategy.solver=converged",
    "mode=ldp strategy.loss=noisy_w1 strategy.solver=annealed": "strategy.loss=matched or debiased",
    "eps=inf delta=0.001": "a finite eps",
    "rounds=9 recipe.rounds=7": "rounds=null",
}


@pytest.mark.quick("strategy.p=0.5*", "mode=ldp rate=0.5*")
@pytest.mark.parametrize("typed", REFUSED)
def test_what_changes_nothing_is_refused_with_what_it_needs(typed: str) -> None:
    key = typed.split()[-1]
    needs = REFUSED[typed]
    expected = f"{key} changes nothing here: it acts with {needs}. Leave it out, or choose that."
    with pytest.raises(ConfigError) as refused:
        compose_config(typed.split())
    assert str(refused.value) == expected


@pytest.mark.medium
def test_a_table_s_value_that_nothing_refers_to_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"recipe\.batch\.rate=0\.5 changes nothing here: no value"
    ):
        compose_config(["recipe.batch.rate=0.5"])
    assert compose_config(["recipe.record.rate=0.5"])["rate"] == 0.5


@pytest.mark.slow
def test_null_defaults_and_what_is_inherited_are_not_refused() -> None:
    for typed in (
        "mode=central", "mode=ldp", "mode=ldp rate=null", "experiment=mnist_small rounds=7",
        "experiment=dp_sinkhorn_mnist_l1 strategy.self_term=history",
        "experiment=reshetova_mnist_laplace35_noisy_w1",
        "experiment=reshetova_half_circle_laplace strategy.loss=noisy_w1",
    ):  # fmt: skip
        assert compose_config(typed.split())


def _install_experiment(install_package: Install, name: str, text: str) -> None:
    files = {
        "plugin/__init__.py": "",
        "plugin/conf/__init__.py": "",
        f"plugin/conf/experiment/{name}.yaml": f"# @package _global_\n{text}",
    }
    install_package(files, "[fedsink.conf]\nplugin = plugin.conf\n")


def test_an_experiment_s_own_key_is_refused(install_package: Install) -> None:
    _install_experiment(install_package, "idle", "strategy: {p: 0.5}\n")
    with pytest.raises(ConfigError, match=r"strategy\.p=0\.5 of experiment=idle changes nothing"):
        compose_config(["experiment=idle"])


def test_an_experiment_may_refer_to_a_key_that_it_inherits(install_package: Install) -> None:
    heir = "defaults: [shapes_curator]\nrounds: ${scales.${scale}.rounds}\n"
    _install_experiment(install_package, "heir", heir)
    assert compose_config(["experiment=heir", "scale=smoke"])["rounds"] == 20


def test_an_idle_key_that_refers_to_an_inherited_one_is_refused(install_package: Install) -> None:
    heir = "defaults: [shapes_curator]\nstrategy: {p: '${delta}'}\n"
    _install_experiment(install_package, "heir", heir)
    with pytest.raises(ConfigError, match=r"strategy\.p=1e-05 of experiment=heir changes"):
        compose_config(["experiment=heir", "scale=smoke"])
