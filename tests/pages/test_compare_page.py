from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from fedsink.errors import ConfigError
from fedsink.pages import compare_page
from fedsink.pages.compare_page import ADD_UP, NO_LOSSES, NOT_PRIVATE, Comparison
from fedsink.pages.run_groups import Compared

from .reading import Page

pytestmark = pytest.mark.medium


def section(page: bytes, name: str) -> str:
    """The text of one section."""
    body = re.search(rf'<section id="{name}">.*?</section>', page.decode(), re.S)
    assert body is not None
    return Page(body.group()).seen


def of(runs: Path, *names: str) -> Comparison:
    return Comparison(Compared.of([runs / name for name in names]))


@pytest.fixture(scope="module")
def page(runs: Path) -> bytes:
    return of(runs, "a0", "a1", "a2", "clients", "local", "low", "stopped").html()


def test_the_page_answers_what_a_reader_asks(page: bytes) -> None:
    for name, expected in {
        "overview": ("3 runs, seeds 0, 1, 2", "85.0 ± 5.0", "70.0", "central, per client"),
        "promises": (
            "zero-out/add-remove of all records of one client", "replace-one", ADD_UP,
            "One labelled record of one client, against everybody", "That a client takes part",
        ),
        "accuracy": (
            "evaluation.json", "3 of 3", "0 of 1", "80.0 ± 5.0", "0.2500", NOT_PRIVATE,
            "fedsink evaluate run=clients fedsink evaluate run=low",
        ),
        "curves": (NO_LOSSES, "One chart for each kind of promise", "Signal to noise"),
        "differences": ("adjacency", "add-remove", "replace-one", "strategy.name"),
        "runs": ("unfinished, round 2", "finished", "a0", "stopped"),
    }.items():  # fmt: skip
        for words in expected:
            assert words in section(page, name), (name, words)
    assert "Not finished: stopped. Their figures will change." in Page(page.decode()).seen


def test_the_page_runs_nothing_and_loads_nothing(page: bytes) -> None:
    read = Page(page.decode())
    assert read.forbidden == []
    assert len(read.addresses) > 10
    inside = [address for address in read.addresses if address.startswith("#")]
    assert {address[1:] for address in inside} <= set(read.ids)
    assert all(a.startswith("data:image/") for a in read.addresses if a not in inside)
    assert b"default-src &#39;none&#39;; " in page
    assert len(page) < 3_000_000


def test_every_picture_says_in_words_what_it_shows(page: bytes) -> None:
    images = Page(page.decode()).images
    assert len(images) == 4 + 3 + 4 + 1  # last grids, ε by promise, losses, signal to noise
    assert all(len(str(image["alt"])) > 20 for image in images)


def test_the_headings_are_in_order(page: bytes) -> None:
    levels = [level for level, _ in Page(page.decode()).headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_no_place_on_this_machine_is_in_the_page(page: bytes, runs: Path) -> None:
    assert str(runs).encode() not in page
    assert str(Path.home()).encode() not in page
    assert b"/tmp" not in page


def test_names_are_escaped(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a0", tmp_path / "<script>alert(1)</script> b".replace("/", "-"))
    shutil.copytree(runs / "low", tmp_path / "low")
    html = Comparison(Compared.of(sorted(tmp_path.iterdir()))).html()
    assert b"<script" not in html
    assert b"&lt;script&gt;" in html


def test_comparable_epsilons_share_axes_without_a_warning(runs: Path) -> None:
    read = Page(of(runs, "a0", "low").html().decode())
    assert "different promises" not in read.seen
    alts = [image["alt"] for image in read.images if "ε so far" in str(image["alt"])]
    assert len(alts) == 1
    assert "eps=10" in str(alts[0])
    assert "eps=1," in str(alts[0])


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


def test_runs_of_one_configuration_differ_in_their_seed(runs: Path) -> None:
    html = of(runs, "a0", "a1").html()
    assert "Nothing but the seed." in section(html, "differences")


def test_the_table_for_a_terminal_has_the_same_figures(runs: Path) -> None:
    text = of(runs, "a0", "a1", "a2", "local", "stopped").text()
    assert "85.0 ± 5.0" in text
    assert "These ε are 2 different promises" in " ".join(text.split())
    assert "Not finished: stopped." in text
    assert max(map(len, text.split("\n\n", 1)[1].splitlines())) <= 96


def test_many_configurations_stay_below_the_limits(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MOST_GRIDS", "_MOST_LINES", "_MOST_CHARTS"):
        monkeypatch.setattr(compare_page, name, 1)
    html = of(runs, "a0", "low", "local").html()
    seen = Page(html.decode()).seen
    assert "The first 1 of 2 are shown." in seen
    assert "2 further configurations are left out here." in seen
    assert "The losses of 2 further kinds are left out" in seen


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
