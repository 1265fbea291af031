"""A model card of a run, as Hugging Face's Hub reads it."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsink import __version__
from fedsink.pages.command_line import CommandLine
from fedsink.pages.page import number
from fedsink.server.recorded import RecordedRun
from fedsink.values import Config

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
    line = CommandLine.of(config)
    clients = privacy["clients"] if mode == "ldp" else len(privacy["clients"])
    evaluations = [_evaluation(e) for e in run.evaluations.values() if e.get("accuracy")]
    shape = "×".join(map(str, data["shape"]))
    private = privacy["epsilon"] is not None
    kind = f"{classes} classes of " if classes > 1 else ""
    return _environment().get_template("card.md.j2").render(
        header=Markup(_header(config, private, bool(evaluations), license)),
        title=f"{data['name']}: synthetic {records}"
        + (" under differential privacy" if private else ", without protection"),
        what=f"A generator of {kind}{records} of the shape {shape} ({data['name']}).",
        leaves=_LEAVES[mode] if private else _UNPROTECTED,
        clients=clients,
        version=__version__,
        privacy=privacy,
        training=_training(config, privacy, result),
        evaluations=evaluations,
        records=records,
        conditional=classes > 1,
        shape=f"(n, {', '.join(map(str, data['shape']))})",
        observed=pictures,
        sampling=Markup(
            "fedsink sample run=RUN n=60000 "
            + ("balanced=true " if classes > 1 else "")
            + ("out=samples.parquet" if pictures else "out=samples.npz")
        ),
        command=Markup(line.command),
        places=any(word in line.command for word in ("FOLDER", "FILE", "ADDRESS")),
        repeatable=config.get("seed") is not None,
    )  # fmt: skip


def _header(config: Config, private: bool, evaluated: bool, license: str) -> str:
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
    if len(config["data"]["shape"]) == 3:
        header["pipeline_tag"] = "unconditional-image-generation"
    if config["data"]["name"] in _ON_THE_HUB:
        header["datasets"] = [_ON_THE_HUB[config["data"]["name"]]]
    if evaluated:
        header["metrics"] = ["accuracy"]
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True)


def _training(config: Config, privacy: Config, result: Config) -> list[tuple[str, str]]:
    """Returns the public facts about the training, by name."""
    rows = [
        ("privacy model", config["mode"]),
        ("method", config["strategy"]["name"]),
        ("generator", config["generator"]["name"]),
        ("steps", result["rounds"]),
    ]
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
    """Writes a value in one line, so that Markdown sees no HTML, table or heading in it."""
    if isinstance(value, Markup):
        return value
    line = " ".join(str(value).split())
    return line.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
