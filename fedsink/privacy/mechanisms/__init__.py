"""The local mechanisms by name: the built-in ones, and those that installed packages add."""

from __future__ import annotations

from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy.mechanisms.gaussian import GaussianMechanism
from fedsink.privacy.mechanisms.laplace import LaplaceMechanism
from fedsink.privacy.mechanisms.local import LocalMechanism
from fedsink.registry import Registry

LOCAL_MECHANISMS: Registry[type[LocalMechanism]] = Registry(
    "mechanism.name",
    {cls.name: cls for cls in (LaplaceMechanism, GaussianMechanism)},
    group="fedsink.local_mechanisms",
)
"""Every local mechanism that can be asked for. At a node the owner's policy names those that may
run, whether they are built in or installed."""


def local_mechanism(name: str) -> type[LocalMechanism]:
    """The local mechanism of this name.

    Raises:
        PrivacyError: There is none.
        ConfigError: An installed package has this name for something else, or cannot be loaded.
    """
    if name not in LOCAL_MECHANISMS:
        raise PrivacyError(
            f"Local mode has the mechanisms {sorted(LOCAL_MECHANISMS)}, not {name!r}."
        )
    mechanism: object = LOCAL_MECHANISMS[name]
    if (
        isinstance(mechanism, type)
        and issubclass(mechanism, LocalMechanism)
        and mechanism.name == name
    ):
        return mechanism
    raise ConfigError(
        f"The local mechanism {name!r} was installed as {mechanism!r}, which is no LocalMechanism "
        "of that name: correct or uninstall the package that adds it."
    )
