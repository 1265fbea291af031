"""docs/policy.md: its example is a policy, and its table says which keys are required."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsink.clients.answers.registry import ANSWERS
from fedsink.clients.owner.ledger.charge import Budget
from fedsink.clients.owner.policy_file import WORDS, read_policy
from fedsink.errors import ConfigError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policy.md").read_text()
LEAST: dict[str, Any] = tomllib.loads(PAGE.partition("```toml\n")[2].partition("```")[0])


def written(values: dict[str, Any]) -> str:
    """TOML of a policy."""
    text = ""
    for name, table in values.items():
        for where, keys in table.items() if name == "budget" else [("", table)]:
            text += f"[{name}{f'.{where}' if where else ''}]\n"
            text += "".join(f"{key} = {value!r}\n" for key, value in keys.items())
    return text.replace("'", '"')


def without(place: str, key: str) -> dict[str, Any]:
    """The least policy without one key."""
    kept = {name: dict(table) for name, table in LEAST.items()}
    table = kept["budget"] if place == "budget" else kept[place]
    if place == "budget":
        table["add-remove"] = {k: v for k, v in table["add-remove"].items() if k != key}
    else:
        del table[key]
    return kept


def keys() -> Iterator[tuple[str, str, str]]:
    """Table, key, and whether it is required, as the page says."""
    for names, required in re.findall(r"^\| (`.+?`) \| (\S+) \|", PAGE, flags=re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", names):
            place, _, key = name.rpartition(".")
            yield {"…": "budget"}.get(place.rstrip("."), place) or "budget", key, required


def test_the_least_policy_is_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(written(LEAST))
    assert read_policy(path).budgets == {"add-remove": Budget(10.0, 1e-4)}


def test_the_least_policy_has_the_required_keys_only() -> None:
    required = {(place, key) for place, key, what in keys() if what in ("yes", "central")}
    budget = {("budget", key) for key in LEAST["budget"]["add-remove"]}
    rest = {(name, key) for name in LEAST if name != "budget" for key in LEAST[name]}
    assert (rest | budget) - required == {("data", "root")}  # image_folder needs its place
    assert required <= rest | budget


@pytest.mark.parametrize(
    ("place", "key"), [(place, key) for place, key, what in keys() if what in ("yes", "central")]
)
def test_a_required_key_is_missed(tmp_path: Path, place: str, key: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(written(without(place, key)))
    with pytest.raises(ConfigError, match=f"{key} is missing"):
        read_policy(path)


def test_every_key_is_on_the_page() -> None:
    known = {*WORDS, *(key for name in ANSWERS.own for key in ANSWERS[name].limits)}
    assert [key for key in sorted(known) if not re.search(rf"(?<![\w-]){key}(?![\w-])", PAGE)] == []
