"""A sweep over keys: what its runs are, and the names of their folders."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from fedsink.conf.loading import opened

LONGEST_NAME = 100
"""Bytes of a folder's name: file systems end at 255, and paths have other parts."""

_PLUGINS = ("hydra/sweeper", "hydra/launcher", "hydra.sweeper.")


def sweep_of(keys: Sequence[str]) -> dict[str, list[str]]:
    """The keys of every run of a sweep, by its folder's name, in the order in which they run.

    Args:
        keys: in Hydra's grammar.

    Returns:
        {} where another sweeper or launcher than Hydra's own was chosen.

    Raises:
        HydraException: a sweep without an end.
    """
    if any(key.lstrip("+").startswith(_PLUGINS) for key in keys):
        return {}
    with opened():
        loader = GlobalHydra.instance().config_loader()
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(keys))
    (runs,) = BasicSweeper.split_arguments(parsed, None)
    swept = [number for number, key in enumerate(parsed) if key.is_sweep_override()]
    names = folder_names([[run[number] for number in swept] for run in runs])
    return dict(zip(names, runs, strict=True))


def folder_names(differing: Sequence[Sequence[str]]) -> list[str]:
    """A folder's name for each run, of the keys that differ between runs.

    Only letters, digits and ``. , = + _ -`` are left as they are. A name that is too long, or would
    be another one's on a file system that knows no capitals, ends with the run's number.

    >>> folder_names([["eps=1", "seed=0"], ["eps=1", "data.root='/a/b'"]])
    ['eps=1,seed=0', 'eps=1,data.root=-a-b']
    """
    names: list[str] = []
    for number, keys in enumerate(differing):
        plain = (re.sub(r"['\"]", "", key.lstrip("+")) for key in keys)
        name = re.sub(r"[^\w.,=+-]", "-", ",".join(plain)).rstrip(".") or str(number)
        taken = {other.casefold() for other in names}
        if len(name.encode()) > LONGEST_NAME or name.casefold() in taken:
            end = f"-{number}"
            cut = name.encode()[: LONGEST_NAME - len(end)].decode(errors="ignore")
            name = cut + end
        names.append(name)
    return names
