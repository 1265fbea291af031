from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsink.pages.evaluation_tables import comparable, comparison_note, published
from fedsink.server.recorded import RecordedRun

from .conftest import Begin


def test_an_entry_names_its_source_and_has_a_figure() -> None:
    for key, entry in published().items():
        assert all((entry.paper, entry.table, entry.variant, entry.data)), key
        known = [value for value in entry.accuracy.values() if value is not None]
        assert known, key
        assert all(40 < value < 100 for value in known), key
        assert (entry.eps is None) == (entry.delta is None), key


@pytest.mark.medium
@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (("data=mnist", "eps=10"), ["cao_mnist_m1", "chen_mnist", "dpdm_mnist_eps10"]),
        (("data=mnist", "eps=1"), ["dpdm_mnist_eps1"]),
        (("data=fashion_mnist", "eps=10"), ["cao_fashion_m1", "dpdm_fashion_eps10"]),
        (("data=mnist", "eps=3"), []),
        (("data=mnist", "eps=10", "delta=1e-6"), []),
        (("data=digits", "eps=10"), []),
        (("data=mnist", "eps=10", "adjacency=replace-one"), []),
        (("data=mnist", "eps=10", "adjacency=client", "clip=batch"), []),
        (("data=mnist", "eps=inf"), []),
    ],
)
def test_papers_stand_beside_runs_that_promise_the_same(
    begin: Begin, overrides: tuple[str, ...], keys: list[str]
) -> None:
    run = RecordedRun(begin("mode=central", *overrides))
    assert comparable(run) == [published()[key] for key in keys]


@pytest.mark.medium
def test_a_reader_is_told_of_another_unit_and_of_the_observation_model(
    begin: Begin, tmp_path: Path
) -> None:
    folder = begin("mode=central", "data=mnist", "adjacency=client", "clip=batch")
    assert "all records of one client at once" in comparison_note(RecordedRun(folder))
    stated = json.loads(folder.privacy.read_text())
    folder.write(folder.privacy, {**stated, "adjacency_name": "add-remove"})
    assert comparison_note(RecordedRun(folder)) == ""
    for observed in (True, False):
        folder.write(folder.path / "evaluation.json", {"observation": observed})
        assert ("observation=false" in comparison_note(RecordedRun(folder))) is observed
