"""Measures of the package's structure, from its own imports, definitions and calls.

`python .ci/measure_house.py [TREE]` prints a line for each measure; docs/architecture.md explains
them. Files are parsed: nothing is imported from TREE.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

METHODS = ("dp_sinkhorn", "gs_wgan", "privatize_once")
_SUFFIXES = ("clip", "plan", "schedule")


class House:
    """The files of a package by module name, and the imports of each.

    Args:
        root: the repository; the package is its folder ``fedsink``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {_module(root, path): path for path in sorted(root.glob("fedsink/**/*.py"))}
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.files.items()}

    def imports(self, module: str, *, at_top: bool) -> set[str]:
        """Modules of the package that a module imports.

        Args:
            module: its name.
            at_top: counts only imports that run with the module; otherwise imports inside functions
                and for type checkers count too.
        """
        found = set()
        for node in _statements(self.trees[module]) if at_top else ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                names = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [(node.module, alias.name) for alias in node.names]
            else:
                continue
            for base, name in names:
                whole = f"{base}.{name}"
                found.add(whole if whole in self.files else base)
        return (found & self.files.keys()) - {module}


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Statements that run at import: those of functions and `if TYPE_CHECKING` are left out."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


def circles(house: House) -> list[list[str]]:
    """Groups of files that import one another, by whatever import."""
    graph = {name: house.imports(name, at_top=False) for name in house.files}

    @cache
    def reached(start: str) -> frozenset[str]:
        seen: set[str] = set()
        pending = [start]
        while pending:
            for name in graph[pending.pop()] - seen:
                seen.add(name)
                pending.append(name)
        return frozenset(seen)

    groups = {
        tuple(sorted({name} | {o for o in reached(name) if name in reached(o)}))
        for name in graph
        if name in reached(name)
    }
    return [list(group) for group in sorted(groups)]


def longest_chain(house: House) -> list[str]:
    """The longest chain of imports that run at import."""
    graph = {name: house.imports(name, at_top=True) for name in house.files}

    @cache
    def chain(name: str, above: frozenset[str] = frozenset()) -> tuple[str, ...]:
        below = [chain(other) for other in sorted(graph[name]) if other not in above]
        return (name, *max(below, key=len, default=()))

    return list(max((chain(name) for name in sorted(graph)), key=len))


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: no comment, docstring or blank line."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
                          tokenize.DEDENT, tokenize.ENDMARKER):  # fmt: skip
            continue
        lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def import_share(house: House) -> float:
    """Code lines for each line of imports."""
    code = imports = 0
    for name, path in house.files.items():
        lines = code_lines(path.read_text())
        code += len(lines)
        for node in ast.walk(house.trees[name]):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
    return code / imports


def comments(house: House) -> int:
    """Number of comments that fill a line by themselves."""
    return sum(
        line.lstrip().startswith("# ")
        for path in house.files.values()
        for line in path.read_text().splitlines()
    )


def kind_checks(house: House) -> list[str]:
    """Places that ask which kind of clip, plan or schedule they hold."""
    found = []
    for name, tree in house.trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "isinstance":
                continue
            value, kinds = (ast.unparse(argument) for argument in node.args)
            held = value.rpartition(".")[2].lower()
            if held.endswith(_SUFFIXES) or re.search(r"(Clip|Plan|Schedule)\b", kinds):
                found.append(f"{name}:{node.lineno}")
    return found


def names_of(house: House, method: str) -> list[str]:
    """The names that a method goes by: its strategy, its message, its modules at both sides."""
    source = "".join(
        path.read_text()
        for name, path in house.files.items()
        if name.startswith(f"fedsink.strategies.{method}")
    )
    [message] = set(re.findall(r"\"train\.(\w+)\"", source)) or {method}
    names = [method, message]
    for name, tree in house.trees.items():
        if not name.startswith("fedsink.clients."):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node) == f"name = '{message}'":
                names.append(name.rpartition(".")[2])
                names += [module.rpartition(".")[2] for module in _request_modules(house, tree)]
    return list(dict.fromkeys(names))


def _request_modules(house: House, tree: ast.Module) -> list[str]:
    """Modules of the protocol that define the requests which a client's module annotates."""
    text = ast.unparse(tree)
    requests = set(re.findall(r"requests: Sequence\[(\w+Request)\]", text))
    return [
        name
        for name, other in house.trees.items()
        if name.startswith("fedsink.protocol.")
        for node in other.body
        if isinstance(node, ast.ClassDef) and node.name in requests
    ]


def shared_that_say(house: House, word: str) -> list[str]:
    """Modules outside a method's own files and folders that have a word."""
    return [
        name
        for name, path in house.files.items()
        if word in path.read_text().lower()
        and word not in name
        and not any(method in name for method in METHODS)
    ]


def repeated(house: House) -> tuple[list[str], list[str]]:
    """File names outside the folders of methods, and class names, that occur more than once."""
    stems = Counter(
        name.rpartition(".")[2]
        for name, path in house.files.items()
        if path.name != "__init__.py"
        and not any(name.endswith(f".{m}") or f"strategies.{m}." in name for m in METHODS)
    )
    classes = Counter(
        node.name
        for tree in house.trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return _several(stems), _several(classes)


def _several(counts: Mapping[str, int]) -> list[str]:
    return sorted(name for name, count in counts.items() if count > 1)


def measures(house: House) -> dict[str, object]:
    """Every measure by its name."""
    stems, classes = repeated(house)
    lines = [len(path.read_text().splitlines()) for path in house.files.values()]
    return {
        "files": len(house.files),
        "lines": sum(lines),
        "files under 60 lines": sum(count < 60 for count in lines),
        "files above 400 lines": sum(count > 400 for count in lines),
        "code lines for each import line": f"{import_share(house):.1f}",
        "whole-line comments": comments(house),
        "names of a method": {m: names_of(house, m) for m in METHODS},
        "shared modules that say critic": shared_that_say(house, "critic"),
        "checks for a kind of clip, plan or schedule": kind_checks(house),
        "file circles": circles(house),
        "longest chain": longest_chain(house),
        "file names that repeat": stems,
        "class names that repeat": classes,
    }


def main(arguments: Sequence[str]) -> int:
    """Prints the measures of a tree; lists with their length first."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    for name, value in measures(House(root)).items():
        if isinstance(value, list):
            print(f"{name}: {len(value)}  {' '.join(map(str, value))}")
        else:
            print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
