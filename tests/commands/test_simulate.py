"""`fedsink simulate` as its user meets it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from fedsink.commands.cli import main
from fedsink.commands.simulate import run as simulate

from .conftest import SMALL, Command, Finished, Outcome, run_many, run_once, small

_PRIVACY = ("model", "epsilon", "delta", "unit", "adjacency", "mechanism", "accountant")


def test_a_run_prints_its_folder_last_and_succeeds(finished: Finished, foreign: Path) -> None:
    outcome, folder = finished
    assert outcome.code == 0, outcome.err
    assert folder.is_dir()
    assert folder.is_absolute()
    assert re.fullmatch(
        r"runs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-\d+-central", str(folder.relative_to(foreign))
    )
    assert outcome.out == f"{folder}\n"


def test_progress_is_plain_lines_where_there_is_no_terminal(finished: Finished) -> None:
    lines = finished[0].err.splitlines()
    assert "\r" not in finished[0].err
    assert "\x1b" not in finished[0].err
    assert re.search(r"round 20/20 .*ε .*loss .*left .*rounds/s", lines[-3])


def test_a_run_leaves_every_file_of_the_architecture(finished: Finished) -> None:
    _, folder = finished
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    pictures = {name for name in names if name.startswith("samples/")}
    assert names - pictures == {
        "config.yaml", "metrics.jsonl", "metrics.json", "privacy.json", "partition.json",
        "generator.safetensors", "generator.json", "checkpoint/state.safetensors", "report.html",
        "SHA256SUMS",
    }  # fmt: skip
    assert pictures == {f"samples/round-{n:06d}.png" for n in (0, 10, 20)}
    with Image.open(folder / "samples" / "round-000020.png") as picture:
        assert min(picture.size) > 80  # ten by ten digits of 8 by 8

    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["rounds"] == 20
    assert config["rate"] == 0.2  # resolved: it is an interpolation in the source
    assert config["run"]["key_file"] is None
    assert "${" not in (folder / "config.yaml").read_text()

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 21))
    assert all({"loss", "epsilon", "seconds", "signal_to_noise"} <= set(line) for line in lines)
    assert [line["epsilon"] for line in lines] == sorted(line["epsilon"] for line in lines)

    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["rounds"] == 20
    assert metrics["seconds"] > 0
    privacy = json.loads((folder / "privacy.json").read_text())
    assert set(_PRIVACY) <= set(privacy)
    assert metrics["epsilon"] == lines[-1]["epsilon"] == privacy["epsilon"]
    assert privacy["model"] == "central"
    assert 9.9 < privacy["epsilon"] <= 10
    assert len(privacy["clients"]) == 2


def test_a_local_run_leaves_the_uploads_beside_its_checkpoint(finished_ldp: Path) -> None:
    assert (finished_ldp / "checkpoint" / "uploads.safetensors").is_file()
    privacy = json.loads((finished_ldp / "privacy.json").read_text())
    assert set(_PRIVACY) <= set(privacy)
    assert (privacy["model"], privacy["epsilon"]) == ("ldp", pytest.approx(35))


_DEPLOY = Path(__file__).parents[2] / "deploy"
_SECRET = ["simulate", *(key for key in SMALL if not key.startswith("seed"))]
# fmt: off
_BAD = {
    "unknown key": ("LOCAL epss=3",
        "Unknown key 'epss'. Did you mean eps? fedsink simulate --cfg job lists them all."),
    "unknown nested key": ("LOCAL engine.thread=2", "Did you mean engine.threads?"),
    "another strategy's key": ("LOCAL strategy=gs_wgan strategy.p=0.2",
        "strategy.p acts with strategy=dp_sinkhorn: choose it, or leave strategy.p out."),
    "key too deep": ("LOCAL mode=ldp mechanism.map.block=3", "Did you mean map.block?"),
    "added key": ("LOCAL +foo=1", "Unknown key foo; there are mode, data,"),
    "unknown choice": ("LOCAL data=mnits",
        "There is no data=mnits: choose one of celeba, digits, fashion_mnist, femnist, "
        "femnist_62, femnist_digits, glyphs, half_circle, image_folder, mnist, npz, "
        "shapes. Did you mean mnist?"),
    "unknown experiment": ("simulate experiment=mnist_esp10", "Did you mean mnist_eps10?"),
    "unknown mode": ("LOCAL mode=cental", "There is no mode=cental: choose one of central, l"),
    "wrong mechanism": ("LOCAL mechanism=laplace",
        "mode=central has no mechanism=laplace: choose gaussian."),
    "wrong strategy": ("LOCAL mode=ldp strategy=dp_sinkhorn", "mode=ldp runs strategy=priv"),
    "strategy of the other mode with its clip": ("LOCAL mode=ldp strategy=gs_wgan",
        "mode=ldp runs strategy=privatize_once, not 'gs_wgan'."),
    "another partition's key": ("LOCAL partition.alpha=0.1",
        "partition.alpha acts with partition=dirichlet: choose it, or leave partition.alpha out."),
    "a table in two arguments": ("LOCAL public={data: shapes}",
        "quote that whole, 'public={data: shapes}'."),
    "a tether with a batch clip": ("LOCAL clip=batch strategy.tether=1.8",
        "strategy.tether is for clip=record"),
    "unknown clip": ("LOCAL clip=x", "clip is record or batch, not 'x'."),
    "no value": ("LOCAL eps", "'eps' is not of the form key=value; see fedsink simulate"),
    "key and value apart": ("simulate mode central",
        "Keys are written key=value: mode=central, not mode central;"),
    "twice": ("LOCAL eps=1 eps=2", "eps was given twice (eps=1 and eps=2)"),
    "resume twice": ("simulate resume=a resume=b", "resume was given twice"),
    "a sweep without a flag": ("LOCAL eps=1,2", "stands for several runs: add --multirun"),
    "a sign of the grammar": ("LOCAL data=mnist 'data.root=/scans (2)'",
        "data.root=/scans (2) cannot be read: signs and letters beyond a to z are quoted "
        "inside the argument, as in 'data.root=\"/scans (2)\"'"),
    "accents": ("LOCAL data=mnist 'data.root=\"no/été\"'", "no/été/MNIST/raw does not"),
    "unknown flag": ("LOCAL --verbose",
        "unrecognized arguments: --verbose; fedsink simulate --help says what there is."),
    "bad flag": ("simulate --cfg x", "invalid choice: 'x'"),
    "missing root": ("LOCAL data=image_folder", "data.root must be given: add data.root=…"),
    "missing folder": ("LOCAL data=mnist data.root=no/such", "no/such/MNIST/raw does not"),
    "eps": ("LOCAL eps=0", "eps must be a finite number > 0, received 0."),
    "three of three": ("LOCAL eps=1 sigma=1", "cost ε = "),
    "rate": ("LOCAL rate=1.5", "rate must lie in (0, 1], received 1.5."),
    "clients": ("LOCAL clients=5000", "5000 clients cannot share 1437 records"),
    "labels": ("LOCAL data.classes=[a]", "label 1 is outside the 1 classes of data.classes"),
    "generator": ("LOCAL generator=dcgan", "dcgan makes images of 28×28 or 32×32 pixels"),
    "seed": ("LOCAL seed=-1", "seed must be a whole number of at least 0, not -1."),
    "type": ("LOCAL strategy.m=abc", "strategy.m must be a number of at least 0, not 'abc'."),
    "unmatched": ("LOCAL mode=ldp strategy.cost=l1", "set strategy.unmatched=true"),
    "named folder": ("LOCAL eps=0 hydra.run.dir=a/b/c", "eps must be"),
    "adjacency": ("LOCAL adjacency=x",
        "adjacency 'x' is unknown: choose one of add-remove, replace-one,"),
    "adjacency and clip": ("LOCAL adjacency=client", "Give a capacity or use the batch clip."),
    "adjacency and accountant": ("LOCAL adjacency=replace-one accountant=rdp", "accountant"),
    "accountant": ("LOCAL accountant=x", "accountant='x' is unknown; choose one of pld, prv, rdp"),
    "another method's clip": ("LOCAL clip=critic", "clip is record or batch, not 'critic'."),
    "capacity": ("LOCAL capacity=0", "capacity must be null, auto or a whole number"),
    "capacity and a larger shard": ("LOCAL capacity=auto partition=unequal",
        "The capacity of a batch counts on at most 719 records at a client "
        "(data.nominal_records/clients), and this"),
    "users of data without users": ("LOCAL strategy=gs_wgan adjacency=user",
        "adjacency=user protects all records of a user, and digits does not tell users apart: "),
    "capacity too small": ("LOCAL capacity=30", "capacity"),
    "noise": ("LOCAL noise=loud", "There is no noise=loud: choose one of fast, secure."),
    "noise backend": ("LOCAL noise.backend=loud", "noise.backend is fast or secure, not 'loud'."),
    "noise share": ("LOCAL noise.share=all",
        "noise.share is local or secure_aggregation, not 'all'."),
    "dropouts": ("LOCAL noise.share=secure_aggregation noise.tolerate_dropouts=1",
        "noise.tolerate_dropouts=1 must be below the smallest cohort, and 1 of clients=2 is "
        "asked"),
    "secure seed": ("LOCAL noise=secure", "cannot be repeated: leave out seed=0."),
    "policy": ("SECRET policy=no.toml", "no.toml cannot be read"),
    "policy and seed": ("LOCAL policy=no.toml", "leave out seed=0 or policy=."),
    "shuffler": ("LOCAL mode=ldp shuffler=x", "shuffler is none or trusted, not 'x'."),
    "central shuffler": ("LOCAL shuffler=trusted", "shuffler=trusted belongs to mode=ldp"),
    "local adjacency": ("LOCAL mode=ldp adjacency=client", "belongs to mode=central"),
    "uses": ("LOCAL strategy.uses_per_message=0",
        "strategy.uses_per_message must be a whole number of at least 1, not 0."),
    "corrupt anew": ("LOCAL '+data.corrupt={kind: invert}'",
        "data.corrupt is gone: examples/debug_inverted.py alters records"),
    "keep": ("LOCAL partition.keep=[7,0]", "numbers of clients from 0 to 1, each once: 7 is"),
    "keep in local mode": ("LOCAL mode=ldp partition.keep=[0]",
        "mode=ldp shows a server how many records a client uploads"),
    "deployed engine": ("LOCAL engine=deploy",
        "engine.name is auto, ray, local or flower, not 'deploy'."),
    "deploy without app": ("deploy superlink=lab", "app= is missing"),
    "deploy without superlink": ("deploy app=x", "superlink= is missing"),
    "deploy of nothing": ("deploy app=x superlink=lab", "holds no pyproject.toml"),
    "deploy with flags": ("deploy --multirun", "'--multirun' is not of the form key=value"),
    "deploy twice": ("deploy app=x app=y", "app was given twice."),
    "deploy with a key twice": ("deploy app=DEPLOY superlink=lab eps=1 eps=2",
        "eps was given twice"),
    "deploy resume with a name": ("deploy app=x superlink=lab resume=y name=z",
        "uses the configuration that the server has stored: leave out name."),
    "deploy resume with keys": ("deploy app=x superlink=lab resume=y eps=3",
        "uses the configuration that the server has stored: leave out eps=3."),
    "resume without a name": ("simulate resume=", "resume= names no folder"),
    "observation of a word": ("LOCAL observation=foo",
        "observation is a group of keys, not 'foo'."),
    "resume nothing": ("simulate resume=nowhere", "nowhere holds no fedsink run (no config.yaml)"),
    "resume with keys": ("simulate resume=x eps=3 rounds=5",
        "uses the configuration stored in that folder: leave out eps=3 rounds=5."),
    "a key of another mode": ("LOCAL mode=ldp strategy.rows=20",
        "strategy.rows acts with strategy=dp_sinkhorn"),
    "two objectives": ("LOCAL -m objective=metrics.loss objective=metrics.epsilon eps=1,3",
        "objective was given twice."),
    "unknown command": ("simulat", "unknown command 'simulat'. Did you mean simulate?"),
    "sample without run": ("sample out=x.npz", "run= is missing"),
    "sample without out": ("sample run=x", "out= is missing"),
    "sample of nothing": ("sample run=x out=x.npz", "holds no fedsink run"),
    "evaluate without run": ("evaluate", "run= is missing"),
    "evaluate of nothing": ("evaluate run=x", "holds no fedsink run"),
    "evaluate too few": ("evaluate run=x n=3", "n=3: must be at least 20."),
    "account of too little": ("account rate=0.2", "missing: sigma, rounds, eps."),
    "account apart": ("account rate 0.2", "written key=value: rate=0.2, not rate 0.2;"),
    "deploy apart": ("deploy app deploy", "written key=value: app=deploy, not app deploy;"),
    "account twice": ("account sigma=1 sigma=2", "sigma was given twice."),
    "account text": ("account sigma=x", "sigma=x: expected a number, received 'x'."),
    "not a key": ("account sigma", "'sigma' is not of the form key=value"),
}
# fmt: on
"""What is typed, and what its refusal says. LOCAL is `simulate` with SMALL, SECRET has no seed."""


def _line(typed: str) -> list[str]:
    head, *words = shlex.split(typed.replace("DEPLOY", str(_DEPLOY)))
    if head not in ("LOCAL", "SECRET"):
        return [head, *words]
    keys = small(*words)
    return ["simulate", *(k for k in keys if head == "LOCAL" or not k.startswith("seed="))]


_GOOD = {
    "configuration": ["simulate", "--cfg", "job", "mode=ldp", "eps=3"],
    "two runs": ["simulate", *small("rounds=3"), "-m", "eps=1,3", "hydra.sweep.dir=both"],
}


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Outcome]]:
    """Each line's folder and outcome, all that are asked for played by one process."""
    root = tmp_path_factory.mktemp("played")
    items = request.session.items
    chosen = {getattr(item, "callspec", None) and item.callspec.id for item in items}
    lines = {case: _line(typed) for case, (typed, _) in _BAD.items() if case in chosen}
    if any(item.name == test_configuration_and_sweeps.__name__ for item in items):
        lines |= _GOOD
    folders = [root / str(number) for number in range(len(lines))]
    outcomes = run_many(list(zip(folders, lines.values(), strict=True)))
    return dict(zip(lines, zip(folders, outcomes, strict=True), strict=True))


@pytest.mark.quick(
    "unknown key", "twice", "accents", "missing root", "eps", "labels", "type", "named folder",
    "policy and seed", "resume nothing", "unknown command", "account of too little",
)  # fmt: skip
@pytest.mark.parametrize("case", _BAD)
def test_bad_input_is_one_sentence_exit_2_and_leaves_nothing(
    played: dict[str, tuple[Path, Outcome]], case: str
) -> None:
    _, outcome = played[case]
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("fedsink: ")
    assert _BAD[case][1] in outcome.err
    assert outcome.left == ()


@pytest.mark.medium
def test_the_installed_script_refuses_in_the_same_way(fedsink: Command, tmp_path: Path) -> None:
    outcome = fedsink("simulate", "eps=-1", "engine=local", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err == "fedsink: eps must be a finite number > 0, received -1.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_empty_folder_of_the_users_own_stays(tmp_path: Path) -> None:
    for name in ("mine", "été"):
        folder = tmp_path / f"in {name}"
        (folder / name).mkdir(parents=True)
        arguments = ["simulate", *SMALL, "eps=0", f'hydra.run.dir="{name}/a/b"']
        (outcome,) = run_many([(folder, arguments)])
        assert outcome.code == 2
        assert outcome.left == (name,)


@pytest.mark.slow
def test_debug_shows_the_traceback(fedsink: Command, tmp_path: Path) -> None:
    outcome = fedsink("simulate", "eps=-1", "engine=local", "--debug", cwd=tmp_path)
    assert outcome.code != 0
    assert "Traceback (most recent call last)" in outcome.err
    assert "PrivacyError: eps must be a finite number > 0" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_configuration_and_sweeps(played: dict[str, tuple[Path, Outcome]]) -> None:
    (_, config), (folder, both) = (played[case] for case in _GOOD)
    assert config.code == both.code == 0, both.err
    shown = yaml.safe_load(config.out)
    assert (shown["mode"], shown["eps"], shown["mechanism"]["name"]) == ("ldp", 3, "laplace")
    assert config.left == ()
    folders = [Path(line) for line in both.out.splitlines()]
    assert folders == [folder / "both" / name for name in ("0", "1")]
    for run, eps in zip(folders, (1, 3), strict=True):
        epsilon = json.loads((run / "privacy.json").read_text())["epsilon"]
        assert 0.99 * eps < epsilon <= eps


@pytest.mark.medium
def test_secure_noise_without_opendp_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    monkeypatch.chdir(tmp_path)
    for mode in ("central", "ldp"):
        with pytest.raises(SystemExit) as ended:
            main([*_SECRET, f"mode={mode}", "noise=secure"])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert err.startswith(
            "fedsink: secure noise needs the Python package opendp, fedsink's extra `secure`"
        )
        assert err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_epsilon_without_amplification_is_said_before_training(finished: Finished) -> None:
    outcome, folder = finished
    stated = json.loads((folder / "privacy.json").read_text())
    first = outcome.err.splitlines()[0]
    assert first.startswith(f"ε = {stated['epsilon']:.4g}, δ = 1e-05 per record; ")
    assert first.endswith(f": against whoever learns it ε = {stated['epsilon_unamplified']:.4g}.")


def test_the_end_says_the_promise_the_report_and_the_next_command(finished: Finished) -> None:
    outcome, folder = finished
    epsilon = json.loads((folder / "privacy.json").read_text())["epsilon"]
    assert outcome.err.splitlines()[-2:] == [
        f"Done: ε = {epsilon:.4g}, δ = 1e-05 per record. Report: {folder / 'report.html'}",
        f"Next: fedsink evaluate run={folder}",
    ]


@pytest.mark.medium
def test_a_finished_run_that_is_resumed_says_so(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate([f"resume={finished[1]}"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("This run has ended already: nothing is left to do.\nDone: ε = ")
    assert out == f"{finished[1]}\n"


@pytest.mark.medium
def test_help_begins_with_examples_and_loads_no_torch() -> None:
    script = (
        "import sys\nfrom fedsink.commands.simulate import HELP\nprint(HELP())\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2] == "Examples:"
    assert len(lines) < 70


@pytest.mark.medium
def test_a_person_who_waits_is_told_what_starts(
    finished: Finished, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert simulate([f"resume={finished[1]}"]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert (
        first
        == f"fedsink simulate resume={finished[1]}: loading libraries, checking data and keys …"
    )


@pytest.mark.slow
def test_a_library_that_talks_leaves_standard_output_to_the_folder(tmp_path: Path) -> None:
    """GeomLoss loads KeOps, which prints its findings about the machine."""
    done = run_once(
        "simulate", "mode=central", *small("rounds=2"), "clip=batch", "strategy.solver=annealed",
        "strategy.backend=geomloss", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out == f"{done.last}\n"
    assert Path(done.last).is_dir()


@pytest.mark.slow
def test_keops_without_a_compiler_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = run_once(
        "simulate", "mode=ldp", *SMALL, "strategy.backend=keops", cwd=tmp_path,
        PATH="/nonexistent", CXX="/nonexistent/c++", KEOPS_CACHE_FOLDER=str(tmp_path / "cache"),
    )  # fmt: skip
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].endswith(
        "backend=keops needs a C++ compiler (g++, or what CXX names), and that is missing on this "
        "machine: install it, or choose backend=native."
    )
    assert not (tmp_path / "runs").exists()
