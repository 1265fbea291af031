"""Federated EMNIST and altered clients in whole runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsink.data.partition import ByUser
from fedsink.data.sources import forget
from fedsink.errors import ConfigError, DataError
from fedsink.server.finished import open_run
from fedsink.simulation.simulated_run import start

from ..support.writers import some, write_hdf5, write_leaf
from .conftest import Compose, Configure, weights

WORDS = {"f0000_14": "01AaBb", "f0001_41": "12zZ", "f0002_00": "0123", "f0003_12": "9yx"}
SMALL = ("seed=0", "rounds=2", "partition=by_user")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    forget()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four writers in LEAF's form."""
    pictures = some(WORDS)
    write_leaf(tmp_path / "leaf", "train", pictures)
    write_leaf(tmp_path / "leaf", "test", some(WORDS, seed=1))
    return tmp_path / "leaf"


@pytest.mark.medium
@pytest.mark.quick("*femnist_digits")
@pytest.mark.parametrize("choice", ["femnist", "femnist_digits", "femnist_62"])
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_a_run_has_a_client_for_each_writer(
    composed: Compose, root: Path, tmp_path: Path, choice: str, mode: str
) -> None:
    config = composed(f"data={choice}", f"data.root={root}", f"mode={mode}", "clients=4", *SMALL)
    folder = start(config, tmp_path / "run")
    partition = json.loads((folder / "partition.json").read_text())
    sizes = sorted(client["records"] for client in partition["clients"].values())
    assert sizes == ([1, 2, 2, 4] if choice == "femnist_digits" else [3, 4, 4, 6])
    # Names such as "y" and "N" are read back from YAML as they were written.
    assert list(open_run(str(folder)).data.classes) == config["data"]["classes"]


@pytest.mark.slow
def test_both_forms_of_a_file_give_the_same_generator(
    composed: Compose, root: Path, tmp_path: Path
) -> None:
    write_hdf5(tmp_path / "h5" / "fed_emnist_train.h5", some(WORDS))
    runs = [
        start(
            composed("data=femnist", f"data.name={name}", f"data.root={where}", *SMALL),
            tmp_path / name,
        )
        for name, where in (("femnist", root), ("femnist_tff", tmp_path / "h5"))
    ]
    assert weights(runs[0]) == weights(runs[1])


@pytest.mark.slow
def test_writers_are_dealt_whole_to_silos_and_a_list_selects_them(
    composed: Compose, configured: Configure, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "users.csv").write_text("f0000_14,True\nf0001_41,False\nf0003_12,True\n")
    chosen = ("data=femnist", f"data.root={root}", f"data.clients_file={tmp_path / 'users.csv'}")
    assert configured(*chosen, *SMALL).node.partition == ByUser()
    partition = json.loads(
        (start(composed(*chosen, *SMALL), tmp_path / "run") / "partition.json").read_text()
    )
    assert sorted(client["records"] for client in partition["clients"].values()) == [3, 6]
    with pytest.raises(DataError, match="3 clients cannot share 2 users; use at most 2 clients"):
        start(composed(*chosen, *SMALL, "clients=3"), tmp_path / "more")
    assert not (tmp_path / "more").exists()


@pytest.mark.medium
def test_by_user_needs_a_source_that_tells_users_apart(composed: Compose, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by_user deals whole users, and this source tells none"):
        start(composed(*SMALL), tmp_path / "run")
    assert not (tmp_path / "run").exists()
