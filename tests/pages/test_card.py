"""What a card says of a run; tests/commands/test_card.py has the command."""

from __future__ import annotations

from typing import Any

import pytest

from fedsink.pages.card import model_card
from fedsink.reporting import write_json
from fedsink.server.recorded import RecordedRun

from .conftest import Begin

RESULT = {"rounds": 20, "label_prior": [0.1] * 10}


def card(begin: Begin, *overrides: str, **evaluation: Any) -> str:
    folder = begin(*overrides)
    if evaluation:
        write_json(folder.path / "evaluation-paper.json", {"n": 40, **evaluation})
    run = RecordedRun.of(folder.path)
    return model_card(run, run.privacy or {}, RESULT, "mit")


def test_real_data_stand_beside_the_generator_and_class_means_do_not(begin: Begin) -> None:
    columns = {
        "synthetic": {"mean": 0.8123, "sd": 0.01},
        "real": {"mean": 0.951},
        "class_means": {"mean": 0.642},
    }
    text = card(
        begin, "mode=central",
        accuracy={"cnn": 0.8123}, figures={"accuracy/cnn": columns}, seeds=[3, 4],
    )  # fmt: skip
    assert "| cnn | 81.2 ± 1.0 % | 95.1 % |" in text
    assert "Accuracy over 2 runs:" in text
    assert "64.2" not in text


@pytest.mark.parametrize("observed", [True, False])
def test_figures_without_the_observation_model_say_so(begin: Begin, observed: bool) -> None:
    text = card(begin, "mode=central", accuracy={"cnn": 0.5}, observation=observed)
    assert ("Accuracy over 1 run, without the observation model:" in text) != observed
    assert ("Accuracy over 1 run:" in text) == observed


@pytest.mark.parametrize(
    ("data", "observed"), [((), True), (("mode=ldp", "data=half_circle"), False)]
)
def test_pictures_are_drawn_with_the_observation_model(
    begin: Begin, data: tuple[str, ...], observed: bool
) -> None:
    assert ("(with its observation model)" in card(begin, *data)) == observed
