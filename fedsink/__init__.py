"""fedsink: image generators learnt from data that stays with its owners.

>>> import fedsink
>>> run = fedsink.simulate(mode="central", eps=5)  # doctest: +SKIP
>>> images, labels = run.sample(100)  # doctest: +SKIP

The first use of a name imports it; `import fedsink` itself is light (types: `__init__.pyi`).
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "load", "resume", "simulate"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported by name, so that import-linter sees no dependency of the version on all of fedsink.
    from importlib import import_module

    with import_module("fedsink.environment").undisturbed():
        value: object = getattr(import_module("fedsink.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({name for name in globals() if name.startswith("__")} | set(__all__))
