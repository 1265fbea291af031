"""Strategies, generators and other kinds by name: fedsink's, and those of installed packages.

>>> views = Registry("view", {"dct": complex, "pixel": dict})
>>> views.build("dct", {"imag": 1.0})
1j
>>> views.find("pixels")
Traceback (most recent call last):
fedsink.errors.ConfigError: view='pixels' is unknown; choose one of dct, pixel. Did you mean pixel?
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from fedsink.errors import ConfigError, FedsinkError

T = TypeVar("T")


def loaded_on_use(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the `__getattr__` of a package: module → names in it, loaded when they are used."""
    place_of = {name: place for place, names in places.items() for name in names.split()}

    def getattribute(name: str) -> object:
        if name not in place_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{place_of[name]}"), name)

    return getattribute


GONE = {
    "log=csv": "log=csv is gone: metrics.jsonl in the run folder has every figure, so leave it out "
    "(to resume an older run, out of its config.yaml).",
    "data.corrupt": "data.corrupt is gone: examples/debug_inverted.py alters records by a source "
    "of its own.",
    "start=public": "start=public is gone: train the start by a run of its own, fedsink "
    "simulate public=true data.name=glyphs data.nominal_records=20000 eps=inf clients=1 (in the "
    "local mode eps=35) with the other keys of this run, and then start=DIR with the folder that "
    "it prints.",
    **{
        f"public.{key}": f"public.{key} is gone: a start is trained by a run of its own, whose "
        "data, classes and rounds it takes, fedsink simulate public=true data.name=… "
        "data.nominal_records=… eps=inf clients=1 (in the local mode eps=35), and then start=DIR "
        "with the folder that it prints."
        for key in ("data", "root", "classes", "rounds")
    },
    "data.relabel": "data.relabel is gone: data.classes names the classes of public data, in the "
    "order of the run's.",
    "study": "study is gone: examples/debug_inverted.py and examples/compare_methods.py play "
    "several runs, and are yours to change.",
    "experiment=debug_inverted": "experiment=debug_inverted is gone: run "
    "examples/debug_inverted.py.",
    "experiment=debug_inverted_femnist": "experiment=debug_inverted_femnist is gone: "
    "examples/debug_inverted.py does the same on digits.",
    "experiment=compare_methods": "experiment=compare_methods is gone: run "
    "examples/compare_methods.py.",
    "methods": "methods is gone: examples/compare_methods.py runs several methods, and fedsink "
    "compare run=FOLDER compares them.",
}
"""Keys and values of earlier versions, each with the sentence that refuses it."""

_IN_PAPERS = re.compile(
    r"suite=(paper|full)|classifiers=(published|dpimagebench)|accountant=rdp-classic"
    r"|(strategy|strategy\.name|answer)=parameter_gradient"
    r"|strategy\.loss=(unregularised|denoised|noisy_w1|noisy_wgan)"
    r"|experiment=(dp_sinkhorn|gs_wgan_published|half_circle|parameter_gradient|reshetova)_\w+"
)
"""Values that fedsink-papers has, as `key=value`."""


def gone(word: str) -> str | None:
    """Returns the sentence that refuses a key, or a `key=value`, that is elsewhere or no more."""
    if _IN_PAPERS.fullmatch(word) and not entry_points(group="fedsink.metrics", name="paper"):
        return f"{word} is in fedsink-papers, which is not installed: see docs/papers.md."
    return GONE.get(word)


class Registry(MutableMapping[str, T]):
    """All objects of one kind by their configuration name.

    An installed package adds to a kind by an entry point, which is imported when its name is first
    looked up. A package cannot replace a name of fedsink's:

        [project.entry-points."fedsink.generators"]
        unet = "my_package.unet:UNet"

    Args:
        key: the configuration key that holds a name of the kind, "view.name".
        own: fedsink's objects.
        group: entry points of packages, "fedsink.generators"; None: packages cannot add any.
        error: raised for unknown names and options.
    """

    def __init__(
        self,
        key: str,
        own: Mapping[str, T],
        *,
        group: str | None = None,
        error: type[FedsinkError] = ConfigError,
    ) -> None:
        self._key = key
        self._kind = key.partition(".")[0]
        self._own = dict(own)
        self._group = group
        self._error = error

    @property
    def own(self) -> tuple[str, ...]:
        """Names of fedsink's objects."""
        return tuple(self._own)

    def find(self, name: object) -> T:
        """Returns the object with a name; an unknown one is refused."""
        if not isinstance(name, str) or name not in self:
            if sentence := gone(f"{self._key}={name}"):
                raise self._error(sentence)
            raise self._error(
                f"{self._key}={name!r} is unknown; choose one of {', '.join(sorted(self))}."
                f"{did_you_mean(str(name), self)}"
            )
        return self[name]

    def options(
        self,
        name: object,
        options: Mapping[str, Any],
        *,
        positional: int = 0,
        keywords: Collection[str] = (),
    ) -> dict[str, Any]:
        """Completes a user's options by the defaults of the object with a name."""
        # fedsink itself supplies so many `positional` arguments, and those of the names `keywords`.
        signature = inspect.signature(cast("Callable[..., Any]", self.find(name)))
        named = [p for p in signature.parameters.values() if p.kind not in _STARRED]
        defaults = {p.name: p.default for p in named[positional:] if p.name not in keywords}
        if unknown := sorted(set(options) - set(defaults)):
            raise self._error(
                f"the {self._kind} {name} has no option {unknown[0]!r}; it has "
                f"{', '.join(defaults) or 'none'}.{did_you_mean(unknown[0], defaults)}"
            )
        complete = defaults | dict(options)
        if missing := [o for o, value in complete.items() if value is inspect.Parameter.empty]:
            raise self._error(f"the {self._kind} {name} lacks an option: {', '.join(missing)}.")
        return complete

    def build(
        self, name: object, options: Mapping[str, Any], /, *args: object, **keywords: object
    ) -> Any:
        """Calls the object with a name, with fedsink's arguments and a user's `options`."""
        complete = self.options(name, options, positional=len(args), keywords=keywords)
        target: Any = self.find(name)
        try:
            return target(*args, **keywords, **complete)
        except TypeError as error:
            raise self._error(
                f"{self._kind}={name} cannot be built with the options {dict(options)}: {error}."
            ) from error

    def from_dict(self, description: Mapping[str, Any]) -> Any:
        """Builds from a name and options in one mapping, as read from YAML or JSON."""
        if not isinstance(description, Mapping):
            raise self._error(
                f"a {self._kind} is described by a name and options, not by a "
                f"{type(description).__name__}."
            )
        return self.build(
            description.get("name"), {k: v for k, v in description.items() if k != "name"}
        )

    def __getitem__(self, name: str) -> T:
        return self._own[name] if name in self._own else self._load(self._installed[name])

    def __setitem__(self, name: str, value: T) -> None:
        self._own[name] = value

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._installed

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._installed})

    def __len__(self) -> int:
        return len({**self._own, **self._installed})

    @cached_property
    def _installed(self) -> dict[str, list[EntryPoint]]:
        entries: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self._group) if self._group else ():
            entries.setdefault(entry.name, []).append(entry)
        return entries

    def _load(self, entries: list[EntryPoint]) -> T:
        entry, *others = entries
        if others:
            packages = " and ".join(sorted(_package(e) for e in entries))
            raise self._error(
                f"{self._key}={entry.name!r} is stated by several installed packages, {packages}: "
                "uninstall all except one."
            )
        try:
            loaded: T = entry.load()
        except Exception as error:
            raise self._error(
                f"{self._key}={entry.name!r} cannot be imported from {entry.value}, as the "
                f"installed package {_package(entry)} states: {type(error).__name__}: {error}."
            ) from error
        return loaded


def did_you_mean(word: str, words: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns " Did you mean …?" with the known word that is most like `word`, or ""."""
    near = difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)
    return f" Did you mean {near[0]}?" if near else ""


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
