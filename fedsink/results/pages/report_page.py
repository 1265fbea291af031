"""report.html: the guarantee of a run, the uploads of its clients, and its pictures' quality."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsink.data.spec import ARRAYS, DataSpec
from fedsink.deployment.results import is_public
from fedsink.environment import missing_package
from fedsink.files import write_atomic
from fedsink.reporting.displays import ForgivingStream, duration
from fedsink.reporting.typed import shown_settings, typed_command
from fedsink.results.pages.charts import Chart, Line, line_chart
from fedsink.results.pages.evaluation_tables import (
    accuracy_table,
    figure_table,
    measured,
)
from fedsink.results.pages.page import (
    PageTable,
    Picture,
    number,
    pictures,
    render,
    spread,
)
from fedsink.results.pages.uploads import Uploads, label, missed_messages
from fedsink.server.folder import SUMS, RecordedRun, cautions, command_for, note_sums
from fedsink.server.loop import LoopSettings
from fedsink.strategies.methods import STRATEGIES
from fedsink.values import checks, strictly

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
    "colluders": "the table below",
    "noise_share": "the part on shared noise",
}

NOT_PRIVATE = (
    "These figures are not private.",
    "They were computed on real data, without noise: publish them for public benchmarks only.",
)
"""The mark of figures that real data gave."""

log = logging.getLogger("fedsink.results.pages")


def write_report(path: Path) -> Path:
    """Writes the page of a run, finished or not, into its folder.

    Guarantees:
        - The page does not tell which client holds which data: partition.json is not read.
        - The page holds no path and no key.
        - The page uses no network and no script.
        - Figures that real data gave are marked as not private.

    Returns:
        The path of the page.

    Raises:
        CheckpointError: the folder holds no run, or a damaged file.
        FedsinkError: the run's configuration belongs to another version.
    """
    run = RecordedRun.of(path)
    target = run.folder.path / FILE_NAME
    write_atomic(target, report_page(run))
    if (run.folder.path / SUMS).exists():
        note_sums(run.folder.path, [FILE_NAME])
    return target


def report_at_end(path: Path) -> None:
    """Writes the page of a run that has ended, unless its configuration leaves it out.

    A failure does not harm the run: standard error tells it.
    """

    def wanted() -> bool:
        report = RecordedRun.of(path).config.get("report", {})
        return strictly(LoopSettings, report, "report").html

    _try(path, wanted)


def renew_report(path: Path) -> None:
    """Writes the page of a run again, if it has one; standard error tells a failure."""
    _try(path, (path / FILE_NAME).exists)


def _try(path: Path, wanted: Callable[[], bool]) -> None:
    try:
        if wanted():
            write_report(path)
    except Exception as error:
        log.debug("The report could not be written.", exc_info=True)
        why = missing_package(error, FILE_NAME) or (
            f"{FILE_NAME} could not be written ({type(error).__name__}: {error})."
        )
        ForgivingStream(sys.stderr).write(
            f"fedsink: {why} The run is complete: {command_for('report', 'run', path)}\n"
        )


def report_page(run: RecordedRun) -> bytes:
    """Renders the page of a run."""
    config, privacy = run.config, run.privacy or {}
    data, method = DataSpec.from_config(config["data"]), config["strategy"]["name"]
    done = int(run.rounds[-1]["round"]) if run.rounds else 0
    return render(
        "report.html.j2",
        not_private=NOT_PRIVATE,
        title=STRATEGIES.find(method).Settings.title,
        leaves=STRATEGIES.find(method).Settings.leaves,
        data=data.name,
        name=(config.get("run") or {}).get("name", ""),
        clients=number(checks.count("clients", config["clients"])),
        finished=run.finished,
        failed=run.failure is not None,
        ended=_ended(run, done),
        deployed=config["engine"].get("name") == "deploy",
        privacy=privacy,
        promise=_promise(privacy),
        cautions=cautions(privacy, config),
        adjacency=_adjacency(privacy),
        epsilon=privacy.get("epsilon"),
        shares=_shares(privacy),
        schedule=_SCHEDULES.get(str(privacy.get("schedule")), ""),
        arrays=data.name == ARRAYS,
        uploads=None if data.name == ARRAYS else Uploads.of(run),
        missed=_missed(privacy, config["clients"]),
        curves=_curves(run),
        grids=_grids(run, data),
        points=len(data.shape) == 1,
        accuracy=accuracy_table(run),
        figures=figure_table(run),
        measured=measured(run),
        seed=config.get("seed"),
        number=number,
        words=_words,
        exp=math.exp,
        **_configuration(run),
        files=_files(run),
    )


def _missed(privacy: dict[str, Any], clients: int) -> str:
    """Says which of K clients missed how many messages."""
    if isinstance(told := (privacy.get("participation") or {}).get("missed"), str):
        return told
    found = missed_messages(privacy, clients)
    return ", ".join(f"{label(some)} missed {number(count)}" for some, count in found)


def _ended(run: RecordedRun, done: int) -> str:
    """Says how far the run is, and how long it took."""
    rounds = (run.result or run.privacy or {}).get("rounds")
    if run.config["mode"] == "ldp" and run.result is None:
        rounds = run.config.get("rounds") or run.config["recipe"].get("rounds")
    word = "training steps" if run.config["mode"] == "ldp" else "rounds"
    seconds = (run.result or (run.rounds[-1] if run.rounds else {})).get("seconds")
    took = "" if seconds is None else f" in {duration(seconds)}"
    if run.finished:
        return f"{number(rounds)} {word}{took}"
    return f"{number(done)} of {number(rounds)} {word}{took}"


def _promise(privacy: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the numbers of the guarantee: name, value, remark."""
    if not privacy:
        return []
    epsilon = privacy.get("epsilon")
    entries = [
        ("ε, of the whole run", "∞" if epsilon is None else number(epsilon), "smaller is safer"),
        ("δ", number(privacy.get("delta")), "chance that ε does not hold"),
        ("protected unit", str(privacy.get("unit") or "none"), "what one neighbour differs in"),
    ]

    def add(name: str, key: str, remark: str) -> None:
        entries.append((name, number(privacy.get(key)), remark))

    if isinstance(traded := privacy.get("trade_off"), dict):
        remark = f"of a test with {number(traded.get('false_positive_rate'))} false ones; "
        remark += f"no better than N(0, 1) against N(μ, 1), μ = {number(traded.get('mu'))}"
        entries.append(
            ("true positives, at most", number(traded.get("true_positive_rate")), remark)
        )
    if privacy.get("model") == "central" and epsilon is not None:
        if privacy.get("capacity") is None:
            remark = "against who learns what was sampled"
            add("ε without amplification", "epsilon_unamplified", remark)
        else:
            remark = f"in δ; at most {number(privacy['capacity'])} records a batch"
            add("a fuller sample costs", "delta_overflow", remark)
    if "epsilon_image" in privacy:
        add("ε of the picture", "epsilon_image", "")
        add("ε of the label", "epsilon_label", "summed with it")
    if "epsilon_without_aggregator" in privacy:
        add("ε of one reply", "epsilon_without_aggregator", "without secure aggregation")
    if "epsilon_published" in privacy:
        add("ε as published", "epsilon_published", str(privacy["epsilon_published_meaning"]))
    if isinstance(shuffled := privacy.get("shuffling"), dict):
        remark = f"beside the local ε, at another δ: {number(shuffled.get('delta'))}"
        entries.append(("ε behind a shuffler", number(shuffled.get("epsilon")), remark))
    return entries


def _adjacency(privacy: dict[str, Any]) -> str:
    """Says which data sets ε compares."""
    if privacy.get("model") == "ldp":
        return (
            "replace-one: ε compares any two values that a record may have had, for each record "
            "by itself"
        )
    return str(privacy.get("adjacency") or "")


def _words(text: object) -> str:
    """Replaces the keys of privacy.json in its sentences by the page's names."""
    told = str(text or "")
    for name, plain in _NAMES.items():
        told = told.replace(name, plain)
    return told


def _shares(privacy: dict[str, Any]) -> PageTable | None:
    """Returns the table of σ and ε that are left where some clients tell their noise."""
    shared = privacy.get("noise_share")
    if not shared:
        return None
    rows = [
        [str(entry["clients"]), number(entry["sigma"]), number(entry["epsilon"])]
        for entry in shared.get("colluders", ())  # of a run before there were integers: none
    ]
    columns = ["clients that tell the server their noise", "noise multiplier σ", "ε"]
    return PageTable(columns, rows, "ε that is left if clients tell their noise", frozenset({1, 2}))


_CURVES = (
    ("epsilon", "ε spent so far", "ε",
     "While rounds are left this is an upper bound; the promise is the whole run's ε."),
    ("loss", "Loss", "loss",
     "Of DP-Sinkhorn and GS-WGAN the norm of the released gradient. It costs no privacy."),
    ("signal_to_noise", "Signal to noise", "signal / noise",
     "The size of what was learned in a round against the noise in it, from only the release."),
)  # fmt: skip


def _curves(run: RecordedRun) -> list[tuple[str, Chart, PageTable]]:
    """Returns a chart of each metric and the table under it."""
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
        told.append(
            (title, chart, PageTable(columns, [row], numeric=frozenset(range(1, len(row)))))
        )
    return told


def _grids(run: RecordedRun, data: DataSpec) -> list[Picture]:
    """Returns sample grids from the first to the last."""
    if len(data.shape) == 1:
        what = "a scatter plot of generated points"
    elif run.config["conditional"]:
        what = f"ten generated pictures of each class: {', '.join(data.classes)}"
    else:
        what = "ten generated pictures"
    by_round = spread(run.pictures, _PICTURES)
    described = []
    for round, path in by_round.items():
        when = f"Round {number(round)}" if round else "Before the first round"
        described.append((path, f"{when}: {what}.", when))
    return pictures(described)


def _configuration(run: RecordedRun) -> dict[str, Any]:
    """Returns the command and the whole configuration, for the template."""
    values = shown_settings(run.config)
    return {
        "command": typed_command(run.config),
        "configuration": PageTable(["key", "value"], [list(entry) for entry in values.items()]),
    }


def _files(run: RecordedRun) -> PageTable:
    """Lists the run's files that may be published, with their SHA-256."""
    root, rows = run.folder.path, []
    names = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    for name, path in sorted(names.items()):
        if name == SUMS:  # holds the sum of this page
            continue
        if is_public(name) or path.stem in run.evaluations:
            content = path.read_bytes()
            rows.append([name, number(len(content)), hashlib.sha256(content).hexdigest()])
    return PageTable(["file", "bytes", "SHA-256"], rows, numeric=frozenset({1}))
