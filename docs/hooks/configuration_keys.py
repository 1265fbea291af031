"""The pages of configuration keys and experiments, read from the YAML that defines them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

import fedsink.conf

CONF = Path(str(fedsink.conf.__file__)).parent
ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "packages/papers/src/fedsink_papers/conf"
GROUPS = (
    "mode", "strategy", "mechanism", "map", "view", "data", "partition", "generator", "engine",
    "noise",
)  # fmt: skip
"""Groups that a person chooses from; `records` and `recipe` follow from these."""

_HYDRAS = ("defaults", "hydra")


@dataclass(frozen=True)
class Key:
    """A key of a YAML file.

    Attributes:
        name: dotted, without the group.
        default: as it is written; an interpolation in words.
        meaning: the comment behind the key, or else the one directly above it; may be empty.
    """

    name: str
    default: str
    meaning: str


def keys_page() -> str:
    """Every key, its default and its meaning, from the YAML that defines it."""
    groups = [*GROUPS, "experiment"]
    parts = [
        "# Configuration keys",
        "The keys of `fedsink simulate` and `fedsink deploy`, written `key=value`. Any other is "
        "refused, and `fedsink simulate --cfg job` prints the present values. *The recipe’s* is "
        "what was measured for this mode, mechanism and dataset (`fedsink/conf/recipe/`), or a "
        "start for any dataset. *Rare* marks a key that no page of this book needs.",
        f"Groups, `group=choice`: {', '.join(f'[`{name}`](#{name})' for name in groups[:-1])}, "
        "and [`experiment`](experiments.md).",
        "## Top level",
        _table(keys(CONF / "config.yaml")),
    ]
    for group in GROUPS:
        parts.append(f"## {group}")
        for choice, table in group_keys(group).items():
            file = CONF / group / f"{choice}.yaml"
            parts += [f"### {group}={choice}", description(file), _inherited(file)]
            if options := [key for key in table if key.name != "name"]:
                prefix = "" if group == "mode" else f"{group}."
                parts.append(_table(options, prefix))
    return page(parts)


def experiments_page() -> str:
    """Every named experiment."""
    parts = [
        "# Experiments’ names",
        "`fedsink simulate experiment=NAME`; [Experiments](../experiments.md) says which rows of "
        "which paper they are. *Papers* marks those of [fedsink-papers](../papers.md).",
        "| experiment | what |\n|---|---|",
    ]
    files = [path for conf in (CONF, PAPERS) for path in (conf / "experiment").glob("*.yaml")]
    for path in sorted(files, key=lambda path: path.stem):
        mark = "*Papers.* " if path.is_relative_to(PAPERS) else ""
        parts[-1] += f"\n| `{path.stem}` | {mark}{cell(description(path))} |"
    return page(parts)


def keys(path: Path) -> list[Key]:
    """The keys of a YAML file in their order, those of nested tables by dotted names."""
    text = path.read_text()
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        return []
    return [key for key in _below(root, "", text) if key.name.split(".")[0] not in _HYDRAS]


def description(path: Path) -> str:
    """The comment that a YAML file begins with, in one paragraph."""
    comment = []
    for line in path.read_text().splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return " ".join(comment)


def choices(group: str) -> list[str]:
    """Choices that a group offers."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def group_keys(group: str) -> dict[str, list[Key]]:
    """Keys of each choice of a group; a meaning that one choice states holds for all of them."""
    tables = {name: keys(CONF / group / f"{name}.yaml") for name in choices(group)}
    stated: dict[str, str] = {}
    for key in (key for table in tables.values() for key in table if key.meaning):
        stated.setdefault(key.name, key.meaning)
    return {
        name: [Key(key.name, key.default, key.meaning or stated.get(key.name, "")) for key in table]
        for name, table in tables.items()
    }


def _inherited(path: Path) -> str:
    """Choice of the group that this one builds on."""
    defaults = (yaml.safe_load(path.read_text()) or {}).get("defaults", ())
    bases = [name for name in defaults if isinstance(name, str) and name != "_self_"]
    return f"Keys and values of `{bases[0]}`, except these:" if bases else ""


def _below(node: yaml.MappingNode, where: str, text: str) -> Iterator[Key]:
    for key, value in node.value:
        name = f"{where}{key.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _below(value, f"{name}.", text)
        else:
            written = text[value.start_mark.index : value.end_mark.index]
            yield Key(name, _default(written), _meaning(key, value, text.splitlines()))


def _default(written: str) -> str:
    """The value in one line; values from the recipe are described in words."""
    value = " ".join(written.split())
    if value == "???":
        return "to be given"
    if fallback := re.fullmatch(r"\$\{oc\.select:recipe\.[\w.]+,(.*)\}", value):
        return f"the recipe’s, else `{fallback[1]}`"
    if fallback := re.fullmatch(r"\$\{oc\.select:([\w.]+),(.*)\}", value):
        return f"`{fallback[1]}`, else `{fallback[2]}`"
    if re.fullmatch(r"\$\{recipe\..*\}", value):
        return "the recipe’s"
    return f"`{value}`"


def _meaning(key: yaml.Node, value: yaml.Node, lines: list[str]) -> str:
    """The comment on the lines of a key; without one the comment block directly above it."""
    first, last = key.start_mark.line, value.end_mark.line
    behind = lines[first : max(last, first) + 1]
    comments = [found[1] for line in behind if (found := re.search(r"\s#\s+(.*)$", line))]
    if comments:
        return " ".join(comments)
    above: list[str] = []
    for line in reversed(lines[:first]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().removeprefix("#").strip())
    else:
        return ""  # the file's own comment
    return " ".join(above)


def _table(rows: list[Key], prefix: str = "") -> str:
    pages = "\n".join(path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md")))
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key in rows:
        name = f"{prefix}{key.name}"
        rare = "" if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", pages) else "*Rare.* "
        lines.append(f"| `{name}` | {cell(key.default)} | {rare}{cell(key.meaning)} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")


def page(parts: list[str]) -> str:
    """A page of paragraphs, the empty ones left out."""
    return "\n\n".join(part for part in parts if part) + "\n"
