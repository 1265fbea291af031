"""A model card of a run, and the folder around it, as Hugging Face's Hub reads them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsink import __version__
from fedsink.conf.typed import typed_command
from fedsink.models import Observation
from fedsink.pages.page import number
from fedsink.reporting.displays import printable
from fedsink.reporting.drawing import save_grid, save_points
from fedsink.reporting.output_files import RELEASED, new_folder
from fedsink.server.finished import FinishedRun
from fedsink.server.folder import RunFolder, check_sums, note_sums
from fedsink.server.recorded import RecordedRun, cautions
from fedsink.values import Config

PICTURE = "samples.png"
"""Name of the picture that a card shows; it lies beside the card."""

_SHOWN_OF_A_CLASS, _SHOWN_POINTS = 10, 1000
_ON_THE_HUB = {
    "mnist": "ylecun/mnist",
    "fashion_mnist": "zalando-datasets/fashion_mnist",
    "celeba": "flwrlabs/celeba",
    "femnist": "flwrlabs/femnist",
}
_LEAVES = {
    "central": "in every round each of them sent a clipped and noised gradient, and nothing else.",
    "ldp": "each of them sent privatized records, once, and nothing else.",
}
_UNPROTECTED = "in every round each of them sent a gradient, neither clipped nor noised."
_STATED = {
    "central": {
        "mechanism": "mechanism",
        "sigma": "noise multiplier σ",
        "rounds_per_record": "rounds that use one record",
        "rate": "sampling rate",
        "clip": "clip",
        "clip_bound": "clip bound",
    },
    "ldp": {"mechanism": "mechanism", "sigma": "scale of the image noise"},
}
"""Entries of privacy.json for each mode, and their names on a card."""


def model_card(run: RecordedRun, privacy: Config, result: Config, license: str) -> str:
    """Writes the card, in Markdown with a YAML header.

    Guarantees:
        - The card holds no path, no key and no count of the partition: its sources are
          config.yaml's public settings, privacy.json, metrics.json and evaluation*.json.

    Args:
        run: a finished run.
        privacy: content of its privacy.json.
        result: content of its metrics.json.
        license: of the generator, by its name on the Hub.

    Raises:
        CheckpointError: an evaluation is damaged.
    """
    config = run.config
    data, mode = config["data"], config["mode"]
    pictures, classes = len(data["shape"]) == 3, len(result["label_prior"])
    records = "pictures" if pictures else "points"
    command = typed_command(config)
    clients = privacy["clients"] if mode == "ldp" else len(privacy["clients"])
    evaluations = [_evaluation(e) for e in run.evaluations.values() if e.get("accuracy")]
    shape = "×".join(map(str, data["shape"]))
    private = privacy["epsilon"] is not None
    kind = f"{classes} classes of " if classes > 1 else ""
    title = f"{data['name']}: synthetic {records}"
    title += " under differential privacy" if private else ", without protection"
    law = config.get("observation", {})
    observed = not Observation.from_dict(law).changes_nothing
    mix = result["label_prior"]
    mixed = min(mix) < max(mix)
    return _environment().get_template("card.md.j2").render(
        header=Markup(_header(config, private, title, run.evaluations.values(), license)),
        title=title,
        picture=PICTURE,
        what=f"A generator of {kind}{records} of the shape {shape} ({data['name']}).",
        leaves=_LEAVES[mode] if private else _UNPROTECTED,
        clients=clients,
        version=__version__,
        privacy=privacy,
        cautions=cautions(privacy, config),
        training=_training(config, privacy, result),
        evaluations=evaluations,
        records=records,
        conditional=classes > 1,
        shape=f"(n, {', '.join(map(str, data['shape']))})",
        classes=classes,
        map=bool(privacy.get("map")),
        mix=Markup(mix) if mixed else None,
        observation=Markup(law) if observed else None,
        options=Markup(
            ", mix=mix" * mixed + ", latent_range=observe.latent_range" * observed
        ),
        observed=observed,
        sampling=Markup(
            "fedsink sample run=RUN n=60000 "
            + ("balanced=true " if classes > 1 else "")
            + ("out=samples.parquet" if pictures else "out=samples.npz")
        ),
        command=command and Markup(printable(command)),  # a line break would end its block of code
        places=any(word in (command or "") for word in ("FOLDER", "FILE", "ADDRESS")),
        repeatable=config.get("seed") is not None,
    )  # fmt: skip


def sampled_picture(run: FinishedRun) -> bytes:
    """Draws ten samples of each class, or a thousand points, with the observation model; PNG."""
    names, points = run.names, len(run.data.shape) == 1
    n = _SHOWN_POINTS if points else _SHOWN_OF_A_CLASS * len(names)
    samples, labels = run.draw(n, 0, balanced=len(names) > 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PICTURE
        if points:
            save_points(torch.nn.functional.pad(samples, (0, 1))[:, :2], path)
        else:
            save_grid(samples, labels, names, path, columns=_SHOWN_OF_A_CLASS)
        return path.read_bytes()


def write_publication(out: Path, run: Path, card: str, picture: bytes) -> None:
    """Writes a folder with a card, its picture and the released files of a run.

    Guarantees:
        - The folder holds `RELEASED`, the nodes' statements, their SHA256SUMS, README.md and the
          picture, and no other file of the run.

    Raises:
        CheckpointError: a file of the run was changed after the run's end.
        OSError: it cannot be written; then there is no folder `out`.
    """
    check_sums(run, (*RELEASED, RunFolder(run).nodes.name))
    with new_folder(out) as folder:
        for name in RELEASED:
            shutil.copyfile(run / name, folder / name)
        statements = RunFolder(run).nodes
        if statements.is_file():  # of real nodes
            shutil.copyfile(statements, folder / statements.name)
        note_sums(folder)
        (folder / PICTURE).write_bytes(picture)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _header(
    config: Config, private: bool, title: str, evaluations: Iterable[Config], license: str
) -> str:
    name, pictures = config["data"]["name"], len(config["data"]["shape"]) == 3
    header: dict[str, Any] = {
        "license": license,
        "library_name": "fedsink",
        "tags": [
            *(["differential-privacy"] if private else []),
            "federated-learning",
            "synthetic-data",
            str(config["strategy"]["name"]).replace("_", "-"),
        ],
    }
    if pictures:  # the Hub's task for generators without a prompt, of labelled pictures too
        header["pipeline_tag"] = "unconditional-image-generation"
        header["tags"] += ["class-conditional"] if config.get("conditional", True) else []
    if name in _ON_THE_HUB:
        header["datasets"] = [_ON_THE_HUB[name]]
    results = [
        {
            "task": {
                "type": "image-classification",
                "name": f"Train on {evaluation['n']} synthetic images, test on real ones",
            },
            "dataset": {"type": _ON_THE_HUB.get(name, name), "name": name, "split": "test"},
            "metrics": [
                {"type": "accuracy", "name": f"accuracy of {classifier}", "value": value}
                for classifier, value in evaluation["accuracy"].items()
            ],
        }
        for evaluation in evaluations
        if evaluation.get("accuracy")
    ]
    if results:
        header["metrics"] = ["accuracy"]
        header["model-index"] = [{"name": title, "results": results}]
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True)


def _training(config: Config, privacy: Config, result: Config) -> list[tuple[str, str]]:
    """Returns the public facts about the training, by name."""
    rows = [
        ("privacy model", config["mode"]),
        ("method", config["strategy"]["name"]),
        ("generator", config["generator"]["name"]),
        ("steps", result["rounds"]),
    ]
    if start := privacy.get("start"):
        rows.append(
            ("weights before round 1", f"{start['records']} public records: {start['data']}")
        )
    stated = _STATED[config["mode"]]
    rows += [(name, privacy[key]) for key, name in stated.items() if privacy.get(key) is not None]
    return [(name, number(v) if isinstance(v, int | float) else str(v)) for name, v in rows]


def _evaluation(evaluation: Config) -> dict[str, Any]:
    """Returns the accuracies of classifiers that saw only the generator's pictures."""
    figures = evaluation.get("figures", {})
    real = evaluation.get("real_accuracy", {})
    rows = []
    for name, accuracy in evaluation["accuracy"].items():
        figure = figures.get(f"accuracy/{name}", {})
        ceiling = (figure.get("real") or {}).get("mean", real.get(name))
        sd = (figure.get("synthetic") or {}).get("sd")
        spread = "" if not sd else f" ± {100 * sd:.1f}"
        row = [name, f"{100 * accuracy:.1f}{spread} %"]
        rows.append([*row, "–" if ceiling is None else f"{100 * ceiling:.1f} %"])
    known = any(row[2] != "–" for row in rows)
    observed = "" if evaluation.get("observation", True) else ", without the observation model"
    seeds = evaluation.get("seeds", [evaluation.get("seed", 0)])
    return {
        "caption": f"Accuracy over {len(seeds)} {'run' if len(seeds) == 1 else 'runs'}{observed}",
        "n": evaluation["n"],
        "real": known,
        "rows": rows if known else [row[:2] for row in rows],
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedsink", "pages"),
        autoescape=False,
        finalize=_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment


def _text(value: object) -> object:
    """Writes a value in one line, so that Markdown sees no HTML, table, heading or link in it."""
    if isinstance(value, Markup):
        return value
    line = " ".join(str(value).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\|`\[]", r"\\\g<0>", line)
