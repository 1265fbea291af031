from __future__ import annotations

import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedsink.conf.acting import composed_run
from fedsink.results.pages.report_page import report_at_end, write_report
from fedsink.server.folder import RunFolder
from fedsink.simulation.simulated_run import start

from .conftest import PLACES, SMALL, Begin, hostile_places
from .reading import Page

EVALUATION = {
    "n": 200, "seed": 0, "sliced_w2": 0.1234, "observation": True,
    "accuracy": {"logreg": 0.871, "mlp": 0.9, "cnn": 0.913},
    "real_accuracy": {"logreg": 0.95, "mlp": 0.96, "cnn": 0.97},
}  # fmt: skip


def _spread(mean: float) -> dict[str, Any]:
    return {"mean": mean, "sd": 0.012, "values": [mean], "size": 10}


PAPER = {
    "suite": "paper", "n": 1437, "seeds": [0, 1, 2], "observation": True,
    "figures": {
        "accuracy/cnn": {
            "synthetic": _spread(0.9), "real": _spread(0.98), "class_means": _spread(0.85)
        },
        "fid": {"synthetic": _spread(12.5)},
    },
}  # fmt: skip


def _page(folder: RunFolder) -> Page:
    return Page(write_report(folder.path).read_text())


RUNS = {
    "dp_sinkhorn": ("mode=central",),
    "batch clip, a capacity": ("mode=central", "clip=batch", "capacity=auto", "rate=0.05"),
    "gs_wgan": ("mode=central", "strategy=gs_wgan", "strategy.turns=2"),
    "gs_wgan as published": ("experiment=gs_wgan_published_digits", "clients=5", "rounds=20"),
    "parameter_gradient": ("mode=central", "strategy=parameter_gradient"),
    "nothing protected": ("mode=central", "eps=inf"),
    "shared noise": ("mode=central", "noise.share=secure_aggregation", "clients=20"),
    "laplace": ("mode=ldp", "mechanism=laplace", "eps=20"),
    "a shuffler": ("mode=ldp", "eps=3", "shuffler=trusted"),
    "points": ("mode=ldp", "data=half_circle"),
    "points, central": ("mode=central", "data=half_circle"),
    "unconditional": ("mode=central", "conditional=false"),
    "many clients": ("mode=central", "clients=100", "seed=0"),
}


ALIKE = ("batch clip, a capacity", "points, central", "many clients", "unconditional")
"""Kinds whose pages differ from another one's in little."""


@pytest.mark.medium
@pytest.mark.quick("dp_sinkhorn", "laplace")
@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=pytest.mark.slow if run in ALIKE else ()) for run in RUNS]
)
def test_every_kind_of_run_has_a_page(begin: Begin, run: str) -> None:
    # As published, GS-WGAN goes without a policy.
    folder = begin(*RUNS[run], change=None if "published" in run else hostile_places)
    path = write_report(folder.path)
    assert path == folder.path / "report.html"
    page = Page(path.read_text())
    assert page.forbidden == []
    assert all(re.match(r"data:image/|#", address) for address in page.addresses)
    assert {a[1:] for a in page.addresses if a[0] == "#"} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert path.stat().st_size <= 3_000_000
    # A heading is at most one level below the one before it.
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(text.strip() for _, text in page.headings)
    assert len(page.images) >= 5
    assert all(len(image["alt"] or "") > 20 for image in page.images)
    stated = json.loads(folder.privacy.read_text())
    # A name of privacy.json is another name on a page.
    assert stated["protected"].replace("noise_share", "the part on shared noise") in page.seen
    assert stated["not_protected"] in page.seen


@pytest.mark.medium
@pytest.mark.quick("laplace", "dp_sinkhorn")
@pytest.mark.parametrize("run", ["dp_sinkhorn", "laplace", "gs_wgan"])
def test_guarantee_no_place_no_key_and_no_count_is_told(begin: Begin, run: str) -> None:
    folder = begin(*RUNS[run], change=hostile_places)
    text = write_report(folder.path).read_text()
    stored = re.search(r"key_file: (\S+)", folder.config.read_text())
    assert stored is not None
    assert stored[1] != "null"
    for part in (
        *PLACES,
        "987654321",
        "123456789",
        stored[1],
        Path(stored[1]).name,
        str(folder.path),
    ):
        assert part not in text
    assert str(Path.home()) + "/" not in text
    assert "partition.json" not in text


@pytest.mark.medium
def test_a_reader_who_knows_no_code_gets_the_answers(tmp_path: Path) -> None:
    config, _ = composed_run([*SMALL, "mode=central", "seed=3", "eps=4"])
    folder = RunFolder(start(config, tmp_path / "run"))
    folder.write(folder.path / "evaluation.json", EVALUATION)
    seen = _page(folder).seen
    stated = json.loads(folder.privacy.read_text())
    shown = f"{stated['epsilon']:.4g}"
    checklist = {
        "what was promised": (f"ε, of the whole run {shown}", "δ 1e-5"),
        "to whom": ("protected unit record", stated["protected"], stated["not_protected"]),
        "what it compares": (stated["adjacency"],),
        "without amplification": (f"{stated['epsilon_unamplified']:.4g}",),
        "what left": ("Clipped, noised gradients of generated records, in every round",),
        "what left each client": ("clients 0–4, each 20 ",),
        "at what ε": (f"B {shown} Never left",),
        "what never left": ("Never left a client: records",),
        "how good the pictures are": ("convolutional network 91.3 % 97.0 %", "87.1 % 95.0 %"),
        "that this is not private": ("These figures are not private.",),
        "how to get the same run again": (
            "fedsink simulate engine=local clients=5 rounds=20",
            "mode=central seed=3 eps=4",
        ),
        "that its noise is public": ("For public data only.",),
    }
    missing = {k: [t for t in told if t not in seen] for k, told in checklist.items()}
    assert not {k: told for k, told in missing.items() if told}, seen


@pytest.mark.medium
def test_a_run_of_an_earlier_version_has_a_page(begin: Begin) -> None:
    def earlier(config: dict[str, Any]) -> dict[str, Any]:
        del config["run"]["typed"]
        return config

    seen = _page(begin("mode=central", change=earlier)).seen
    assert "What was typed is not recorded in this run's folder" in seen


@pytest.mark.medium
def test_the_files_have_their_hashes(begin: Begin) -> None:
    folder = begin("mode=central")
    folder.write(folder.path / "evaluation.json", EVALUATION)
    seen = _page(folder).seen
    for name in ("config.yaml", "privacy.json", "metrics.jsonl", "evaluation.json"):
        digest = hashlib.sha256((folder.path / name).read_bytes()).hexdigest()
        assert re.search(rf"{name} [\d,]+ {digest}", seen)


@pytest.mark.slow
def test_the_most_telling_evaluation_is_shown(begin: Begin) -> None:
    folder = begin("mode=central")
    assert "Not measured yet" in _page(folder).seen
    folder.write(folder.path / "evaluation.json", EVALUATION)
    assert "87.1 %" in _page(folder).seen
    folder.write(folder.path / "evaluation-paper.json", PAPER)
    seen = _page(folder).seen
    assert "convolutional network 90.0 ± 1.2 % 98.0 ± 1.2 % 85.0 ± 1.2 %" in seen
    assert "fid 12.5 ± 0.012" in seen
    assert "87.1 %" not in seen
    assert "evaluation-paper.json: suite=paper, 1,437 synthetic records, 3 runs" in seen


@pytest.mark.medium
def test_the_epsilon_behind_a_shuffler_stands_with_its_delta(begin: Begin) -> None:
    folder = begin("mode=ldp", "eps=3", "shuffler=trusted", "shuffler_delta=2e-7")
    assert "at another δ: 2e-7" in _page(folder).seen


@pytest.mark.slow
def test_a_run_that_goes_on_says_so(begin: Begin) -> None:
    folder = begin("mode=central", done=7)
    seen = _page(folder).seen
    assert "This run has not ended" in seen
    assert "7 of 20 rounds" in seen
    assert "clients 0–4, each 7 " in seen
    begun = begin("mode=ldp", done=0)
    for left in (begun.metrics_lines, *begun.samples.iterdir()):
        left.unlink()
    seen = _page(begun).seen
    assert "0 of 20 training steps" in seen
    assert "No round has been recorded yet." in seen
    assert "clients 0–4, each not yet" in seen
    begun.privacy.unlink()
    assert "has written no privacy.json" in _page(begun).seen


@pytest.mark.slow
def test_who_missed_rounds_is_told(begin: Begin) -> None:
    folder = begin("mode=central")
    stated = json.loads(folder.privacy.read_text())
    missed = {"messages": 20, "missed": [{"client": 3, "messages": 4}]}
    folder.write(folder.privacy, {**stated, "participation": missed})
    seen = _page(folder).seen
    assert "client 3 missed 4." in seen
    assert "clients 0–2, each 20 " in seen
    assert "client 3 16 " in seen


def test_a_page_of_a_million_clients_is_small_and_readable(begin: Begin) -> None:
    folder = begin("mode=central", "clients=1000000")
    stated = json.loads(folder.privacy.read_text())
    assert len(stated["clients"]) == 1
    missed = [{"client": 3, "messages": 4}, {"client": "20-999999", "messages": 1}]
    folder.write(folder.privacy, {**stated, "participation": {"missed": missed}})
    page = _page(folder)
    assert "1,000,000 clients · 20 rounds" in page.seen
    assert "client 3 missed 4, clients 20–999999 missed 1. Their ε is" in page.seen
    assert re.search("clients 0–2, each 20 .* client 3 16 .* clients 4–19, each 20 ", page.seen)
    assert (folder.path / "report.html").stat().st_size < 3_000_000
    sentence = "500000 clients missed 1 to 7 messages each"
    folder.write(folder.privacy, {**stated, "participation": {"missed": sentence}})
    assert f"did not answer every message: {sentence}. Their" in _page(folder).seen


@pytest.mark.medium
def test_a_page_that_fails_loses_no_run(begin: Begin, capsys: pytest.CaptureFixture[str]) -> None:
    folder = begin("mode=central", "report.html=true")
    folder.privacy.write_text("{")
    report_at_end(folder.path)
    (line,) = capsys.readouterr().err.splitlines()
    assert "report.html could not be written (CheckpointError" in line
    assert "The run is complete: fedsink report run=" in line
    assert not (folder.path / "report.html").exists()


@pytest.mark.slow
def test_the_same_run_has_the_same_page(begin: Begin) -> None:
    folder = begin("mode=central")
    first = write_report(folder.path).read_bytes()
    assert write_report(folder.path).read_bytes() == first
