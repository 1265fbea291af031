from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hydra.errors import HydraException

from fedsink import registry
from fedsink.commands.hydra_keys import one_sentence
from fedsink.errors import ConfigError, ModelError
from fedsink.registry import Registry, did_you_mean


@dataclass(frozen=True)
class Square:
    side: float
    colour: str = "red"


@dataclass(frozen=True)
class Point:
    pass


def positional(shape: tuple[int, ...], *, generator: object = None, width: int = 1) -> object:
    return shape, generator, width


SHAPES: Registry[type] = Registry("shape.name", {"square": Square, "point": Point})

Install = Callable[..., None]


@pytest.fixture
def install(install_package: Install) -> Install:
    """Installs a package that states one entry point "octagon" of "fedsink.shapes"."""

    def lay_out(package: str, content: str, name: str = "octagon") -> None:
        entry = f"[fedsink.shapes]\n{name} = {package}:Octagon\n"
        install_package({f"{package}.py": content}, entry, package)

    return lay_out


def shapes() -> Registry[type]:
    return Registry("shape.name", {"square": Square}, group="fedsink.shapes", error=ModelError)


def test_it_builds_from_a_name_and_options():
    assert SHAPES.build("square", {"side": 2.0}) == Square(2.0)
    assert SHAPES.from_dict({"name": "square", "side": 2.0, "colour": "blue"}) == Square(
        2.0, "blue"
    )
    assert SHAPES.from_dict({"name": "point"}) == Point()
    assert SHAPES.find("square") is SHAPES["square"] is Square
    assert sorted(SHAPES) == ["point", "square"]
    assert len(SHAPES) == 2


def test_what_fedsink_gives_is_no_option():
    functions = Registry("layer", {"wide": positional})
    assert functions.build("wide", {"width": 3}, (1,), generator="g") == ((1,), "g", 3)
    for taken in ("shape", "generator"):
        with pytest.raises(ConfigError, match=f"no option '{taken}'; it has width"):
            functions.build("wide", {taken: 1}, (1,), generator="g")


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (
            {"name": "sqare"},
            "shape.name='sqare' is unknown; choose one of point, square. Did you mean square?",
        ),
        ({"name": "ellipse"}, "shape.name='ellipse' is unknown; choose one of point, square."),
        ({}, "shape.name=None is unknown; choose one of point, square."),
        ({"name": [1]}, "shape.name=[1] is unknown; choose one of point, square."),
        (
            {"name": "square", "side": 1, "color": "red"},
            "the shape square has no option 'color'; it has side, colour. Did you mean colour?",
        ),
        ({"name": "point", "side": 1}, "the shape point has no option 'side'; it has none."),
        ({"name": "square"}, "the shape square lacks an option: side."),
    ],
)
def test_a_wrong_description_is_refused_in_a_sentence(description, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        SHAPES.from_dict(description)


@pytest.mark.parametrize(
    "description", [None, True, 3, 0.5, "square", [], ["square"], [["name", "x"]]]
)
def test_what_is_no_table_is_no_description(description):
    message = f"a shape is described by a name and options, not by a {type(description).__name__}."
    with pytest.raises(ConfigError, match=f"^{message}$"):
        SHAPES.from_dict(description)


def test_a_mistyped_value_is_refused_with_the_options():
    lists = Registry("list", {"range": range_of})
    with pytest.raises(ConfigError, match=r"list=range cannot be built with .*'length': 'x'"):
        lists.build("range", {"length": "x"})


def range_of(length: int) -> range:
    return range(length)


def test_an_installed_package_adds_a_name(install):
    install("octagons", "class Octagon:\n    pass\n")
    registry = shapes()
    assert sorted(registry) == ["octagon", "square"]
    assert "octagon" not in SHAPES  # which has no group
    assert registry.find("octagon").__module__ == "octagons"
    assert type(registry.build("octagon", {})) is registry["octagon"]
    with pytest.raises(ModelError, match=r"octagon, square\. Did you mean octagon"):
        registry.find("octogon")


def test_an_installed_package_is_imported_when_it_is_asked_for(install):
    install("broken", "raise RuntimeError('no such machine')\n")
    registry = shapes()
    assert "octagon" in registry
    assert registry.find("square") is Square
    message = (
        r"shape.name='octagon' cannot be imported from broken:Octagon, as the installed package "
        r"broken states: RuntimeError: no such machine\."
    )
    with pytest.raises(ModelError, match=message):
        registry.find("octagon")


def test_a_name_of_fedsinks_own_is_not_replaced(install):
    install("squares", "class Octagon:\n    pass\n", name="square")
    assert shapes().find("square") is Square


def test_two_packages_with_one_name_are_refused(install):
    install("first", "class Octagon:\n    pass\n")
    install("second", "class Octagon:\n    pass\n")
    with pytest.raises(ModelError, match="several installed packages, first and second: uninst"):
        shapes().find("octagon")


def test_without_a_group_no_package_adds_anything(install):
    install("octagons", "class Octagon:\n    pass\n")
    assert sorted(SHAPES) == ["point", "square"]


def test_a_name_can_be_set_and_forgotten() -> None:
    registry = shapes()
    registry["dot"] = Point
    assert registry.find("dot") is Point
    del registry["dot"]
    assert "dot" not in registry


def test_did_you_mean():
    assert did_you_mean("simulat", ["simulate", "sample"]) == " Did you mean simulate?"
    assert did_you_mean("x", ["simulate", "sample"]) == ""


def test_it_imports_nothing_heavy():
    script = "import sys, fedsink.registry\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize(("key", "value"), [("suite", "paper"), ("classifiers", "published")])
def test_what_fedsink_papers_has_is_refused_with_its_name_where_it_is_missing(
    key, value, monkeypatch
):
    monkeypatch.setattr(registry, "entry_points", lambda **_: ())
    said = f"{key}={value} is in fedsink-papers, .*docs/papers.md"
    with pytest.raises(ConfigError, match=said):
        Registry(key, {}, group="fedsink.metrics").find(value)


def test_an_experiment_of_fedsink_papers_is_refused_with_its_name_where_it_is_missing(monkeypatch):
    wanted = "experiment=dp_sinkhorn_mnist_m1"
    assert registry.gone(wanted) is None
    monkeypatch.setattr(registry, "entry_points", lambda **_: ())
    missing = HydraException("Could not find 'experiment/dp_sinkhorn_mnist_m1'")
    assert one_sentence(missing).startswith(f"{wanted} is in fedsink-papers")
