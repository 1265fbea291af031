"""The reference pages are made from the code and leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fedsink.commands.hydra_keys import known_keys

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "docs" / "hooks"


@pytest.fixture(scope="module")
def rows(hook: Callable[[str], ModuleType]) -> dict[str, list[str]]:
    """Cells (default, meaning) of the page of keys, by key."""
    pages = hook("configuration_keys")
    lines = f"{pages.keys_page()}\n{pages.experiments_page()}".splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("| `")]
    return {key.strip(" `"): [cell.strip() for cell in rest] for key, *rest in cells}


def test_every_key_of_the_configuration_is_on_the_page(rows: dict[str, list[str]]) -> None:
    groups = {key.partition(".")[0] for key in known_keys() if "." in key}
    wanted = {
        key
        for key in known_keys()
        # A recipe's values are for other groups to refer to; a group's name is what is chosen.
        if not key.startswith(("recipe", "hydra")) and key not in groups
        and not re.fullmatch(r"[a-z]+\.name", key)
    }  # fmt: skip
    tables = {key for key in wanted if any(other.startswith(f"{key}.") for other in wanted)}
    assert len(wanted) > 80
    assert wanted - tables - {"defaults"} <= set(rows)


def test_every_key_says_what_it_means(rows: dict[str, list[str]]) -> None:
    assert [key for key, cells in rows.items() if cells[-1] in ("", "*Rare.*")] == []


def test_a_meaning_is_the_comment_beside_the_key(rows: dict[str, list[str]]) -> None:
    assert rows["seed"] == [
        "`null`",
        "a number: reproducible noise, the same under every engine; null: secret noise",
    ]
    assert rows["strategy.loss"][1].startswith("matched (Theorem 1)")
    assert rows["strategy.tolerance"][1].startswith("*Rare.* of solver=converged")
    assert rows["strategy.optimizer.lr"][0] == "the recipe’s"


def test_there_are_as_many_planted_defects_as_documented() -> None:
    """In steps of fifty, so that no defect more makes a page untrue."""
    page = (ROOT / "docs" / "auditing.md").read_text()
    stated = re.search(r"`make mutants`, over (\d+), and over (\d+) beside privacy", page)
    assert stated is not None
    for number, name in enumerate(("mutants", "others"), start=1):
        planted = (ROOT / "tests" / "mutants" / f"{name}.toml").read_text().count("\n[[mutant]]")
        assert int(stated[number]) == planted // 50 * 50


def test_a_link_to_code_leads_to_the_page_that_the_site_makes_of_it(
    hook: Callable[[str], ModuleType],
) -> None:
    """A checkout has no docs/reference: its pages link to what is there."""
    links = hook("links")
    for code, made in links.MADE.items():
        assert (ROOT / code).is_file()
        name = made.removeprefix("reference/").removesuffix(".md")
        assert re.search(rf'"{name}": {name}_page\(\)', (HOOKS / "reference.py").read_text())
        assert links._in_site(f"../{code}", "docs/index.md", "index.md") == made
        assert links._in_site(f"../../{code}", "docs/tutorials/a.md", "tutorials/a.md") == (
            f"../{made}"
        )
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*/*.md")]
    assert [str(page) for page in pages if "](reference/" in page.read_text()] == []
