"""The files that a value passes on its journey, counted from calls.

`python .ci/journeys.py` runs the smallest simulation (one client, one round, by messages), and
prints the files of the package on two journeys:

- a private record to the reply's bytes: every file with a call between a message's arrival at a
  client and its reply;
- eps to privacy.json: every file with a call that is given, or returns, the ε that was typed, the σ
  solved from it or the ε that is stated, in itself or in an object, table or list one step deep.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

EPS = 5.017
KEYS = {"mode": "central", "clients": 1, "rounds": 1, "seed": 0, "engine": "local", "eps": EPS,
        "report.html": False}  # fmt: skip
LEAVES = ("errors.py", "values.py", "checks.py", "registry.py", "__init__.py")
"""Files that do what their names say and are not opened on the way."""

Hook = Callable[[FrameType, str, Any], None]


def simulated(folder: Path, hook: Hook) -> None:
    """Runs the simulation under a profile hook, with one message for each client."""
    import fedsink
    from fedsink.simulation.virtual_clients import LocalGrid

    LocalGrid.adds_up = lambda self, message_type: False  # type: ignore[method-assign]
    sys.setprofile(hook)
    try:
        fedsink.simulate(KEYS, folder=folder)
    finally:
        sys.setprofile(None)


def place(code: CodeType) -> str | None:
    """The path of a file inside the package; None for another file and for a leaf."""
    _, found, path = code.co_filename.rpartition("/fedsink/")
    return path if found and not path.endswith(LEAVES) and "<" not in path else None


def record_to_reply(folder: Path) -> list[str]:
    """Files that run while a client answers its first message, in the order of their first call."""
    files: dict[str, None] = {}
    inside = 0

    def hook(frame: FrameType, event: str, value: Any) -> None:
        nonlocal inside
        code = frame.f_code
        if code.co_name == "handle" and code.co_filename.endswith("clients/app.py"):
            inside += {"call": 1, "return": -1}.get(event, 0)
        if inside and event == "call" and (path := place(code)):
            files.setdefault(path)

    simulated(folder, hook)
    return list(files)


def eps_to_statement(folder: Path, numbers: frozenset[float]) -> list[str]:
    """Files that are given or return one of the numbers before privacy.json is written."""
    files: dict[str, None] = {}
    written = False

    def hook(frame: FrameType, event: str, value: Any) -> None:
        nonlocal written
        if written or event not in ("call", "return") or (path := place(frame.f_code)) is None:
            return
        seen = [value] if event == "return" else [*frame.f_locals.values()]
        if path not in files and any(number in numbers for item in seen for number in held(item)):
            files.setdefault(path)
        written = (folder / "privacy.json").exists()

    simulated(folder, hook)
    return list(files)


def held(item: object) -> Iterator[float]:
    """The floats in a value and one step into it."""
    if isinstance(item, float):
        yield item
    elif isinstance(item, Mapping):
        yield from (value for value in item.values() if isinstance(value, float))
    elif isinstance(item, list | tuple):
        yield from (value for value in item if isinstance(value, float))
    else:
        yield from (v for v in getattr(item, "__dict__", {}).values() if isinstance(v, float))


def main() -> int:
    """Prints both journeys with their numbers of files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = record_to_reply(folder / "one")
        stated: dict[str, Any] = json.loads((folder / "one" / "privacy.json").read_text())
        numbers = {EPS, *(stated[key] for key in ("epsilon", "sigma"))}
        eps = eps_to_statement(folder / "two", frozenset(numbers))
    print(f"a record to its reply: {len(record)} files\n  " + "\n  ".join(record))
    print(f"eps to privacy.json: {len(eps)} files\n  " + "\n  ".join(eps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
