"""What fedsink computes, writes and refuses, recorded through its command line alone.

Temporary: this folder leaves when the last module has found its place. Until then its tests hold

- `epsilon.json`: what `fedsink account` prints, line by line;
- `runs.json`, `promises.json`: small runs of every method: replies, weights, privacy.json, files;
- `files.json`: what the commands write, one line after the other in one folder;
- `errors.json`: lines that are refused, by exit code, and what the refusal must name.

`python -m tests.freeze.frozen`, in the repository's root, records them all anew from the lines and
keys that they hold, `python -m tests.freeze.frozen runs` only these. A renewal goes into a commit
of its own that shows both numbers; an ε that rises, or a σ that falls, needs its reason there.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import io
import json
import math
import os
import pkgutil
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support.policies import DIGITS, limits, policy
from ..support.surroundings import clean

HERE = Path(__file__).resolve().parent
Frozen = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one command line: its exit code and what it printed."""

    code: int
    out: str
    err: str


def play(line: str, folder: Path) -> Outcome:
    """Runs `fedsink LINE` in this process, in a folder that is also its home."""
    from fedsink.commands.cli import main

    names = ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "FLWR_HOME")
    before, here = {name: os.environ.get(name) for name in names}, Path.cwd()
    os.environ |= {name: str(folder / "home" / name) for name in names}
    out, err, code = io.StringIO(), io.StringIO(), 0
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(shlex.split(line))
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        os.chdir(here)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return Outcome(code, out.getvalue(), err.getvalue())


def read(name: str) -> Frozen:
    """Returns a record."""
    frozen: Frozen = json.loads((HERE / f"{name}.json").read_text())
    return frozen


def write(name: str, frozen: Frozen) -> None:
    """Writes a record; each of its two outer levels gives lines, so that a renewal is readable."""

    def text(value: Any, levels: int) -> str:
        if not levels or not isinstance(value, dict):
            return json.dumps(value, ensure_ascii=False)
        entries = (
            f"{json.dumps(k, ensure_ascii=False)}: {text(value[k], levels - 1)}" for k in value
        )
        return "{\n" + ",\n".join(entries) + "\n}"

    (HERE / f"{name}.json").write_text(f"{text(frozen, 2)}\n")


# ε, σ, rates and rounds by `fedsink account`.


def account(line: str, folder: Path) -> Frozen:
    """Returns the numbers of the table that a line of `fedsink account` prints, or its refusal."""
    outcome = play(f"account {line}", folder)
    if outcome.code:
        return {"refused": outcome.code}
    head, _, *rows = outcome.out.partition("\n\n")[0].splitlines()
    what = re.split(r"\s{2,}", head.strip())[1]
    found = {}
    for row in rows:
        name, text = re.split(r"\s{2,}", row.strip())[:2]
        if number := re.match(r"(inf|[\d.,]+(e[+-]\d+)?)(?![^ ])", text):
            key = name if what == "value" else f"{what} by {name}"
            found[key] = float(number[0].replace(",", ""))
    return found


# Runs: what clients answer, what the server learns, what it promises, which files it leaves.

SMALL = (
    "engine=local clients=3 rounds=6 seed=0 report.pictures=0 report.html=false "
    "generator.hidden=[16]"
)
NOT_REPEATED = ("record-secret",)
"""Runs with secret noise: only their promise and their files are recorded."""


def simulate_line(keys: str) -> str:
    """Returns the command of a run."""
    typed = keys.split()
    names = {key.lstrip("~").partition("=")[0] for key in typed}
    small = [key for key in SMALL.split() if key.partition("=")[0] not in names]
    return shlex.join(["simulate", *small, *(key for key in typed if not key.startswith("~"))])


def run_of(keys: str, folder: Path) -> Frozen:
    """Runs once; returns fingerprints of replies and weights, and what it promises and leaves."""
    from safetensors.numpy import load_file

    with replies() as exchanges:
        outcome = play(simulate_line(keys), folder)
    if outcome.code:
        raise RuntimeError(f"{keys}: {outcome.err}")
    run = Path(outcome.out.splitlines()[-1])
    weights = load_file(run / "generator.safetensors")
    return {
        "replies": {
            "first": fingerprint(exchanges[0]),
            "all": fingerprint([array for arrays in exchanges for array in arrays]),
        },
        "generator": {name: fingerprint([weights[name]]) for name in sorted(weights)},
        "promise": {
            **dict(flat(json.loads((run / "privacy.json").read_text()))),
            "files": files_in(run),
        },
    }


@contextlib.contextmanager
def replies() -> Iterator[list[list[Any]]]:
    """Yields the arrays of each exchange, as a strategy gets them from whatever grid it has.

    Every engine's grid is a Flower `Grid`. One that sends by another is recorded, the other not.
    """
    from flwr.serverapp import Grid

    import fedsink

    importlib.import_module("flwr.superlink.grid.inmemory_grid")  # of Flower's own simulation
    for module in pkgutil.walk_packages(fedsink.__path__, "fedsink."):
        if "grid" in module.name:  # so that Grid has all its subclasses
            importlib.import_module(module.name)
    exchanges: list[list[Any]] = []
    inside: list[object] = []

    def recording(send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(grid: Grid, *arguments: Any, **more: Any) -> Any:
            inside.append(grid)
            try:
                answers = send(grid, *arguments, **more)
            finally:
                inside.pop()
            if not inside:
                answers = answers if hasattr(answers, "sums") else list(answers)
                if arrays := arrays_of(answers):
                    exchanges.append(arrays)
            return answers

        return sent

    found = [(k, k.send_and_receive) for k in heirs(Grid) if "send_and_receive" in vars(k)]
    for kind, send in found:
        kind.send_and_receive = recording(send)
    try:
        yield exchanges
    finally:
        for kind, send in found:
            kind.send_and_receive = send


def heirs(kind: type) -> list[Any]:
    """Lists the subclasses of a class, and theirs."""
    return [heir for child in kind.__subclasses__() for heir in (child, *heirs(child))]


def arrays_of(answers: Any) -> list[Any]:
    """Returns the arrays of one exchange: sums, or replies in the order of their nodes."""
    import numpy as np

    if hasattr(answers, "sums"):
        return [part.total.numpy() for part in answers.sums if part is not None]
    records = [
        record
        for reply in sorted(answers, key=lambda reply: int(reply.metadata.src_node_id))
        for record in reply.content.array_records.values()
    ]
    return [np.frombuffer(r[name].data, r[name].dtype) for r in records for name in sorted(r)]


def fingerprint(arrays: list[Any]) -> list[Any]:
    """Returns the number of values, their sum, the sum of their squares, and a hash of them."""
    import numpy as np

    values = [np.asarray(array, np.float64).ravel() for array in arrays]
    whole = np.concatenate(values)
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
    sums = (float(f"{number:.9g}") for number in (math.fsum(whole), math.fsum(whole * whole)))
    return [len(whole), *sums, digest.hexdigest()[:12]]


def machine() -> str:
    """Names what the last bits of floats depend on: processor and PyTorch."""
    import torch

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", info)
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{model[1] if model else 'unknown'}, {kernels}, torch {torch.__version__}"


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of privacy.json, without the version of fedsink."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            if (path, key) != ("", "fedsink"):
                yield from flat(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        for number, part in enumerate(value):
            yield from flat(part, f"{path}[{number}]")
    else:
        yield path, value


def gathered(promises: dict[str, Frozen]) -> dict[str, dict[str, str]]:
    """Returns path → value, as JSON → the runs that have it, for most runs have most in common."""
    table: dict[str, dict[str, str]] = {}
    for run, leaves in promises.items():
        for path, value in leaves.items():
            values = table.setdefault(path, {})
            text = json.dumps(value, ensure_ascii=False)
            values[text] = f"{values.get(text, '')} {run}".strip()
    return table


def scattered(table: dict[str, dict[str, str]], run: str) -> Frozen:
    """Returns the promise of one run from what `gathered` returned."""
    return {
        path: json.loads(text)
        for path, values in table.items()
        for text, runs in values.items()
        if run in runs.split()
    }


def blanked(names: Iterable[str]) -> list[str]:
    """Returns names of files in order, each once, dates, times and random digits blanked."""
    moving = re.compile(r"\d{4}-\d\d-\d\d|\d\d-\d\d-\d\d-\d+|[0-9a-f]{16,}")
    passing = re.compile(r"XDG_CACHE_HOME|\.sqlite-(shm|wal)$")  # they come and go
    return sorted({moving.sub("…", name) for name in names if not passing.search(name)})


def files_in(folder: Path) -> list[str]:
    """Lists the files in a folder."""
    return blanked(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Files: what each command writes.


def written(lines: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """Returns for each line its exit code, and the files that it wrote or changed."""

    def states() -> dict[str, tuple[int, bytes]]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}

    found = {}
    for line in lines:
        before = states()
        outcome = play(line, folder)
        gc.collect()  # a ledger that a run left open is written in the run's own line
        changed = [name for name, state in states().items() if before.get(name) != state]
        found[line] = [f"exit code {outcome.code}", *blanked(changed)]
    return found


def prepare(folder: Path, *, with_run: bool = True) -> Path:
    """Fills a folder with what command lines name: a policy, a run, and damaged files."""
    wide = {kind: limits(1e3, 1e-3) for kind in ("add-remove", "replace-one")}
    whole = policy(budget=wide, data=DIGITS, allow={"maximum_images": 1500})
    texts = {
        "policy.toml": whole,
        "words.txt": "not what you expect",
        "peers.toml": '[keys]\nward = "ed25519:AAAA"\n',
        "list.toml": 'ward = "x"\n',
        "unknown.toml": whole.replace("minimum_noise", "minimum_nose"),
        "typed.toml": whole.replace("1437", '"many"'),
        "twice.toml": whole.replace("[noise]", '[noise]\nbackend = "fast"'),
        "negative.toml": whole.replace("1000.0", "-1.0"),
        "backend.toml": whole.replace('"fast"', '"loud"'),
        "pictures/a/0.png": "not a picture",
        "damaged/config.yaml": "a: &b [*b]",
        "damaged/privacy.json": "{",
        "damaged.sqlite": "no database",
        "empty/nothing.txt": "",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "damaged.sqlite").chmod(0o600)
    if with_run:
        outcome = play(f"{simulate_line('rounds=2')} hydra.run.dir=run", folder)
        assert outcome.code == 0, outcome.err
        for name in ("unfinished", "cut", "nested"):
            shutil.copytree(folder / "run", folder / name)
        (folder / "unfinished/metrics.json").unlink()
        (folder / "cut/generator.safetensors").write_bytes(b"cut")
        (folder / "nested/metrics.json").write_text("[" * 100_000)
    return folder


# Errors: `errors.json` has the lines, the words that each refusal must contain, and its exit code.


def refused(line: str, words: Sequence[str], folder: Path) -> tuple[int, list[str]]:
    """Returns the exit code of a line that is to be refused, and what is wrong with its text."""
    before = files_in(folder)
    outcome = play(line, folder)
    text = outcome.err.strip()
    left = set(files_in(folder)) - set(before)
    faults = {
        "prints to standard output": bool(outcome.out),
        "is no single line": "\n" in text or not text.startswith("fedsink: "),
        "shows a traceback, or calls itself a defect": re.search("Traceback|defect", text),
        "is too long": len(text) > 2000,
        f"leaves {left} behind": left,
    } | {f"does not name {word!r}": word not in text for word in words}
    return outcome.code, [f"it {fault}: {text}" for fault, there in faults.items() if there]


def record(names: Sequence[str], folder: Path) -> None:
    """Records anew what the entries of these files ask for."""
    if "epsilon" in names:
        groups = {name: {k: account(k, folder) for k in v} for name, v in read("epsilon").items()}
        write("epsilon", groups)
    if "runs" in names:
        runs = read("runs") | {"machine": machine()}
        promises = {}
        for name, run in runs.items():
            if name != "machine":
                found = run_of(run["keys"], fresh(folder))
                promises[name] = found.pop("promise")
                runs[name] = {"keys": run["keys"], **({} if name in NOT_REPEATED else found)}
        write("runs", runs)
        write("promises", gathered(promises))
    if "files" in names:
        write("files", written([*read("files")], prepare(fresh(folder), with_run=False)))
    if "errors" in names:
        place = prepare(fresh(folder))
        words = {line: entry[1:] for line, entry in read("errors").items()}
        write("errors", {line: [refused(line, w, place)[0], *w] for line, w in words.items()})


def fresh(folder: Path) -> Path:
    """Makes a new folder in a folder."""
    return Path(tempfile.mkdtemp(dir=folder))


if __name__ == "__main__":
    clean(os.environ)
    with tempfile.TemporaryDirectory() as temporary:
        record(sys.argv[1:] or ("epsilon", "runs", "files", "errors"), Path(temporary))
