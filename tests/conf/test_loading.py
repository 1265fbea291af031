from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.version import VersionBase
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer

from fedsink.conf.acting import composed_run
from fedsink.conf.loading import as_overrides, composed, groups
from fedsink.errors import ConfigError


def test_a_hydra_application_of_the_callers_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: ${now:ignored}\n")
    OmegaConf.register_new_resolver("now", lambda text: f"my own {text}", replace=True)
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.2"):
        OmegaConf.register_new_resolver("now", lambda text: f"my own {text}", replace=True)
        before, resolvers = dict(Singleton._instances), dict(BaseContainer._resolvers)
        of_mine = GlobalHydra.instance().hydra
        values, _ = composed_run(["mode=ldp"])
        assert values["mode"] == "ldp"
        assert dict(Singleton._instances) == before
        assert dict(BaseContainer._resolvers) == resolvers
        assert GlobalHydra.instance().hydra is of_mine
        assert str(VersionBase.instance().getbase()) == "1.2"
        assert hydra.compose("config").mine == "my own ignored"
    OmegaConf.clear_resolver("now")


def test_nothing_stays_where_nothing_was() -> None:
    Singleton._instances.pop(GlobalHydra, None)
    Singleton._instances.pop(Plugins, None)
    composed(["mode=central"])
    assert GlobalHydra not in Singleton._instances
    assert Plugins not in Singleton._instances


def test_a_failure_leaves_nothing_either() -> None:
    Singleton._instances.pop(GlobalHydra, None)
    with pytest.raises(hydra.errors.HydraException):
        composed(["data=nothing"])
    assert GlobalHydra not in Singleton._instances


@pytest.mark.medium
def test_the_folder_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values, folder = composed_run(["data=mnist", "data.root=a/b", "hydra.run.dir=there"])
    assert folder == tmp_path / "there"
    assert values["data"]["root"] == str(tmp_path / "a" / "b")
    assert "hydra" not in values
    _, named = composed_run(["mode=ldp"])
    assert named.parent.parent == tmp_path / "runs"
    assert named.name.endswith("-ldp")


def test_groups() -> None:
    assert {"mode", "strategy", "data", "engine", "experiment"} <= set(groups())


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
)
NAMES = st.from_regex(r"[a-z_][a-z_0-9]{0,5}", fullmatch=True)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=6
)


def read_back(value: object) -> Any:
    (override,) = as_overrides({"key": value}, ())
    return OverridesParser.create().parse_override(override).value()


@pytest.mark.slow
@given(VALUES)
def test_hydra_reads_the_value_that_was_given(value: object) -> None:
    back = read_back(value)
    assert back == value
    assert repr(back) == repr(value)  # 1, 1.0 and True are equal


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "1e-5", "null", "true", "a b, c", "{a: b}", "[1]", "données/été", "it's", 'a"b',
     "a\\", "a\\'b", "x=y", "~/x", "a#b", "1,2", "line\nline", "(a)", "🙂"],
)  # fmt: skip
def test_text_stays_text(text: str) -> None:
    assert read_back(text) == text
    assert read_back([text, {"a": text}]) == [text, {"a": text}]


def test_other_types_of_the_same_meaning() -> None:
    assert read_back(Path("a b") / "c") == "a b/c"
    assert read_back((1, 2.5)) == [1, 2.5]
    assert read_back(np.float32(0.5)) == 0.5
    assert read_back(np.int64(7)) == 7
    assert read_back(math.inf) == math.inf


def test_a_mapping_under_a_group_holds_its_options_and_elsewhere_it_is_a_table() -> None:
    values = {"strategy": {"rows": 20, "solver.x": "a"}, "observation": {"noise": {"std": 0}}}
    assert as_overrides(values, {"strategy"}) == [
        "strategy.rows=20", "strategy.solver.x='a'", "observation={noise:{std:0}}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a b": 1}, "A key is a name such as eps or strategy.rows, not 'a b'."),
        ({"+eps": 1}, "A key is a name such as eps or strategy.rows, not '+eps'."),
        ({"eps=3 mode": 1}, "not 'eps=3 mode'."),
        ({5: 1}, "A key is a name such as eps or strategy.rows, not 5."),
        ({"public": {"a b": 1}}, "not 'a b'."),
        ({"eps": object()}, "eps is of the type object: give None, a truth value, a number,"),
        ({"eps": {1}}, "eps is of the type set: give"),
        ({"eps": [1j]}, "eps is of the type complex: give"),
        ({"strategy.rows": 1, "strategy": {"rows": 2}}, "strategy.rows was given twice: leave"),
    ],
)
def test_refusals(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        as_overrides(values, {"strategy"})
