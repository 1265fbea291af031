"""fedsink: image generators learnt from data that stays with its owners.

A run, as the command `fedsink simulate` makes it:

>>> import fedsink
>>> run = fedsink.simulate(mode="central", eps=5)  # doctest: +SKIP
>>> images, labels = run.sample(100)  # doctest: +SKIP

and the parts of one, for a method of one's own (docs/library.md):

>>> import torch
>>> noise = fedsink.Laplace(diameter=2.0, epsilon=6.0)
>>> loss = fedsink.SinkhornLoss.matched_to(noise)
>>> x = torch.rand(20, 4, requires_grad=True)
>>> loss(x, torch.rand(30, 4)).backward()

The first use of a name imports it; `import fedsink` itself is light (types: `__init__.pyi`).
"""

from __future__ import annotations

import os

__version__ = "0.1.0"

_PLACES = {
    "fedsink.api": ("Run", "load", "resume", "simulate"),
    "fedsink.transport": ("SinkhornLoss",),
    "fedsink.privacy": (
        "BatchClip", "Clipped", "CriticClip", "Gaussian", "Laplace", "MatchedCost", "NoiseKey",
        "PrivacyPlan", "RandomizedResponse", "RecordClip", "attack_clip", "epsilon",
    ),
    "fedsink.models": ("Dcgan", "DctMlp", "Generator", "Mlp"),
    "fedsink.strategies.recipes": ("DPSinkhorn", "EntropicLDP", "GSWGAN"),
    "fedsink.federation": ("Federation",),
    "fedsink.clients.guard": ("guard",),
}  # fmt: skip
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = ["__version__", *sorted(_PLACE_OF)]


def _refuse_two_versions() -> None:
    """Refuses fedsink and fedsink-core of two versions in one folder: their files have one name."""
    try:
        beside = os.listdir(os.path.dirname(os.path.dirname(__file__)))
    except OSError:  # in an archive
        return
    parts = [name[:-10].split("-") for name in beside if name.endswith(".dist-info")]
    found = {name: version for name, *version in parts if name in ("fedsink", "fedsink_core")}
    if len(found) == 2 and found["fedsink"] != found["fedsink_core"]:
        whole, core = found["fedsink"][0], found["fedsink_core"][0]
        raise ImportError(
            f"fedsink {whole} and fedsink-core {core} are installed over one another here: "
            "uninstall both, and install one of them."
        )


_refuse_two_versions()


def __getattr__(name: str) -> object:
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported by name, so that import-linter sees no dependency of the version on all of fedsink.
    from importlib import import_module

    with import_module("fedsink.environment").undisturbed():
        value: object = getattr(import_module(_PLACE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | set(__all__))
