"""A model card of a run, and the folder around it, as Hugging Face's Hub reads them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedsink import __version__
from fedsink.files import new_folder
from fedsink.models import Observation
from fedsink.reporting.displays import printable
from fedsink.reporting.output_files import RELEASED
from fedsink.reporting.typed import typed_command
from fedsink.results.pages.evaluation_tables import accuracies
from fedsink.results.pages.page import environment, number
from fedsink.server.folder import RecordedRun, RunFolder, cautions, check_sums, note_sums
from fedsink.values import Config, checks

PICTURE = "samples.png"
"""Name of the picture that a card shows; it lies beside the card."""

_ON_THE_HUB = {
    "mnist": "ylecun/mnist", "fashion_mnist": "zalando-datasets/fashion_mnist",
    "celeba": "flwrlabs/celeba", "femnist": "flwrlabs/femnist",
}  # fmt: skip


def model_card(run: RecordedRun, privacy: Config, result: Config, license: str) -> str:
    """Writes the card, in Markdown with a YAML header.

    Guarantees:
        - The card holds no path, no key and no count of the partition: its sources are
          config.yaml's public settings, privacy.json, metrics.json and evaluation*.json.

    Raises:
        ConfigError: huggingface_hub is not installed.
    """
    hub, config, command = checks.require("huggingface_hub"), run.config, typed_command(run.config)
    name, pictures = config["data"]["name"], len(config["data"]["shape"]) == 3
    private, conditional = privacy["epsilon"] is not None, len(result["label_prior"]) > 1
    title = f"{name}: synthetic {'pictures' if pictures else 'points'}" + (
        " under differential privacy" if private else ", without protection"
    )
    evaluations = [figures for figures in run.evaluations.values() if figures.get("accuracy")]
    header = hub.ModelCardData(
        license=license,
        library_name="fedsink",
        tags=[
            *(["differential-privacy"] if private else []), "federated-learning", "synthetic-data",
            str(config["strategy"]["name"]).replace("_", "-"),
            *(["class-conditional"] if pictures and conditional else []),
        ],
        # The Hub's task for generators without a prompt, of labelled pictures too.
        pipeline_tag="unconditional-image-generation" if pictures else None,
        datasets=_ON_THE_HUB.get(name),
        metrics=["accuracy"] if evaluations else None,
        model_name=title if evaluations else None,
        eval_results=[
            hub.EvalResult(
                task_type="image-classification",
                task_name=f"Train on {figures['n']} synthetic images, test on real ones",
                dataset_type=_ON_THE_HUB.get(name, name), dataset_name=name, dataset_split="test",
                metric_type="accuracy", metric_name=f"accuracy of {classifier}", metric_value=value,
            )
            for figures in evaluations
            for classifier, value in figures["accuracy"].items()
        ] or None,
    )  # fmt: skip
    reader = environment().overlay(autoescape=False, finalize=_text)
    return reader.get_template("card.md.j2").render(
        header=Markup(header.to_yaml()), title=title, picture=PICTURE, version=__version__,
        config=config, privacy=privacy, result=result, private=private, pictures=pictures,
        clients=number(checks.count("clients", config["clients"])),
        number=number, cautions=cautions(privacy, config),
        evaluations=[_measured(figures) for figures in evaluations],
        law=Markup(config.get("observation", {})), mix=Markup(result["label_prior"]),
        mixed=len(set(result["label_prior"])) > 1, conditional=conditional,
        observed=not Observation.from_dict(config.get("observation", {})).changes_nothing,
        command=command and Markup(printable(command)),  # a line break would end its block of code
    )  # fmt: skip


def _measured(evaluation: Config) -> dict[str, Any]:
    """Returns the accuracies of classifiers that saw only the generator's pictures."""
    runs = len(evaluation.get("seeds", [0]))
    observed = "" if evaluation.get("observation", True) else ", without the observation model"
    caption = f"Accuracy over {runs} run{'s' * (runs > 1)}{observed}"
    rows = [[name, *cells[:2]] for name, cells in accuracies(evaluation).items()]
    return {"caption": caption, "n": evaluation["n"], "rows": rows}


def write_publication(out: Path, run: Path, card: str, picture: bytes) -> None:
    """Writes a folder with a card, its picture and the released files of a run, or nothing.

    Guarantees:
        - The folder holds `RELEASED`, the nodes' statements, their SHA256SUMS, README.md and the
          picture, and no other file of the run. None was changed after the run's end.
    """
    check_sums(run, (*RELEASED, RunFolder(run).nodes.name))
    with new_folder(out) as folder:
        for name in (*RELEASED, RunFolder(run).nodes.name):
            if name in RELEASED or (run / name).is_file():  # statements are of real nodes
                shutil.copyfile(run / name, folder / name)
        note_sums(folder)
        (folder / PICTURE).write_bytes(picture)
        (folder / "README.md").write_text(card, encoding="utf-8")


def _text(value: object) -> object:
    """Writes a value in one line, so that Markdown sees no HTML, table, heading or link in it."""
    if isinstance(value, Markup):
        return value
    line = " ".join(str(value).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\|`\[]", r"\\\g<0>", line)
