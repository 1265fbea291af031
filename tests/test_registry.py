"""What installed packages add, and what they may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedsink.errors import ConfigError
from fedsink.registry import Registry

Install = Callable[[dict[str, str], str], None]
OWN = {"circle": 1, "square": 2}


def _registry() -> Registry[int]:
    return Registry("shape", "fedsink.shapes", OWN)


def test_without_packages_it_holds_its_own() -> None:
    assert dict(_registry()) == OWN
    assert len(_registry()) == 2
    assert "cube" not in _registry()


def test_a_package_adds_things_that_are_loaded_when_they_are_asked_for(
    install_package: Install,
) -> None:
    install_package(
        {"shapes.py": "cube = 3", "broken.py": "import nothing_of_this_name"},
        "[fedsink.shapes]\ncube = shapes:cube\ncone = broken:cone\n[other.group]\nx = shapes:x\n",
    )
    assert list(_registry()) == ["circle", "square", "cube", "cone"]
    assert len(_registry()) == 4
    assert _registry()["cube"] == 3
    with pytest.raises(
        ConfigError,
        match=r"shape 'cone' \(broken:cone\) cannot be loaded: No module named 'nothing_of_this",
    ):
        _registry()["cone"]
    with pytest.raises(KeyError):
        _registry()["x"]


def test_a_name_of_fedsinks_own_cannot_be_taken(install_package: Install) -> None:
    install_package({"shapes.py": "circle = 9"}, "[fedsink.shapes]\ncircle = shapes:circle\n")
    for use in (
        lambda: _registry()["circle"],
        lambda: _registry()["square"],
        lambda: list(_registry()),
    ):
        with pytest.raises(
            ConfigError, match=r"two of the shape 'circle', one .* shapes:circle: un"
        ):
            use()
