"""report.html: what a run promised, what left each client, and how good its pictures are."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsink.data.spec import DataSpec
from fedsink.deployment.results import is_public
from fedsink.errors import CheckpointError
from fedsink.pages.charts import Chart, Line, line_chart
from fedsink.pages.origin import Origin, settings
from fedsink.pages.page import render
from fedsink.pages.pictures import Picture, pictures, spread
from fedsink.pages.quality import accuracy_table, comparison_note, figure_table, measured
from fedsink.pages.tables import MISSING, Table, duration, number
from fedsink.pages.uploads import Uploads
from fedsink.reporting.atomic import write_atomic
from fedsink.reporting.stream import ForgivingStream
from fedsink.server.folder import command_for
from fedsink.server.loop import LoopSettings
from fedsink.server.recorded import RecordedRun
from fedsink.strategies.methods import STRATEGIES
from fedsink.values import strictly

FILE_NAME = "report.html"

_PICTURES = 8  # grids of a page
_ROWS = 9  # of the table under a chart
_SCHEDULES = {
    "joint": "Every round may use every record.",
    "class": "A round asks each client about one class, so that it can touch a record only where "
    "its class is asked about.",
    "turn": "Clients take turns.",
    "pick": "A public draw picks one client a round.",
}

_NAMES = {
    "epsilon_unamplified": "ε without amplification",
    "delta_overflow": "what a fuller sample costs",
    "missing_shares": "the table below",
    "noise_share": "the part on shared noise",
}

log = logging.getLogger("fedsink.pages")


def write_report(path: Path) -> Path:
    """Write the page of a run, finished or not, into its folder.

    Guarantees:
        - It says nothing of which client holds what: partition.json is not read.
        - No path and no key is on it.
        - It asks no network and runs no script.

    Args:
        path: the run folder.

    Returns:
        The page.

    Raises:
        CheckpointError: the folder holds no run, or a study of several, or a damaged file.
        FedsinkError: the run's configuration is none of this version.
    """
    run = RecordedRun.of(path)
    if run.is_study:
        names = " and ".join(run.parts) or "several runs, none of which has begun"
        raise CheckpointError(
            f"{run.folder.path} holds a study of {names}: name the folder of one of them."
        )
    target = run.folder.path / FILE_NAME
    write_atomic(target, report_page(run))
    return target


def report_at_end(path: Path) -> None:
    """Write the page of a run that has ended, unless its configuration leaves it out.

    Whatever goes wrong, the run is safe: standard error says so.
    """
    _try(path, lambda: _asks_for_report(RecordedRun.of(path)))


def renew_report(path: Path) -> None:
    """Write the page of a run again, if it has one; what goes wrong is told on standard error."""
    _try(path, (path / FILE_NAME).exists)


def _asks_for_report(run: RecordedRun) -> bool:
    return strictly(LoopSettings, run.config.get("report", {}), "report").html


def _try(path: Path, wanted: Callable[[], bool]) -> None:
    try:
        if wanted():
            write_report(path)
    except Exception as error:
        log.debug("The report could not be written.", exc_info=True)
        ForgivingStream(sys.stderr).write(
            f"fedsink: {FILE_NAME} could not be written ({type(error).__name__}: {error}); the run "
            f"is complete: {command_for('report', 'run', path)}\n"
        )


def report_page(run: RecordedRun) -> bytes:
    """The page of a run."""
    config, stated = run.config, run.privacy or {}
    data, method = DataSpec.from_config(config["data"]), config["strategy"]["name"]
    done = int(run.rounds[-1]["round"]) if run.rounds else 0
    return render(
        "report.html.j2",
        title=STRATEGIES.find(method).Settings.title,
        data=data.name,
        name=(config.get("run") or {}).get("name", ""),
        clients=config["clients"],
        finished=run.finished,
        failed=run.failure is not None,
        ended=_ended(run, done),
        deployed=config["engine"].get("name") == "deploy",
        stated=stated,
        promise=_promise(stated),
        adjacency=_adjacency(stated),
        epsilon=stated.get("epsilon"),
        shares=_shares(stated),
        schedule=_SCHEDULES.get(str(stated.get("schedule")), ""),
        uploads=Uploads.of(run),
        missed=(stated.get("participation") or {}).get("missed", []),
        curves=_curves(run),
        grids=_grids(run, data),
        points=len(data.shape) == 1,
        accuracy=accuracy_table(run),
        comparison_note=comparison_note(run),
        figures=figure_table(run),
        measured=measured(run),
        seed=config.get("seed"),
        number=number,
        words=_words,
        exp=math.exp,
        **_configuration(run),
        files=_files(run),
    )


def _ended(run: RecordedRun, done: int) -> str:
    """How far the run is, and how long it took."""
    rounds = (run.result or run.privacy or {}).get("rounds")
    if run.config["mode"] == "ldp" and run.result is None:
        rounds = run.config.get("rounds") or run.config["recipe"].get("rounds")
    word = "training steps" if run.config["mode"] == "ldp" else "rounds"
    seconds = (run.result or (run.rounds[-1] if run.rounds else {})).get("seconds")
    took = "" if seconds is None else f" in {duration(seconds)}"
    if run.finished:
        return f"{number(rounds)} {word}{took}"
    return f"{number(done)} of {number(rounds)} {word}{took}"


def _promise(stated: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The numbers of the guarantee: name, value, remark."""
    if not stated:
        return []
    epsilon = stated.get("epsilon")
    entries = [
        ("ε, of the whole run", "∞" if epsilon is None else number(epsilon), "smaller is safer"),
        ("δ", number(stated.get("delta")), "chance that ε does not hold"),
        ("protected unit", str(stated.get("unit") or "none"), "what one neighbour differs in"),
    ]
    if stated.get("model") == "central" and epsilon is not None:
        if stated.get("capacity") is None:
            without = stated.get("epsilon_unamplified")
            sampled = (
                "critics were asked" if stated.get("clip") == "critic" else "records were sampled"
            )
            remark = f"against who learns which {sampled}"
            entries.append(("ε without amplification", number(without), remark))
        else:
            remark = f"in δ; at most {number(stated['capacity'])} records a batch"
            entries.append(("a fuller sample costs", number(stated["delta_overflow"]), remark))
    if "epsilon_image" in stated:
        entries.append(("ε of the picture", number(stated["epsilon_image"]), ""))
        entries.append(("ε of the label", number(stated["epsilon_label"]), "summed with it"))
    if "epsilon_without_aggregator" in stated:
        alone = number(stated["epsilon_without_aggregator"])
        entries.append(("ε of a reply alone", alone, "without secure aggregation"))
    if "epsilon_published" in stated:
        claimed = number(stated["epsilon_published"])
        entries.append(("ε as published", claimed, str(stated["epsilon_published_meaning"])))
    if "shuffling" in stated and isinstance(stated["shuffling"], dict):
        shuffled = stated["shuffling"]
        remark = f"beside the local ε, at a δ of its own: {number(shuffled.get('delta'))}"
        entries.append(("ε behind a shuffler", number(shuffled.get("epsilon")), remark))
    return entries


def _adjacency(stated: dict[str, Any]) -> str:
    """Which data sets ε compares, in words."""
    if stated.get("model") == "ldp":
        return (
            "replace-one: ε compares any two values that a record may have had, for each record "
            "by itself"
        )
    return str(stated.get("adjacency") or "")


def _words(text: object) -> str:
    """Words of privacy.json, with the page's names for its numbers."""
    told = str(text or "")
    for name, plain in _NAMES.items():
        told = told.replace(name, plain)
    return told


def _shares(stated: dict[str, Any]) -> Table | None:
    """What is left where shares of the noise are missing."""
    shared = stated.get("noise_share")
    if not shared:
        return None
    rows = [
        [f"{entry['missing']} missing", number(entry["sigma"]), number(entry["epsilon"])]
        for entry in shared["missing_shares"]
    ]
    columns = ["shares of the noise", "noise multiplier σ", "ε"]
    return Table(columns, rows, "What is left if clients leave out their share", frozenset({1, 2}))


_CURVES = (
    ("epsilon", "ε spent so far", "ε",
     "While rounds are left this is an upper bound; the promise is the whole run's ε."),
    ("loss", "Loss", "loss",
     "A surrogate, computed from what was released: watching it costs no privacy."),
    ("signal_to_noise", "Signal to noise", "signal / noise",
     "The size of what was learned in a round against the noise in it, from the release alone."),
)  # fmt: skip


def _curves(run: RecordedRun) -> list[tuple[str, Chart, Table]]:
    """A chart of each metric and the table under it."""
    told = []
    word = "step" if run.config["mode"] == "ldp" else "round"
    for key, title, up, remark in _CURVES:
        points = [(int(r["round"]), r[key]) for r in run.rounds if r.get(key) is not None]
        if not points:
            continue
        x, y = [p[0] for p in points], [float(p[1]) for p in points]
        alt = (
            f"{title} over {word}s {number(x[0])} to {number(x[-1])}: "
            f"{number(y[0])} at first, {number(y[-1])} at last, "
            f"between {number(min(y))} and {number(max(y))}."
        )
        mean = "" if len(x) <= 400 else " Each point is the mean over neighbouring ones."
        line = Line(title, x, y)
        chart = line_chart([line], word, up, alt=alt, caption=remark + mean, log=key == "loss")
        last = len(points) - 1
        places = sorted({round(last * part / (_ROWS - 1)) for part in range(_ROWS)})
        columns = [word, *(number(x[place]) for place in places)]
        row = [up, *(number(y[place]) for place in places)]
        told.append((title, chart, Table(columns, [row], numeric=frozenset(range(1, len(row))))))
    return told


def _grids(run: RecordedRun, data: DataSpec) -> list[Picture]:
    """Sample grids from the first to the last."""
    if len(data.shape) == 1:
        what = "a scatter plot of generated points"
    elif run.config["conditional"]:
        what = f"ten generated pictures of each class: {', '.join(data.classes)}"
    else:
        what = "ten generated pictures"
    chosen = spread(run.pictures, _PICTURES)
    described = []
    for round, path in chosen.items():
        when = f"Round {number(round)}" if round else "Before the first round"
        described.append((path, f"{when}: {what}.", when))
    return pictures(described)


def _configuration(run: RecordedRun) -> dict[str, Any]:
    """The command, the differences and the whole configuration."""
    origin = Origin.of(run.config)
    differences = [
        [d.key, d.value, MISSING if d.usual is None else d.usual] for d in origin.differences
    ]
    values = settings({k: v for k, v in run.config.items() if k != "plan"})
    return {
        "command": origin.command,
        "chosen": origin.chosen,
        "differences": Table(["key", "this run", "recipe"], differences) if differences else None,
        "configuration": Table(["key", "value"], [list(entry) for entry in values.items()]),
    }


def _files(run: RecordedRun) -> Table:
    """What the run left that may be published, with its SHA-256."""
    root, rows = run.folder.path, []
    names = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    for name, path in sorted(names.items()):
        if is_public(name) or path.stem in run.evaluations:
            content = path.read_bytes()
            rows.append([name, number(len(content)), hashlib.sha256(content).hexdigest()])
    return Table(["file", "bytes", "SHA-256"], rows, numeric=frozenset({1}))
