"""Weights before round 1, `start=DIR`: of a generator that a run on public data trained.

Weights that private records trained are refused: a start from them would spend their ε again,
unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsink.errors import ConfigError, FedsinkError, ModelError
from fedsink.models import Generator, load
from fedsink.models.generators import DESCRIPTION, WEIGHTS, sample
from fedsink.privacy.randomness.noise import Stream
from fedsink.server.folder import check_sums, note_sums, sha256_of
from fedsink.values import read_json

FOLDER = "start"
"""Name of the sub-folder of a run that holds its start."""

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
        - Only a generator whose privacy.json says that its data are public has an entry; one of
          private data is refused, whatever its ε.
        - privacy.json says so of exactly these weights, by their SHA-256.
        - The entry has the SHA-256 of the weights and of the public data.
        - It names the map of a local start, whose band pictures are drawn in.
    """
    try:
        privacy: Any = read_json((source / "privacy.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        raise ConfigError(
            f"start={source} has no readable privacy.json, so that nothing says what its generator "
            "was trained on: name the folder of a run with public=true."
        ) from None
    public = privacy.get("public") if isinstance(privacy, Mapping) else None
    if not isinstance(public, Mapping):
        epsilon = privacy.get("epsilon") if isinstance(privacy, Mapping) else None
        spent = "nothing protects them" if epsilon is None else f"ε = {epsilon:.4g} was spent"
        raise ConfigError(
            f"start={source} was trained on private data: its privacy.json says that {spent}, and "
            "a start from it would spend that again, unseen. Name the folder of a run with "
            "public=true, or the folder start in a run that began with one."
        )
    if not (source / WEIGHTS).is_file():
        raise ModelError(f"start={source} has no {WEIGHTS}: its run has not ended.")
    check_sums(source, _FILES)
    digest = sha256_of(source / WEIGHTS)
    if public.get("generator_sha256") != digest:
        raise ConfigError(
            f"start={source}: {WEIGHTS} is not what its privacy.json says was trained on public "
            "data (public.generator_sha256): restore it from a copy, or train it again."
        )
    map_of_start = {"map": privacy["map"]} if "map" in privacy else {}
    return {"start": {"generator_sha256": digest, **public, **map_of_start, "meaning": MEANING}}


def put_in_place(generator: Generator, source: Path) -> None:
    """Gives a generator the weights of a start, which must be public and of its architecture."""
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


def adopt(source: Path, folder: Path) -> None:
    """Copies a start into a new run's folder, from which the run is resumed."""
    target = folder / FOLDER
    target.mkdir()
    for name in _FILES:
        (target / name).write_bytes((source / name).read_bytes())
    note_sums(target)
