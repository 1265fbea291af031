"""Studies: experiments of several runs, one file for each, and the registry of their names."""

from __future__ import annotations

from fedsink.errors import ConfigError
from fedsink.registry import Registry
from fedsink.simulation.studies.debugging import Debugging
from fedsink.simulation.studies.method_comparison import MethodComparison
from fedsink.simulation.studies.study import Study
from fedsink.values import strictly

STUDIES: Registry[type[Study]] = Registry(
    "study.name", {cls.name: cls for cls in (Debugging, MethodComparison)}
)


def study_of(options: object) -> Study:
    """The study of the group `study` of a configuration.

    Raises:
        ConfigError: there is no study of that name, or an option is unknown or out of range.
    """
    if not isinstance(options, dict):
        raise ConfigError(
            f"study is null or a table with a name, as in experiment=debug_inverted, not "
            f"{options!r}."
        )
    values = {key: value for key, value in options.items() if key != "name"}
    return strictly(STUDIES.find(options.get("name")), values, "study")
