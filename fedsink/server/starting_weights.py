"""Weights before round 1, `start=DIR`: of a generator that another run trained.

Where that run's data were private, they are those of this run, and privacy.json states the total of
both (`fedsink.strategies.base.private_start`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsink.errors import ConfigError, FedsinkError, ModelError
from fedsink.models import Generator, load
from fedsink.models.generators import DESCRIPTION, WEIGHTS, sample
from fedsink.privacy.randomness.noise import Stream
from fedsink.server.folder import SUMS, RunFolder, check_sums, note_sums, sha256_of, stored_config
from fedsink.strategies.base.private_start import STARTED, private_entry, with_start
from fedsink.values import Config, leaves, read_json

_FILES = (WEIGHTS, DESCRIPTION, "privacy.json")
_DRAWN = 64  # pictures, of all classes
_ALIKE = 1 / 255  # of the pixel range: a step of eight bits

MEANING = (
    "The weights before round 1 were trained on these data, which whoever trained them calls "
    "public and vouches for: no ε was spent on them. If a record of theirs is private, nothing "
    "here protects it."
)


def statement_of(source: Path) -> dict[str, Any]:
    """Returns the entry `start` of privacy.json for the generator in a folder.

    Guarantees:
        - A generator has an entry where its privacy.json says that its data are public, or has the
          plan that private ones were noised by; any other is refused.
        - privacy.json says so of exactly these weights, by their SHA-256.
        - The entry has the SHA-256 of the weights, and of public data or the plan of private ones.
        - It names the map of a local start, whose band pictures are drawn in.
    """
    private = private_entry(source)
    if not (source / WEIGHTS).is_file() or (private and not (source / SUMS).is_file()):
        raise ModelError(f"start={source} has no {WEIGHTS} or no {SUMS}: its run has not ended.")
    check_sums(source, _FILES)
    digest = sha256_of(source / WEIGHTS)
    if private:
        return {"start": {"generator_sha256": digest, **private}}
    privacy = read_json((source / "privacy.json").read_bytes())
    public = privacy["public"]
    if public.get("generator_sha256") != digest:
        raise ConfigError(
            f"start={source}: {WEIGHTS} is not what its privacy.json says was trained on public "
            "data (public.generator_sha256): restore it from a copy, or train it again."
        )
    map_of_start = {"map": privacy["map"]} if "map" in privacy else {}
    return {"start": {"generator_sha256": digest, **public, **map_of_start, "meaning": MEANING}}


def stated_with(
    privacy: Config, source: Path, start_plan: str, plan: Any, config: Config
) -> dict[str, Any]:
    """Returns the promise of a new run, with its start: the total of both where that is private."""
    entry = statement_of(source)
    if "plan" not in entry["start"]:
        return {**privacy, **entry}
    if privacy["model"] != "central":
        raise ConfigError(
            f"start={source} was trained on private data, and composes in mode=central alone: "
            f"begin mode={config['mode']} with the folder of a run with public=true."
        )
    try:
        before = stored_config(RunFolder(source))
    except FedsinkError:
        raise ConfigError(
            f"start={source} was trained on private data, and no config.yaml says which: name the "
            "folder of the run itself."
        ) from None
    for name in ("data", "clients", *(["partition"] if config["clients"] > 1 else [])):
        was, now = (dict(leaves({name: c.get(name)})) for c in (before, config))
        for key in {**was, **now}:
            if was.get(key) != now.get(key) and key != "data.download":
                raise ConfigError(
                    f"start={source} was trained on private data with {key}={was.get(key)}, and "
                    f"this run has {now.get(key)}: one total is stated for one set of records, "
                    "dealt to the same clients."
                )
    return with_start(privacy, plan, entry["start"], start_plan)


def put_in_place(generator: Generator, source: Path) -> None:
    """Gives a generator the weights of a start, which must be of its architecture."""
    # One that draws the same for every class and latent is refused, since no training repairs it:
    # steps too long for a loss without noise end in saturated pixels, where its gradient is 0.
    statement_of(source)
    try:
        start = load(source)
    except FedsinkError as error:
        raise ModelError(f"start={source}: {error}") from error
    for what, found, needed in (
        ("generator", start.name, generator.name),
        ("shape", list(start.shape), list(generator.shape)),
        ("number of classes", start.classes, generator.classes),
        ("options", start.options, generator.options),
    ):
        if found != needed:
            raise ConfigError(
                f"start={source}: its {what} is {found}, and this run's {needed}. Train a start "
                "with the keys of this run, or choose the generator of the start."
            )
    drawn = sample(start, _DRAWN, None, Stream(b"start", "pictures"))
    if bool((drawn.amax(dim=0) - drawn.amin(dim=0)).max() < _ALIKE):
        raise ModelError(
            f"start={source} draws the same picture for every class and latent: its training "
            "failed, and a run from it would too. Train another one, with a longer "
            "strategy.optimizer.warmup, with a lower strategy.optimizer.lr, or with "
            "strategy.tether=1.8 where the method has one."
        )
    generator.load_state_dict(start.state_dict())


def adopted(folder: Path) -> Path | None:
    """Returns a run's own copy of its start; None where it has none."""
    own = folder / STARTED
    return own if own.is_dir() else None


def adopt(source: Path, folder: Path) -> None:
    """Copies a start into a new run's folder, from which the run is resumed."""
    target = folder / STARTED
    target.mkdir()
    for name in _FILES:
        (target / name).write_bytes((source / name).read_bytes())
    note_sums(target)
