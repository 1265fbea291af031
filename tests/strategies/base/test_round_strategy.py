"""Rounds that some clients miss: division by the answers, and no trace of the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from torch import Tensor

from fedsink.errors import ClientError, ConfigError
from fedsink.privacy import NoiseShare
from fedsink.protocol.failure_codes import REFUSED
from fedsink.protocol.requests import unpack_replies
from fedsink.simulation.grid import client_of, node_of
from fedsink.strategies.base.round_strategy import Quorum, check_quorum

from ...support.playing import collect


def one_round(strategy: Any, grid: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Any, Any]:
    """The step's gradient, the metrics, and the replies by client."""
    steps: list[Tensor] = []

    def step(output: Tensor, gradient: Tensor, number: int) -> None:
        steps.append(gradient)

    monkeypatch.setattr(strategy.trainer, "step", step)
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    _, metrics = strategy.aggregate_train(1, replies)
    return steps[0], dict(metrics or {}), {client_of(r.metadata.src_node_id): r for r in replies}


def gradients(replies: dict[int, Message], clients: Collection[int]) -> Tensor:
    return torch.stack([unpack_replies(replies[client].content)[0] for client in clients]).double()


@pytest.mark.parametrize("clip", ["record", "batch"])
@pytest.mark.parametrize("refuses", [False, True])
def test_the_mean_is_over_those_who_answered(make_central, make_grid, monkeypatch, clip, refuses):
    grid, whole = make_grid(), make_grid()
    full = make_central(schedule="joint", clip=clip)
    part = make_central(schedule="joint", clip=clip, quorum=2)
    expected, _, replies = one_round(full, whole, monkeypatch)
    if refuses:
        grid.fail(1, REFUSED)
    else:
        grid.lose(1)
    gradient, metrics, _ = one_round(part, grid, monkeypatch)
    seen = part.layout.groups * part.layout.group_rows
    difference = (
        gradients(replies, [0, 2]).mean(0) - gradients(replies, [0, 1, 2]).mean(0)
    ) / part.settings.gradient_scale
    assert seen == len(difference)
    assert torch.allclose(gradient, expected + difference, atol=1e-9)
    assert part.absent == [1]
    assert part.missed == {1: 1}
    std = part.settings.plan.noise_std
    assert metrics["mean_noise_std"] == pytest.approx(std / 2**0.5)
    assert "mean_noise_std" not in dict(one_round(make_central(), make_grid(), monkeypatch)[1])


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_rows_that_nobody_answered_about_leave_the_step(make_central, make_grid, monkeypatch, clip):
    """The self term leaves as well: without the gradient it would push the rows apart."""
    full, part = make_central(clip=clip), make_central(clip=clip, quorum=0.5)
    expected, _, _ = one_round(full, make_grid(), monkeypatch)
    grid = make_grid()
    grid.lose(1)
    gradient, metrics, _ = one_round(part, grid, monkeypatch)
    (rows,) = part._rounds
    label = part.layout.label(1, rows.round)
    labels = part.layout.row_labels(rows.kinds).flatten()
    assert bool((expected[labels == label] != 0).any())
    assert not bool(gradient[labels == label].any())
    assert torch.equal(gradient[labels != label], expected[labels != label])
    assert metrics["mean_noise_std"] == pytest.approx(part.settings.plan.noise_std)


def test_answers_are_in_the_clients_order_whoever_was_first(make_central, make_grid):
    grid, strategy = make_grid(), make_central()
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    found = strategy.answers(replies[::-1], "answering", range(3), lambda client, _: client)
    assert list(found) == [0, 1, 2]


def test_every_message_that_a_client_misses_is_counted(make_central, make_grid):
    grid, strategy = make_grid(), make_central(schedule="joint", quorum=2)
    for number, missing in enumerate((1, 1, 2), start=1):
        grid.lose(missing)
        messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
    assert strategy.missed == {1: 2, 2: 1}
    assert strategy.absent == [2]


def test_signal_to_noise_counts_those_who_answered(make_central):
    settings = make_central(clients=6).settings
    alone = settings.signal_to_noise(1e9, [2, 2, 2])["signal_to_noise"]
    less = settings.signal_to_noise(1e9, [1, 0, 1])["signal_to_noise"]
    assert less == pytest.approx(alone * (1.5 / 2) ** 0.5, rel=1e-3)


def test_fewer_than_the_quorum_are_refused_and_change_nothing(make_central, make_grid):
    grid, strategy = make_grid(), make_central(quorum=2)
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    before = {name: value.clone() for name, value in strategy.state()[0].items()}
    assert messages.needed == 2
    grid.lose(1, 2)
    with pytest.raises(ClientError, match=r"2 of 3 clients did not answer \(client 1 first\)"):
        strategy.aggregate_train(1, grid.send_and_receive(messages))
    after = strategy.state()[0]
    assert (strategy.round, strategy.missed) == (0, {})
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("chunk", [0, 1])
def test_a_client_that_stops_uploading_is_left_out_with_all_of_its_records(
    make_local, make_grid, chunk
):
    whole, part = make_local(chunk_size=8), make_local(chunk_size=8, quorum=2)
    collect(whole, make_grid())
    grid, chunks = make_grid(), []

    def change(replies: list[Message]) -> list[Message]:
        chunks.append(len(replies))
        late = len(chunks) > chunk
        return [r for r in replies if not (late and r.metadata.src_node_id == node_of(1))]

    grid.change = change
    collect(part, grid)
    assert part.absent == [1]
    assert part.missed == {1: 1}
    kept, all_of_them = part.uploads()["values"], whole.uploads()["values"]
    sizes = [21, 20, 20]
    expected = torch.cat([all_of_them[: sizes[0]], all_of_them[sizes[0] + sizes[1] :]])
    assert torch.equal(kept, expected)
    strict, grid = make_local(chunk_size=8, quorum=3), make_grid()
    chunks.clear()
    grid.change = change
    with pytest.raises(ClientError, match="clients did not answer"):
        collect(strict, grid)


def test_shared_noise_needs_everybody(make_central):
    """The sum of a cohort that somebody is missing from has less noise than the plan."""
    settings = make_central(schedule="joint").settings
    shared = NoiseShare("secure_aggregation")
    with pytest.raises(ConfigError, match=r"leave strategy\.quorum=2 out"):
        replace(settings, share=shared, quorum=2)
    assert replace(settings, share=shared).quorum is None


def test_a_void_message_is_missed_by_those_who_were_asked(make_central):
    strategy = make_central(clients=3)
    strategy.skip(1)
    assert strategy.missed == {0: 1, 1: 1, 2: 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(strategy), "asked", [1])
        strategy.skip(2)
    assert strategy.missed == {0: 1, 1: 2, 2: 1}


def test_two_nodes_that_are_one_client_are_refused(make_central, make_grid):
    class Doubled:
        """A grid without a roster, whose last node calls itself by the first one's number."""

        def __init__(self) -> None:
            self.grid = make_grid()
            self.get_node_ids = self.grid.get_node_ids

        def send_and_receive(self, messages: Any, **options: Any) -> list[Any]:
            replies = list(self.grid.send_and_receive(messages, **options))
            replies[-1].content = replies[0].content
            return replies

    with pytest.raises(ClientError, match="both are client 0"):
        make_central().discover(Doubled())


def test_the_identity_is_all_that_changes_a_bit(make_central, make_local):
    central, local = make_central().settings, make_local().settings
    assert replace(central, rows=6).identity() != central.identity()
    assert central.identity()["plan"] == central.plan.to_dict()
    assert replace(local, batch=17).identity() != local.identity()
    assert replace(local, shuffling={"epsilon": 1.0, "reports": 5}).identity() == local.identity()


def test_what_a_client_may_hold_follows_from_the_capacity(make_central, make_local):
    settings = make_central().settings
    settings.check_sizes([10_000])
    make_local().settings.check_sizes([10_000])
    fixed = replace(settings, plan=replace(settings.plan, capacity=5, nominal_records=20))
    fixed.check_sizes([20, 3])
    with pytest.raises(ConfigError, match=r"at most 20 records at a client .* deals 21 to one"):
        fixed.check_sizes([3, 21])


@pytest.mark.parametrize("value", [0, -1, 0.0, 1.5, -0.5, True, "all", float("nan")])
def test_what_is_no_quorum_is_refused(value):
    with pytest.raises(ConfigError, match=r"strategy\.quorum is null \(all\), a whole number"):
        Quorum(value)


def test_a_quorum_of_more_clients_than_there_are_is_refused():
    check_quorum(3, 3)
    with pytest.raises(ConfigError, match=r"strategy\.quorum=4 is more than clients=3"):
        check_quorum(4, 3)
