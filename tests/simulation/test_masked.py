"""A simulation that runs the whole protocol of secure aggregation, against one that adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedsink.clients.node_cohort import NodeCohort
from fedsink.errors import ClientError, ConfigError, PrivacyError
from fedsink.protocol.exchange import MessageList
from fedsink.server import checkpoint, masked_grid
from fedsink.simulation.simulated_run import start

from .conftest import Compose, weights

SHARED = (
    *("clients=5", "rounds=3", "seed=3", "strategy.schedule=joint"),
    *("noise.share=secure_aggregation", "noise.tolerate_dropouts=1"),
)
MASKED = (*SHARED, "noise.masked=true")
METHODS = {
    "record": ("clip=record", "strategy.uses_per_message=2"),
    "batch": ("clip=batch",),
    "parameter_gradient": ("strategy=parameter_gradient",),
}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.medium
def test_no_message_that_was_unmasked_is_asked_again(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes have forgotten it: the checkpoint is written after every one."""
    rounds, save = [], checkpoint.save

    def saved(folder: Path, tensors: Any, values: Any) -> None:
        rounds.append(values["round"])
        save(folder, tensors, values)

    monkeypatch.setattr(checkpoint, "save", saved)
    start(composed(*MASKED, "clip=record"), tmp_path / "masked")
    assert {1, 2, 3} <= set(rounds)
    rounds.clear()
    start(composed(*SHARED, "clip=record"), tmp_path / "plain")
    assert set(rounds) == {3}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that do not mask compute one by one, too: float32 sums depend on the batch."""
    monkeypatch.setattr(NodeCohort, "handles", lambda cohort, message_type: False)


@pytest.mark.medium
def test_masks_change_no_bit_of_what_many_clients_compute_at_once(
    composed: Compose, tmp_path: Path
) -> None:
    plain = start(composed(*SHARED, "clip=record", "noise.draw=clients"), tmp_path / "plain")
    masked = start(composed(*MASKED, "clip=record"), tmp_path / "masked")
    assert weights(masked) == weights(plain)


RUNS = {
    **{name: (*SHARED, *keys) for name, keys in METHODS.items()},
    "critics": (
        *("experiment=gs_wgan_digits_clients", "clients=4", "rounds=2", "seed=3"),
        "noise.share=secure_aggregation",
    ),
    "each class a cohort": (
        *("clients=30", "rounds=2", "seed=3", "strategy.schedule=class", "clip=batch"),
        "noise.share=secure_aggregation",
    ),
}


@pytest.mark.medium
@pytest.mark.quick("record", "critics", "each class a cohort")
@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize(
    "run", ["record", *(pytest.param(r, marks=pytest.mark.medium) for r in RUNS if r != "record")]
)
def test_masks_change_no_bit_of_the_generator(composed: Compose, tmp_path: Path, run: str) -> None:
    plain = start(composed(*RUNS[run], "noise.draw=clients"), tmp_path / "plain")
    masked = start(composed(*RUNS[run], "noise.masked=true"), tmp_path / "masked")
    assert weights(masked) == weights(plain)
    assert [line.get("loss") for line in lines(masked)] == [
        line.get("loss") for line in lines(plain)
    ]
    stated = json.loads((masked / "privacy.json").read_text())
    assert "participation" not in stated
    shared = stated["noise_share"]
    assert shared["masked"]
    assert "Replies are masked" in shared["assumptions"]["aggregation"]
    assert "void" in shared["assumptions"]["dropout"]
    unmasked = json.loads((plain / "privacy.json").read_text())["noise_share"]
    assert not unmasked["masked"]
    assert unmasked["epsilon"] == shared["epsilon"]


@pytest.mark.medium
@pytest.mark.parametrize(
    "keys",
    [
        *((*MASKED, *more) for more in METHODS.values()),
        ("experiment=gs_wgan_digits_clients", "clients=4", "rounds=3", "seed=3", *MASKED[4:]),
        (*MASKED[1:], "clients=30", "strategy.schedule=class", "noise.tolerate_dropouts=0"),
    ],
    ids=[*METHODS, "gs_wgan", "classes"],
)
def test_every_method_announces_its_next_message(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    """Only the first message asks for keys and shares by messages of their own."""
    asked: list[str] = []

    def noted(messages: list[Message], needed: int) -> MessageList:
        asked.append(messages[0].metadata.message_type)
        return MessageList(messages, needed)

    monkeypatch.setattr(masked_grid, "MessageList", noted)
    start(composed(*keys), tmp_path / "run")
    messages = [kind for kind in asked if kind.startswith("train.")]
    assert len(messages) > 1
    three = [messages[0], "query.aggregation_survivors", "query.aggregation_unmask"]
    first = ["query.aggregation_keys", "query.aggregation_shares"]
    assert asked == [*first, *three * len(messages)]


@pytest.mark.medium
def test_clients_disappear_and_messages_are_void(composed: Compose, tmp_path: Path) -> None:
    keys = (*MASKED, "rounds=12", "noise.dropouts=0.04")
    folder = start(composed(*keys), tmp_path / "run")
    records = lines(folder)
    assert [line["round"] for line in records] == list(range(1, 13))
    void = [line for line in records if "void" in line]
    some = [line for line in records if "void" not in line and line.get("absent")]
    assert void
    assert some
    assert all("loss" not in line and line["absent"] == list(range(5)) for line in void)
    assert all(len(line["absent"]) == 1 and line["loss"] > 0 for line in some)
    assert "is void" in void[0]["void"][0]
    epsilons = [line["epsilon"] for line in records]
    assert epsilons == sorted(epsilons)  # void rounds count
    stated = json.loads((folder / "privacy.json").read_text())["participation"]
    assert stated["void"] == len(void)
    assert sum(row["messages"] for row in stated["missed"]) == 5 * len(void) + len(some)
    assert weights(start(composed(*keys), tmp_path / "again")) == weights(folder)


@pytest.mark.medium
def test_void_messages_in_a_row_end_the_run(composed: Compose, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"last 5 messages were void.*tolerate_dropouts"):
        start(composed(*MASKED, "rounds=12", "noise.dropouts=0.6"), tmp_path / "run")
    assert len(lines(tmp_path / "run")) == 4


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keys", "error", "told"),
    [
        (("noise.masked=true",), PrivacyError, "belongs to noise.share=secure_aggregation"),
        ((*MASKED, "noise.draw=sum"), PrivacyError, "draw=sum makes no client's reply"),
        ((*MASKED, "noise.tolerate_dropouts=2"), ConfigError, r"at least 4 of the 5 .* leaves 3"),
        (
            ("noise.share=secure_aggregation", "noise.masked=true", "strategy.schedule=class"),
            ConfigError,
            "a masked sum needs two",
        ),
        ((*MASKED, "noise.dropouts=1"), ConfigError, "below 1"),
        ((*MASKED, "noise.masked=1"), ConfigError, "noise.masked"),
    ],
)
def test_settings_that_masks_cannot_keep_are_refused(
    composed: Compose, tmp_path: Path, keys: tuple[str, ...], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        start(composed(*keys), tmp_path / "run")
    assert not (tmp_path / "run").exists()
