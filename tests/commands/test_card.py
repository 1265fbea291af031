"""`fedsink card` as its user meets it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image

from fedsink.results.pages.page import number
from fedsink.server.finished import open_run

from .conftest import Finished, Played, run_many

pytestmark = pytest.mark.medium

_EVALUATION = {
    "n": 10000,
    "seed": 0,
    "accuracy": {"logreg": 0.8123, "cnn": 0.9},
    "real_accuracy": {"logreg": 0.95, "cnn": 0.99},
    "label_histogram": [1] * 10,
    "test_images": 360,
    "observation": True,
}


@pytest.fixture(scope="module")
def carded(
    finished: Finished, finished_ldp: Path, tmp_path_factory: pytest.TempPathFactory
) -> Played:
    folder = tmp_path_factory.mktemp("carded")
    shutil.copytree(finished[1], folder / "central")
    shutil.copytree(finished_ldp, folder / "ldp")
    (folder / "central" / "evaluation.json").write_text(json.dumps(_EVALUATION))
    shutil.copytree(folder / "central", folder / "hostile")
    privacy = json.loads((folder / "hostile" / "privacy.json").read_text())
    privacy["protected"] = "x\n\n# <script>alert(1)</script> | `y` ![z](http://z)"
    (folder / "hostile" / "privacy.json").write_text(json.dumps(privacy))
    shutil.copytree(finished[1], folder / "unfinished")
    (folder / "unfinished" / "metrics.json").unlink()
    shutil.copytree(finished[1], folder / "unprotected")
    none = dict.fromkeys(("epsilon", "delta", "epsilon_unamplified", "clip_bound"))
    (folder / "unprotected" / "privacy.json").write_text(
        json.dumps({**privacy, **none, "protected": "Nothing.", "clip": "none"})
    )
    lines = [
        ["card", "run=central", "license=cc-by-4.0"],
        ["card", "run=ldp", "out=deep/ldp.md"],
        ["card", "run=central"],
        ["card", "run=unfinished"],
        ["card", "run=hostile"],
        ["card", "run=central", "out=x.md", "license=My own"],
        ["card", "out=x.md"],
        ["card", "run=unprotected"],
        ["card", "run=central", "out=hub", "license=cc-by-4.0"],
        ["card", "run=central", "out=hub"],
        ["card", "run=central", "out=card.txt"],
        ["card", "run=hostile", "out=changed"],
    ]
    return folder, run_many([(folder, line) for line in lines])


def _parts(path: Path) -> tuple[dict[str, object], str]:
    _, header, text = path.read_text().split("---\n", 2)
    return yaml.safe_load(header), text


def test_the_header_is_what_the_hub_reads(carded: Played) -> None:
    folder, outcomes = carded
    assert outcomes[0].code == outcomes[1].code == 0, outcomes[:2]
    header, _ = _parts(folder / "central" / "README.md")
    assert header == {
        "license": "cc-by-4.0",
        "library_name": "fedsink",
        "tags": [
            "differential-privacy", "federated-learning", "synthetic-data", "dp-sinkhorn",
            "class-conditional",
        ],
        "pipeline_tag": "unconditional-image-generation",
        "metrics": ["accuracy"],
        "model-index": header["model-index"],
    }  # fmt: skip
    (model,) = header["model-index"]  # type: ignore[attr-defined]
    (result,) = model["results"]
    assert model["name"] == "digits: synthetic pictures under differential privacy"
    assert result["task"]["type"] == "image-classification"
    assert result["dataset"] == {"type": "digits", "name": "digits", "split": "test"}
    values = {metric["name"]: metric["value"] for metric in result["metrics"]}
    assert values == {"accuracy of logreg": 0.8123, "accuracy of cnn": 0.9}
    assert {metric["type"] for metric in result["metrics"]} == {"accuracy"}
    header, _ = _parts(folder / "deep" / "ldp.md")
    assert header["license"] == "unknown"
    assert not {"metrics", "model-index"} & set(header)
    assert "has not been evaluated: fedsink evaluate run=" in outcomes[1].err


def test_a_card_says_what_a_reader_needs(carded: Played) -> None:
    folder, _ = carded
    _, text = _parts(folder / "central" / "README.md")
    stated = json.loads((folder / "central" / "privacy.json").read_text())
    for part in (
        f"**ε = {number(stated['epsilon'])},", f"δ = {number(stated['delta'])} per record",
        stated["adjacency"], stated["protected"], stated["not_protected"], stated["noise_meaning"],
        "Without amplification by sampling", "| steps | 20 |", "| sampling rate | 0.2 |",
        "Computed on real data, not private", "| logreg | 81.2 % | 95.0 % |",
        "## Intended use", "## Limits", "balanced=true out=samples.parquet",
    ):  # fmt: skip
        assert part in text
    _, text = _parts(folder / "deep" / "ldp.md")
    assert "The generator has not been evaluated." in text
    assert "privatized records, once" in text
    assert "**ε = 35, δ = 0" in text


def test_a_card_promises_nothing_where_nothing_is_protected(carded: Played) -> None:
    folder, outcomes = carded
    assert outcomes[7].code == 0, outcomes[7].err
    header, text = _parts(folder / "unprotected" / "README.md")
    assert "differential-privacy" not in header["tags"]  # type: ignore[operator]
    assert "**None: ε = ∞.** Nothing." in text
    assert "without protection" in text
    assert "no person is protected" in text
    for claim in ("under differential privacy", "clipped and noised", "may not leave", "guarantee"):
        assert claim not in text


@pytest.mark.parametrize("name", ["central/README.md", "deep/ldp.md"])
def test_a_card_holds_no_path_key_or_count(carded: Played, name: str) -> None:
    folder, _ = carded
    text = (folder / name).read_text()
    run = folder / ("central" if "central" in name else "ldp")
    config = yaml.safe_load((run / "config.yaml").read_text())
    partition = json.loads((run / "partition.json").read_text())
    counts = {str(client["records"]) for client in partition["clients"].values()}
    for secret in (str(folder), str(Path.home()), socket.gethostname(), config["run"]["name"],
                   str(config["run"]["server_seed"]) if config["seed"] is None else "key_file",
                   os.environ["XDG_STATE_HOME"], *counts):  # fmt: skip
        assert not re.search(rf"(?<![\w.]){re.escape(secret)}(?![\w.])", text)
    assert not re.search(r"(?<![\w:/.])/(home|root|tmp|Users|var)/", text)


def test_a_folder_for_the_hub_holds_what_was_released_and_nothing_else(carded: Played) -> None:
    folder, outcomes = carded
    hub, run = folder / "hub", folder / "central"
    assert outcomes[8].code == 0, outcomes[8].err
    assert outcomes[8].last == "hub"
    released = {"generator.safetensors", "generator.json", "privacy.json"}
    assert {path.name for path in hub.iterdir()} == released | {
        "README.md",
        "SHA256SUMS",
        "samples.png",
    }
    for name in released:
        assert (hub / name).read_bytes() == (run / name).read_bytes()
    assert (hub / "README.md").read_text() == (run / "README.md").read_text()
    assert "![Samples of the generator](samples.png)" in (hub / "README.md").read_text()
    with Image.open(hub / "samples.png") as picture:
        assert picture.width > 100
        assert len(set(picture.convert("L").getdata())) > 10
    assert (run / "samples.png").read_bytes() == (hub / "samples.png").read_bytes()


def test_the_hub_itself_reads_the_folder(carded: Played) -> None:
    card = ModelCard.load(carded[0] / "hub" / "README.md")
    assert [(r.metric_type, r.metric_value) for r in card.data.eval_results] == [
        ("accuracy", 0.8123),
        ("accuracy", 0.9),
    ]
    assert card.data.pipeline_tag == "unconditional-image-generation"


_OBSERVED = {
    "latent_range": 1.3,
    "deformation": {"std": 0.05, "length": 0.12},
    "noise": {"std": 0.02, "cutoff": 0.43},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["central", "ldp"])
def test_the_example_of_a_card_draws_what_fedsink_draws(
    carded: Played, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(carded[0] / name, run)
    (run / "README.md").unlink(missing_ok=True)
    (run / "samples.png").unlink(missing_ok=True)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["observation"] = _OBSERVED
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (done,) = run_many([(tmp_path, ["card", "run=run", "out=hub"])])
    assert done.code == 0, done.err
    example = re.search(r"```python\n(.*?)```", (tmp_path / "hub" / "README.md").read_text(), re.S)
    assert example is not None
    finished = open_run(str(run))
    pictures, labels = finished.draw(100, 0, balanced=len(finished.prior) > 1)
    drawn = example[1].replace('Stream(b"any seed")', 'Stream(b"sample|0", "sample")')
    drawn = re.sub(r"labels = .*", f"labels = torch.tensor({labels.tolist()})", drawn)
    drawn += "torch.save(pictures, 'pictures.pt')"
    again = subprocess.run(
        [sys.executable, "-c", drawn],
        cwd=tmp_path / "hub", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert again.stdout == "(100, 1, 8, 8)\n", again.stderr
    assert torch.equal(torch.load(tmp_path / "hub" / "pictures.pt"), pictures)
    assert not torch.equal(open_run(str(run), observed=False).draw(100, 0)[0], pictures)


@pytest.mark.slow
def test_the_commands_of_a_card_repeat_the_run(carded: Played) -> None:
    folder, _ = carded
    _, text = _parts(folder / "central" / "README.md")
    sample, simulate = (shlex.split(c) for c in re.findall(r"```bash\nfedsink (.*)\n```", text))
    sample = [word.replace("run=RUN", "run=again").replace("n=60000", "n=30") for word in sample]
    again, drawn = run_many([(folder, [*simulate, "hydra.run.dir=again"]), (folder, sample)])
    assert (again.code, drawn.code) == (0, 0), again.err + drawn.err
    name = "generator.safetensors"
    assert (folder / "again" / name).read_bytes() == (folder / "central" / name).read_bytes()


def test_what_a_server_states_is_text(carded: Played) -> None:
    folder, _ = carded
    text = (folder / "hostile" / "README.md").read_text()
    assert "<script" not in text
    assert (
        "- **Protected:** x # &lt;script>alert(1)&lt;/script> \\| \\`y\\` !\\[z](http://z)\n"
        in text
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (2, "README.md exists already: remove it or give another out=."),
        (3, "has not finished: fedsink simulate resume="),
        (5, "license=My own: expected a name such as cc-by-4.0"),
        (6, "run= is missing; fedsink card --help says what to give."),
        (9, "hub exists already: remove it or give another out=."),
        (10, "out=card.txt must end in .md, or have no ending to name a folder."),
        (11, "privacy.json has another SHA-256 than SHA256SUMS says: it was changed after the"),
    ],
)
def test_what_gives_no_card_is_one_sentence(carded: Played, line: int, message: str) -> None:
    folder, outcomes = carded
    assert not (folder / "changed").exists()
    assert outcomes[line].code == 2
    assert message in outcomes[line].err
    assert outcomes[line].err.count("\n") == 1
