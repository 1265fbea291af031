"""Runs of the installed command, each recorded once: finished runs are not repeated."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from result_protocol import (
    configuration_hash,
    configuration_of,
    configured,
    data_hash,
    start_of,
)
from result_rows import Record, any_engine, measured

from fedsink.conf.acting import read_from_files
from fedsink.errors import FedsinkError
from fedsink.reporting.output_files import append_jsonl, write_json
from fedsink.server.folder import RunFolder, stored_config

FEDSINK = Path(sys.executable).with_name("fedsink")
_EVALUATION = ("classifiers", "n", "seed", "observation")
INTERRUPTED = "Interrupted: the same command goes on, with the run that was cut short."


class Runs:
    """Runs and evaluates experiments below a folder, and knows which are done.

    A run that was cut short continues from its checkpoint. Its CPU seconds are those of all its
    processes that ended by themselves or by Ctrl-C; where one was killed, the record says
    `resumed`, and they are a lower bound.

    Args:
        folder: holds results.jsonl and a run folder each.
        data_root: folder of MNIST and similar data; None: data.root is not given.
        n: images that the classifiers are trained on.
        commit: of the recipes, named by each record; None: records name no commit.
    """

    def __init__(
        self, folder: Path, data_root: Path | None, n: int, commit: str | None = None
    ) -> None:
        self.folder = folder
        self.records = folder / "results.jsonl"
        self._root = [] if data_root is None else [f"data.root={data_root.resolve()}"]
        self._n = n
        self._commit = commit

    def known(self, arguments: Sequence[str], evaluate: Sequence[str] = ()) -> Record | None:
        """Returns the record of these arguments, if they have been run and evaluated so.

        Engines give the same results: one of another engine counts. A record whose recipe has
        changed since does not; one that tells no recipe does.
        """
        command = any_engine(" ".join(["fedsink simulate", *arguments]))
        n = [w for w in (f"n={self._n}", *evaluate) if w.startswith("n=")][-1]
        same = (
            record
            for record in reversed(measured(self.records))
            if any_engine(record["command"]) == command
            and record.get("evaluated", []) == list(evaluate)
            and n in record["evaluate"].split()
        )
        found = next(same, None)
        if found is None or "configuration" not in found:
            return found
        recipe = tuple(w for w in arguments if not w.startswith(("seed=", "engine=")))
        return found if found["configuration"] == configuration_of(recipe) else None

    def record(
        self, arguments: Sequence[str], evaluate: Sequence[str] = (), *, seed: int, **labels: Any
    ) -> Record:
        """Returns the record of `fedsink simulate ARGUMENTS`; runs it unless it is known.

        Args:
            arguments: without data.root and the folder.
            evaluate: further keys of `fedsink evaluate`; the run itself is shared.
            seed: of the classifiers; the record names it.
            labels: further entries of the record.

        Raises:
            FedsinkError: a command failed; its own last line says why.
        """
        if (done := self.known(arguments, evaluate)) is not None:
            return done
        run, start = self._place(arguments), start_of(arguments)[1]
        spent: dict[str, Any] = {"seconds": 0.0, "killed": False}
        first: str | None = None
        if start is not None:
            source = self._place([*start, f"seed={seed}"])
            spent = self._simulate(source, [*start, f"seed={seed}"])
            first = configuration_hash(stored_config(RunFolder(source)))
            wanted = [w.replace("start=DIR", f"start={source}") for w in start_of(arguments)[0]]
        else:
            wanted = list(arguments)
        own = self._simulate(run, wanted)
        spent = {key: spent[key] + own[key] for key in spent}
        keys = {"n": str(self._n), "seed": str(seed), "threads": "1", "reference": "false"}
        keys |= dict(word.split("=", 1) for word in evaluate)
        words = [f"{key}={value}" for key, value in keys.items()]
        seconds, written = _call("evaluate", f"run={run}", *words)
        privacy, metrics, evaluation = (
            json.loads((run / name).read_text())
            for name in ("privacy.json", "metrics.json", written)
        )
        config = stored_config(RunFolder(run))
        record: Record = {
            "command": " ".join(["fedsink simulate", *arguments]),
            "evaluate": " ".join(["fedsink evaluate", *words]),
            **({"evaluated": list(evaluate)} if evaluate else {}),
            "seed": seed,
            "epsilon": privacy["epsilon"],
            "delta": privacy["delta"],
            "rounds": metrics["rounds"],
            "accuracy": evaluation.get("accuracy", {}),
            **{key: evaluation[key] for key in ("w2", "sliced_w2") if key in evaluation},
            "cpu_seconds": round(spent["seconds"], 2),
            "wall_seconds": metrics["seconds"],
            "evaluation_cpu_seconds": round(seconds, 2),
            "resumed": bool(spent["killed"]),
            **labels,
            **({} if self._commit is None else {"commit": self._commit}),
            "configuration": configuration_hash(config, first),
            "data": data_hash(config),
            "evaluation": {
                "threads": int(keys["threads"]),
                **{key: evaluation[key] for key in _EVALUATION if key in evaluation},
            },
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        append_jsonl(self.records, record)
        return record

    def _place(self, arguments: Sequence[str]) -> Path:
        """The folder of the run of these arguments."""
        name = f"{any_engine(' '.join(arguments))} {configuration_of(tuple(arguments))}"
        return self.folder / "runs" / hashlib.sha256(name.encode()).hexdigest()[:16]

    def _rooted(self, arguments: Sequence[str]) -> list[str]:
        """Returns data.root for data that files hold: others refuse it."""
        name = configured(tuple(arguments))["data"]["name"]
        return self._root if read_from_files(name) else []

    def _simulate(self, run: Path, arguments: Sequence[str]) -> dict[str, Any]:
        """Start, or continue, a run; the CPU seconds of all its processes."""
        spent_file = run.with_suffix(".json")
        spent = {"seconds": 0.0, "killed": False}
        if (run / "config.yaml").exists():
            spent = json.loads(spent_file.read_text())
            spent["killed"] |= spent.pop("running", False)
            wanted = [f"resume={run}"]
        else:
            shutil.rmtree(run, ignore_errors=True)  # a start that never became a run
            wanted = [*arguments, *self._rooted(arguments), f"hydra.run.dir={run}"]
        if (run / "metrics.json").exists():
            return spent
        spent_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(spent_file, {**spent, "running": True})
        before = _children()
        try:
            _call("simulate", *wanted)
        finally:
            spent["seconds"] += _children() - before
            write_json(spent_file, spent)
        return spent


def _call(*arguments: str) -> tuple[float, str]:
    """Runs the installed command, whose progress is shown.

    Returns its CPU seconds and the path that it prints last. Ctrl-C reaches it once, and it is
    waited for: a run that is stopped so leaves a checkpoint.
    """
    before, started = _children(), time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    said = ""
    with tempfile.TemporaryFile("w+") as printed, subprocess.Popen(
        [str(FEDSINK), *arguments], env=environment, process_group=0,
        stdout=printed, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        try:
            for line in child.stderr:
                said = line.strip() or said
                print(f"  {line}", end="", file=sys.stderr, flush=True)
            code = child.wait()
        except BaseException:
            child.send_signal(signal.SIGINT)
            child.communicate()
            raise
        printed.seek(0)
        last = printed.read().rstrip().rpartition("\n")[2]
    if code != 0:
        raise FedsinkError(
            f"fedsink {' '.join(arguments)} ended with {code} after "
            f"{time.monotonic() - started:.0f} s: {said or last or 'it said nothing'}"
        )
    return _children() - before, last


def _children() -> float:
    """CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
