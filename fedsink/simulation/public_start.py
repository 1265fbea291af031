"""Training on public data before round 1: `start=public` and `start=DIR`.

`start=public` is a run of its own in the folder `start` of the run: the same method, generator and
loss on `public.data`, by one client in this process. The central mode clips and noises nothing
there. The local mode adds the little noise of ε = 35, or of the run's ε where that is larger,
because its loss is matched to a noise.
Nothing is spent: the data are public. `start=DIR` takes the start of another run.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fedsink.conf.acting import compose_config
from fedsink.conf.loading import as_overrides, choices
from fedsink.configuration import PublicData
from fedsink.data.sources import load
from fedsink.data.sources.inventory import Inventory
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, FedsinkError
from fedsink.server.folder import RunFolder, command_for, stored_config
from fedsink.server.loop import InterruptedRunError
from fedsink.server.running import ServerSettings, build_generator
from fedsink.server.starting_weights import FOLDER, adopt, statement_of
from fedsink.simulation.run_settings import RunSettings
from fedsink.values import Config, checks, read_json, strictly

_LEAST_EPS = 35.0  # of a local start: strokes are learnt there, and hardly any of the noise
_OF_ONE_CLIENT = {"quorum": None, "turns": None, "published": False, "row_sigma": None}
_MOST_SHARED = 0.01  # of the clients' records: blank pictures are alike everywhere
_READ_AT_ONCE = 1000  # records, which bounds the memory
_DRAWN = ("glyphs", "shapes")  # these draw the classes that they are asked for


@dataclass(frozen=True)
class SingleRuns:
    """The functions of `fedsink.simulation.simulated_run` by which a run plays its public start.

    Attributes:
        check: refuses a configuration that cannot run in a folder, and returns its settings.
        start: runs a configuration in a new folder.
        resume: continues the run in a folder, if it has not finished.
    """

    check: Callable[[Config, Path], RunSettings]
    start: Callable[[dict[str, Any], Path], Path]
    resume: Callable[[Path], Path]


def check(config: Config, settings: ServerSettings, runs: SingleRuns) -> None:
    """Refuses a start that cannot be made; writes nothing.

    Raises:
        FedsinkError: `public.*` is wrong, or the start in DIR is private or does not fit.
    """
    start = config.get("start")
    if start == "public":
        folder = settings.folder / FOLDER
        try:
            values = public_run(config)
            runs.check(values, folder)
            _refuse_private(_rows(values["data"]), config["data"])
        except FedsinkError as error:
            said = str(error).replace("data.root", "public.root")
            raise ConfigError(
                f"start=public, public.data={config['public']['data']}: {said}"
            ) from error
    elif start is not None:
        source = Path(str(start))
        statement_of(source)
        build_generator(replace(settings, start=source))
        _refuse_private_start(source, config["data"])


def begin(
    config: Config, settings: ServerSettings, folder: RunFolder, runs: SingleRuns
) -> ServerSettings:
    """Makes the start, or continues with it, and says in privacy.json what it is.

    Returns:
        The settings with the place of the weights before round 1.

    Raises:
        InterruptedRunError: Ctrl-C; resuming the run continues with its start.
    """
    start = config.get("start")
    if start is None:
        return settings
    place = folder.path / FOLDER
    if start != "public":
        if not RunFolder(place).privacy.is_file():
            adopt(Path(str(start)), folder.path, build_generator(settings))
    else:
        try:
            if RunFolder(place).config.is_file():
                runs.resume(place)
            else:
                shutil.rmtree(place, ignore_errors=True)  # a kill came before its config.yaml
                runs.start(public_run(config), place)
        except InterruptedRunError as error:
            command = command_for("simulate", "resume", folder.path)
            raise InterruptedRunError(f"In its public start: {error.stopped}", command) from None
    stated = read_json(folder.privacy.read_bytes())
    folder.write(folder.privacy, stated | statement_of(place))
    return replace(settings, start=place)


def public_run(config: Config) -> dict[str, Any]:
    """Returns the configuration of the run that trains the start of another one.

    Raises:
        FedsinkError: a value of `public` is wrong, or the public data cannot be read.
    """
    public = strictly(PublicData, config["public"], "public")
    strategy = dict(config["strategy"])
    strategy |= {key: value for key, value in _OF_ONE_CLIENT.items() if key in strategy}
    noise = {"backend": "fast", "share": "local", "masked": False, "draw": "auto"}
    plain = _composed(public, config["data"])
    return {
        **config,
        "eps": math.inf if config["mode"] == "central" else max(config["eps"] or 0.0, _LEAST_EPS),
        "sigma": None,
        "rounds": public.rounds or config["rounds"] or config["recipe"]["rounds"],
        "clients": 1,
        "data": _data(public, plain["data"], config["data"]),
        "strategy": strategy,
        "noise": {**config["noise"], **noise, "tolerate_dropouts": 0, "dropouts": 0.0},
        "partition": plain["partition"],
        "engine": {**plain["engine"], "device": config["engine"]["device"]},
        "report": {**config["report"], "pictures": 0, "html": False},
        **dict.fromkeys(("capacity", "log", "paper", "policy", "run", "scale", "scales", "start")),
        "shuffler": "none",
    }


def _composed(public: PublicData, run: Config) -> dict[str, Any]:
    """Returns the configuration of the public data in this process, everything else by default."""
    name, root = checks.choice("public.data", public.data, *choices("data")), public.root
    keys: dict[str, Any] = {"engine": "local", "data": name}
    if root is not None:
        keys["data.root"] = root
    if name == "image_folder":
        keys |= {"data.classes": _folders(root), "data.nominal_records": 1}
    if len(run["shape"]) == 3:
        keys["data.shape"] = list(run["shape"])
    try:
        return compose_config(as_overrides(keys, ()))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(" ".join(str(error).split())) from error


def _data(public: PublicData, source: Config, run: Config) -> dict[str, Any]:
    """Returns the keys `data` of the public run: its source under the labels of the run."""
    taken, classes = public.classes, source["classes"]
    if taken is None and set(run["classes"]) <= set(classes):
        taken = tuple(run["classes"])
    if taken is not None and public.data in _DRAWN:
        classes = list(taken)
    relabel = {"classes": classes, "taken": None if taken is None else list(taken)}
    data = {**source, "classes": run["classes"], "relabel": relabel}
    return {**data, "nominal_records": len(load(DataSpec.from_config(data)))}


def _refuse_private_start(source: Path, private: Config) -> None:
    """Refuses a start that records of the clients trained, if its data are still at hand."""
    try:
        public = _rows(stored_config(RunFolder(source))["data"])
    except (FedsinkError, KeyError, OSError):
        return
    _refuse_private(public, private)


def _refuse_private(public: set[bytes], private: Config) -> None:
    """Refuses public records, by their hashes, that are records of the clients, bit by bit."""
    held = _rows(private)
    found = len(public & held)
    if found > _MOST_SHARED * len(held):
        raise ConfigError(
            f"{found} of the public records are records of the clients, bit by bit: what clients "
            "hold is not public. Name other data."
        )


def _rows(values: Config) -> set[bytes]:
    """Returns the hashes of the records that a configuration's table `data` names."""
    records = load(DataSpec.from_config(values))
    return {
        hashlib.blake2b(row, digest_size=16).digest()
        for places in torch.arange(len(records)).split(_READ_AT_ONCE)
        for row in records.take(places)[0].flatten(1).numpy()
    }


def line(stated: Config) -> str | None:
    """Returns a line for the person who starts a run on public data; None for another run."""
    if not stated:
        return None
    public = stated["public"]
    return f"Public start: trains on {public['records']:,} records of {public['data']}, at no ε."


def _folders(root: str | None) -> list[str]:
    """Returns the names of the classes in a folder of public pictures."""
    train = Path(str(root)) / "train"
    if root is None or not train.is_dir():
        raise ConfigError(
            f"public.root={root} must name a folder of pictures, DIR/train/CLASS/*.png."
        )
    places, own = [path for path in train.iterdir() if path.is_dir()], Inventory(train)
    return sorted(path.name for path in places if not own.is_hidden(path))


def entry(spec: DataSpec) -> dict[str, Any]:
    """Returns the entry `public` of privacy.json for a run on public data."""
    records = load(spec)
    taken = None if spec.relabel is None else spec.relabel.taken
    return {
        "public": {
            "data": spec.name,
            "records": len(records),
            "classes": None if taken is None else list(taken),
            "data_sha256": records.digest(),
        }
    }
