from __future__ import annotations

from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.version import VersionBase
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer

from fedsink.conf.loading import composed, composed_run, groups


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
