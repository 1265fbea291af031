from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedsink.conf.acting import compose_config
from fedsink.errors import CheckpointError, ConfigError
from fedsink.results.pages import compare_page
from fedsink.results.pages.compare_page import (
    ADD_UP,
    NO_LOSSES,
    NOT_PRIVATE,
    Comparison,
    Group,
    differing,
    mean_and_sd,
    run_settings,
    status,
)
from fedsink.server.folder import RecordedRun, RunFolder, store_config, stored_config

from .reading import Page
from .small_runs import evaluated


def section(page: bytes, name: str) -> str:
    """The text of one section."""
    body = re.search(rf'<section id="{name}">.*?</section>', page.decode(), re.S)
    assert body is not None
    return Page(body.group()).seen


def of(runs: Path, *names: str) -> Comparison:
    return Comparison.of([runs / name for name in names])


@pytest.fixture(scope="module")
def page(runs: Path) -> bytes:
    return of(runs, "a0", "a1", "a2", "clients", "local", "low", "stopped").html()


@pytest.mark.medium
def test_the_page_answers_what_a_reader_asks(page: bytes) -> None:
    for name, expected in {
        "overview": ("3 runs, seeds 0, 1, 2", "85.0 ± 5.0", "70.0", "central, per client"),
        "promises": (
            "zero-out/add-remove of all records of one client", "replace-one", ADD_UP,
        ),
        "accuracy": (
            "evaluation.json", "3 of 3", "0 of 1", "80.0 ± 5.0", "0.2500", NOT_PRIVATE,
            "fedsink evaluate run=clients fedsink evaluate run=low",
        ),
        "curves": (NO_LOSSES, "One chart for each kind of promise"),
        "differences": ("adjacency", "add-remove", "replace-one", "strategy.name"),
        "runs": ("unfinished, round 2", "finished", "a0", "stopped"),
    }.items():  # fmt: skip
        for words in expected:
            assert words in section(page, name), (name, words)
    assert "Not finished: stopped. Their figures will change." in Page(page.decode()).seen


@pytest.mark.medium
def test_the_page_runs_nothing_and_loads_nothing(page: bytes) -> None:
    read = Page(page.decode())
    assert read.forbidden == []
    assert len(read.addresses) > 10
    inside = [address for address in read.addresses if address.startswith("#")]
    assert {address[1:] for address in inside} <= set(read.ids)
    assert all(a.startswith("data:image/") for a in read.addresses if a not in inside)
    assert b"default-src &#39;none&#39;; " in page
    assert len(page) < 3_000_000


@pytest.mark.medium
def test_every_picture_says_in_words_what_it_shows(page: bytes) -> None:
    images = Page(page.decode()).images
    assert len(images) == 4 + 3 + 4  # last grids, ε by promise, losses
    assert all(len(str(image["alt"])) > 20 for image in images)


@pytest.mark.medium
def test_the_headings_are_in_order(page: bytes) -> None:
    levels = [level for level, _ in Page(page.decode()).headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.medium
def test_no_place_on_this_machine_is_in_the_page(page: bytes, runs: Path) -> None:
    assert str(runs).encode() not in page
    assert str(Path.home()).encode() not in page
    assert b"/tmp" not in page


@pytest.mark.medium
def test_names_are_escaped(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a0", tmp_path / "<script>alert(1)</script> b".replace("/", "-"))
    shutil.copytree(runs / "low", tmp_path / "low")
    html = Comparison.of(sorted(tmp_path.iterdir())).html()
    assert b"<script" not in html
    assert b"&lt;script&gt;" in html


@pytest.mark.medium
def test_comparable_epsilons_share_axes_without_a_warning(runs: Path) -> None:
    read = Page(of(runs, "a0", "low").html().decode())
    assert "different promises" not in read.seen
    alts = [image["alt"] for image in read.images if "ε so far" in str(image["alt"])]
    assert len(alts) == 1
    assert "eps=10" in str(alts[0])
    assert "eps=1," in str(alts[0])


@pytest.mark.medium
def test_epsilons_at_another_delta_are_told_apart(runs: Path, tmp_path: Path) -> None:
    for name in ("a0", "low"):
        shutil.copytree(runs / name, tmp_path / name)
    privacy = tmp_path / "low" / "privacy.json"
    privacy.write_text(json.dumps({**json.loads(privacy.read_text()), "delta": 1e-6}))
    other = of(tmp_path, "a0", "low")
    assert "hold up to different δ" in " ".join(other.text().split())
    page = other.html()
    alts = [image["alt"] for image in Page(page.decode()).images if "ε so far" in str(image["alt"])]
    assert len(alts) == 2  # each on separate axes
    for place in ("overview", "runs", "pictures"):
        assert "1e-5" in section(page, place), place
        assert "1e-6" in section(page, place), place


@pytest.mark.medium
def test_runs_of_one_configuration_differ_in_their_seed(runs: Path) -> None:
    html = of(runs, "a0", "a1").html()
    assert "Nothing but the seed." in section(html, "differences")


@pytest.mark.medium
def test_the_table_for_a_terminal_has_the_same_figures(runs: Path) -> None:
    text = of(runs, "a0", "a1", "a2", "local", "stopped").text()
    assert "85.0 ± 5.0" in text
    assert "These ε are 2 different promises" in " ".join(text.split())
    assert "Not finished: stopped." in text
    assert max(map(len, text.split("\n\n", 1)[1].splitlines())) <= 96


@pytest.mark.medium
def test_many_configurations_stay_below_the_limits(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_page, "_MOST", 1)
    html = of(runs, "a0", "low", "local").html()
    seen = Page(html.decode()).seen
    assert "The first 1 of 2 are shown." in seen
    assert "2 further configurations are left out here." in seen
    assert "The losses of 2 further kinds are left out" in seen


@pytest.mark.medium
def test_a_page_replaces_a_page_and_nothing_else(runs: Path, tmp_path: Path) -> None:
    compared = of(runs, "a0", "low")
    path = tmp_path / "new" / "compare.html"
    compared.write(path)
    of(runs, "a0", "local").write(path)
    assert b"mode=ldp" in path.read_bytes()
    path.write_text("<html>an article</html>")
    with pytest.raises(
        ConfigError, match=r"compare\.html exists and is no page of fedsink compare"
    ):
        compared.write(path)
    assert path.read_text() == "<html>an article</html>"
    with pytest.raises(ConfigError, match="give another out=FILE"):
        compared.write(tmp_path)


@pytest.mark.medium
def test_runs_that_differ_in_their_seed_alone_are_a_group(runs: Path) -> None:
    compared = of(runs, "a0", "low", "a1", "a2")
    assert [list(group.runs) for group in compared.groups] == [["a0", "a1", "a2"], ["low"]]
    assert compared.groups[0].seeds == "3 runs, seeds 0, 1, 2"
    assert compared.groups[1].seeds == "1 run, seed 0"
    assert of(runs, "a0", "secret").groups[0].seeds == "2 runs, seeds 0, secret"
    assert of(runs, "low", "secret").groups[1].seeds == "1 run, secret noise"


@pytest.mark.medium
def test_groups_are_titled_by_their_method_and_what_tells_them_apart(runs: Path) -> None:
    titles = [group.title for group in of(runs, "a0", "low", "local").groups]
    assert titles == [
        "mode=central, eps=10, engine.threads=1",
        "mode=central, eps=1, engine.threads=2",
        "mode=ldp",
    ]
    settings = [group.settings for group in of(runs, "a0", "low").groups]
    assert differing(settings) == ["eps", "engine.threads"]


def recorded(path: Path, delta: float, losses: list[float]) -> RecordedRun:
    folder = RunFolder(path)
    folder.create()
    stated = {"model": "central", "unit": "record", "adjacency": "add-remove", "delta": delta}
    folder.write(folder.privacy, stated)
    for round, loss in enumerate(losses, start=1):
        folder.log({"round": round, "loss": loss})
    return RecordedRun(folder)


def test_a_promise_has_its_delta(tmp_path: Path) -> None:
    deltas = 1e-5, 1e-5, 1e-6
    runs = [recorded(tmp_path / str(n), delta, []) for n, delta in enumerate(deltas)]
    first, same, other = (Group("", {"a": run}, {}).promise for run in runs)
    assert first == same != other
    assert (first[-8:], other[-8:]) == ("δ = 1e-5", "δ = 1e-6")


@pytest.mark.medium
def test_epsilons_are_together_only_where_they_promise_the_same(runs: Path) -> None:
    found = of(runs, "a0", "low", "clients", "local").by_promise()
    grouped = [[next(iter(group.runs)) for group in groups] for groups in found]
    assert grouped == [["a0", "low"], ["clients"], ["local"]]
    assert [groups[0].promise.split(",")[:2] for groups in found] == [
        ["central model", " per record"], ["central model", " per client"],
        ["local model", " per record"],
    ]  # fmt: skip


@pytest.mark.medium
def test_losses_are_together_only_where_they_are_the_same_quantity(
    runs: Path, tmp_path: Path
) -> None:
    from fedsink.simulation.simulated_run import start

    small = ["engine=local", "clients=2", "rounds=3", "report.pictures=0", "seed=0", "eps=10"]
    other = start(compose_config([*small, "strategy.optimizer.lr=1e-2"]), tmp_path / "other")
    compared = Comparison.of([runs / "a0", runs / "low", other, runs / "local"])
    grouped = [[next(iter(group.runs)) for group in groups] for groups in compared.by_loss()]
    assert [[Path(name).name for name in names] for names in grouped] == [
        ["a0", "other"], ["low"], ["local"],
    ]  # fmt: skip


def test_losses_of_another_objective_are_apart(tmp_path: Path) -> None:
    runs = {}
    for name, lam, lr in (("a", 1.0, 0.1), ("b", 1.0, 0.2), ("c", 2.0, 0.1)):
        runs[name] = recorded(tmp_path / name, 1e-5, [1.0])
        strategy = {"name": "x", "lam": lam, "optimizer": {"lr": lr}}
        store_config(runs[name].folder, {"mode": "central", "seed": 0, "strategy": strategy})
    grouped = [[list(group.runs) for group in groups] for groups in Comparison(runs).by_loss()]
    assert grouped == [[["a"], ["b"]], [["c"]]]


def test_a_curve_is_the_mean_of_the_runs_that_have_the_round(tmp_path: Path) -> None:
    losses = {"a": [1.0, 4.0, 8.0], "b": [2.0, 5.0]}
    runs = {name: recorded(tmp_path / name, 1e-5, values) for name, values in losses.items()}
    assert Group("", runs, {}).mean("loss") == ([1.0, 2.0, 3.0], [1.5, 4.5, 8.0])
    assert Group("", runs, {}).mean("unheard of") == ([], [])


@pytest.mark.medium
def test_figures_of_an_evaluation_are_those_of_the_runs_that_have_it(
    runs: Path, tmp_path: Path
) -> None:
    for name in ("a0", "a1", "a2"):
        shutil.copytree(runs / name, tmp_path / name)
    (tmp_path / "a1" / "evaluation.json").unlink()
    evaluated(tmp_path / "a2", 0.8)
    (group,) = of(tmp_path, "a0", "a1", "a2").groups
    assert group.measured("evaluation", "accuracy", "cnn") == [0.9, 0.8]
    assert group.measured("evaluation-paper", "accuracy", "cnn") == []
    assert group.measured("evaluation", "accuracy") == []


def test_mean_and_sample_standard_deviation() -> None:
    assert mean_and_sd([]) == "–"
    assert mean_and_sd([0.5], 100) == "50.0"
    assert mean_and_sd([0.4, 0.5, 0.6], 100) == "50.0 ± 10.0"


@pytest.mark.medium
def test_a_sweep_stands_for_its_runs(runs: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for number, name in (("2", "low"), ("10", "a0")):
        shutil.copytree(runs / name, sweep / number)
    (sweep / "multirun.yaml").touch()
    assert list(Comparison.of([sweep]).runs) == ["2", "10"]


@pytest.mark.medium
def test_how_far_a_run_is(runs: Path, tmp_path: Path) -> None:
    compared = of(runs, "a0", "stopped")
    assert [status(run) for run in compared.runs.values()] == ["finished", "unfinished, round 2"]
    assert compared.warnings() == ["Not finished: stopped. Their figures will change."]
    shutil.copytree(runs / "stopped", tmp_path / "failed")
    (tmp_path / "failed" / "failed.json").write_text('{"message": "Lost.", "exit_code": 1}')
    failed = Comparison.of([runs / "a0", tmp_path / "failed"])
    assert status(list(failed.runs.values())[1]) == "failed after round 2"


@pytest.mark.medium
def test_runs_of_different_data_and_repetitions_are_warned_of(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a0", tmp_path / "again")
    again = Comparison.of([runs / "a0", tmp_path / "again"])
    assert again.warnings() == [
        "mode=central has several runs of seed 0: they are repetitions, and no independent "
        "evidence."
    ]
    folder = RunFolder(tmp_path / "again")
    config = stored_config(folder)
    store_config(folder, {**config, "data": {**config["data"], "root": "/secret/place"}})
    assert Comparison.of([runs / "a1", tmp_path / "again"]).warnings() == [
        "The runs read their data from different folders: whether these hold the same records is "
        "not recorded."
    ]
    store_config(folder, {**config, "data": {**config["data"], "name": "mnist"}})
    (warning,) = Comparison.of([runs / "a1", tmp_path / "again"]).warnings()
    assert warning.startswith("These runs are of different data (digits, mnist; data.name differ)")


@pytest.mark.medium
def test_what_cannot_be_compared_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a0 is named twice: name each run once"):
        of(runs, "a0", "a1", "../" + runs.name + "/a0")
    with pytest.raises(ConfigError, match=r"needs two runs or more, not only .*a0: name others as"):
        of(runs, "a0")
    with pytest.raises(CheckpointError, match=r"nowhere is no folder: name one that holds a run"):
        of(runs, "a0", "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty holds no fedsink run \(no config\.yaml, nor"):
        of(tmp_path, "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("logging: true\n")
    with pytest.raises(CheckpointError, match=r"config\.yaml is not a run's configuration: name a"):
        Comparison.of([runs / "a0", tmp_path / "other"])
    with pytest.raises(ConfigError, match="needs two runs or more, not no run that has begun"):
        Comparison.of([])


def settings_of(*overrides: str) -> dict[str, Any]:
    return run_settings(compose_config(list(overrides)))


@pytest.mark.medium
@pytest.mark.quick("*seed*")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((), ("seed=3",)),
        ((), ("eps=10",)),  # as the recipe has it
        ((), ("rounds=3000",)),
        (("sigma=2",), ("sigma=2", "rounds=3000")),
        (("mode=ldp",), ("mode=ldp", "eps=35", "rounds=800")),
        (("mode=ldp", "sigma=2"), ("mode=ldp", "sigma=2", "rounds=800")),
        (("data=mnist", "data.root=/a"), ("data=mnist", "data.root=/b")),
        (("policy=/a/policy.toml",), ()),
    ],
    ids=str,
)
def test_what_makes_a_run_its_own_is_no_difference(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    assert settings_of(*first) == settings_of(*second)


@pytest.mark.medium
@pytest.mark.quick("*rate=0.4*")
@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (("eps=3",), ["eps"]),
        (("sigma=2",), ["eps", "sigma"]),
        (("eps=10", "sigma=2"), ["sigma", "rounds"]),  # which follow from one another
        (("rate=0.4", "strategy.rows=6"), ["rate", "strategy.rows"]),
        (("generator.hidden=[8]",), ["generator.hidden"]),
    ],
    ids=str,
)
def test_keys_that_differ_are_named_those_of_no_group_first(
    overrides: tuple[str, ...], keys: list[str]
) -> None:
    assert sorted(differing([settings_of(), settings_of(*overrides)])) == sorted(keys)
    dotted = ["." in key for key in differing([settings_of(), settings_of(*overrides)])]
    assert dotted == sorted(dotted)


@pytest.mark.medium
def test_a_key_that_another_method_does_not_have_differs() -> None:
    keys = differing([settings_of(), settings_of("strategy=gs_wgan")])
    assert {"strategy.name", "strategy.lam", "strategy.critics"} <= set(keys)
    assert not [key for key in keys if key.startswith("recipe")]
