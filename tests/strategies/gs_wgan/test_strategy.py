from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message
from torch.nn.utils import parameters_to_vector

from fedsink.clients.app import client_app
from fedsink.clients.gs_wgan_critics import CriticMessage, CriticState, Parts, critic_totals
from fedsink.clients.node_cohort import NodeCohort
from fedsink.data.partition import partition
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError
from fedsink.models import Generator
from fedsink.models.critics import CriticTraining
from fedsink.privacy import (
    CriticClip,
    JointSchedule,
    NoiseShare,
    ReproducibleKey,
    Stream,
    UnprotectedPlan,
)
from fedsink.protocol.dp_sinkhorn import GradientReply
from fedsink.protocol.exchange import Reduction
from fedsink.protocol.failure_codes import REFUSED
from fedsink.protocol.gs_wgan import CriticRequest
from fedsink.simulation.grid import client_of
from fedsink.simulation.virtual_clients import LocalGrid
from fedsink.strategies.gs_wgan import GSWGAN

Make = Callable[..., GSWGAN]
Grids = Callable[..., Any]


def play(strategy: GSWGAN, grid: Any, rounds: int | None = None) -> list[dict[str, Any]]:
    metrics = []
    for number in range(strategy.round + 1, (rounds or strategy.rounds) + 1):
        messages = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        _, record = strategy.aggregate_train(number, grid.send_and_receive(messages))
        metrics.append(dict(record or {}))
    return metrics


def weights(generator: Generator) -> torch.Tensor:
    return parameters_to_vector(generator.parameters()).detach().clone()


def requests_of(grid: Any) -> list[dict[int, CriticRequest]]:
    """Requests to each client in every round."""
    rounds: dict[int, dict[int, CriticRequest]] = {}
    for message in grid.asked:
        request = CriticRequest.from_record(message.content)
        client = client_of(message.metadata.dst_node_id)
        rounds.setdefault(request.round, {})[client] = request
    return [rounds[number] for number in sorted(rounds)]


def unprotected(rounds: int) -> UnprotectedPlan:
    return UnprotectedPlan(1.0, rounds, "critic", JointSchedule())


def test_one_round_equals_a_computation_by_hand(
    make_gs_wgan: Make, make_grid: Grids, make_generator: Callable[[], Generator]
) -> None:
    """The generator ascends the mean over all K·M critics."""
    grid, strategy = make_grid(), make_gs_wgan(critics=4)
    play(strategy, grid, 1)

    model = make_generator()
    points = model(model.latent(5, Stream(b"server", "train", 1)), torch.tensor([0, 1, 2, 0, 1]))
    with torch.no_grad():
        fakes = model(
            model.latent(7, Stream(b"server", "fakes", 1)), torch.tensor([0, 1, 2, 0, 1, 2, 0])
        )
    request = requests_of(grid)[0][0]
    assert torch.equal(request.rows, points.detach())
    assert torch.equal(request.fakes, fakes)

    data, key = load(DataSpec("tiny", (4,), tuple("abc"), 61), "train"), ReproducibleKey(7)
    deal = partition(data.labels, 3, {"name": "iid"}, 0)
    critics, clip = request.critics, CriticClip(1.0, 4)
    critic = critics.architecture(strategy.view)
    message = CriticMessage(
        points.detach(), request.row_labels, fakes, request.fake_labels, critics.training.rate(1, 6)
    )
    total = torch.zeros(5, 4, dtype=torch.float64)
    for client in range(3):
        start = CriticState.start(critic, 4, critics.initial, fakes)
        parts = Parts.deal([(*data.take(deal[client]), None)], 4, 3)
        coins, noise = (
            key.stream(purpose, client=client, round=1) for purpose in ("critic", "noise")
        )
        (of_client,), _ = critic_totals(
            critic, critics.training, clip, message, parts, [start], [coins]
        )
        total += request.plan.release(of_client, noise).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.05 * 0.5, betas=(0.5, 0.9))
    points.backward((-total / 12).float())
    adam.step()
    torch.testing.assert_close(weights(strategy.trainer.generator), weights(model))
    assert not torch.allclose(weights(make_generator()), weights(model), atol=1e-3)


def test_the_sum_is_divided_by_how_many_critics_are_asked_on_average(
    make_gs_wgan: Make, make_grid: Grids
) -> None:
    """At a rate of ½ the replies to one message count twice."""
    losses, grid = [], make_grid()
    replies: list[Message] = []
    for rate in (1.0, 0.5):
        strategy = make_gs_wgan(critics=4)
        plan = replace(strategy.settings.plan, rate=rate)
        strategy.settings = replace(strategy.settings, plan=plan)
        messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
        replies = replies or list(grid.send_and_receive(messages))
        _, record = strategy.aggregate_train(1, replies)
        losses.append(dict(record or {})["loss"])
    assert losses[1] == pytest.approx(2 * losses[0])


@pytest.mark.parametrize("clients", [1, 2, 9])
def test_any_number_of_clients_trains_the_generator(
    make_gs_wgan: Make, make_grid: Grids, clients: int
) -> None:
    strategy = make_gs_wgan(clients=clients, rounds=3)
    before = weights(strategy.trainer.generator)
    metrics = play(strategy, make_grid(clients))
    assert strategy.round == 3
    assert all(
        record["loss"] > 0 and math.isfinite(record["signal_to_noise"]) for record in metrics
    )
    after = weights(strategy.trainer.generator)
    assert bool(after.isfinite().all())
    assert float((after - before).abs().max()) > 1e-3


@pytest.mark.slow
def test_training_moves_the_generator_to_the_data(make_gs_wgan: Make, make_grid: Grids) -> None:
    """Without noise the class means come out: 0, 1 and 2 in every coordinate."""
    strategy = make_gs_wgan(clients=2, plan=unprotected(200), rows=30, fakes=30, lr=0.01)
    training = CriticTraining(2, steps=5, warm=20, batch=8, lr=5e-3)
    strategy.critics = replace(strategy.critics, training=training)
    metrics = play(strategy, make_grid(2, unprotected=True))
    assert all("signal_to_noise" not in record for record in metrics)
    labels = torch.arange(3).repeat_interleave(100)
    model = strategy.generator
    with torch.no_grad():
        drawn = model(model.latent(300, Stream(b"test", 0)), labels)
    means = drawn.reshape(3, 100, 4).mean(1)
    expected = torch.arange(3.0).unsqueeze(1).expand(3, 4)
    assert float((means - expected).abs().max()) < 0.35


def test_labels_are_public_and_balanced_over_the_rounds(
    make_gs_wgan: Make, make_grid: Grids
) -> None:
    """Holds for every n: the classes take turns where n is no multiple of their number."""
    grid, strategy = make_grid(1), make_gs_wgan(clients=1, rounds=6)
    play(strategy, grid)
    requests = [round[0] for round in requests_of(grid)]
    for name in ("row_labels", "fake_labels"):
        labels = torch.cat([getattr(request, name) for request in requests])
        counts = torch.bincount(labels, minlength=3)
        assert int(counts.max() - counts.min()) <= 1
    assert {len(request.rows) for request in requests} == {5}
    assert {len(request.fakes) for request in requests} == {7}


def test_rows_and_fakes_are_fresh(make_gs_wgan: Make, make_grid: Grids) -> None:
    grid, strategy = make_grid(1), make_gs_wgan(clients=1, rounds=3, lr=1e-12)
    play(strategy, grid)
    rows = torch.cat([torch.cat([r[0].rows, r[0].fakes]) for r in requests_of(grid)])
    assert len(rows.unique(dim=0)) == len(rows) == 36


def test_every_client_starts_from_one_state_that_the_key_decides(
    make_gs_wgan: Make, make_grid: Grids
) -> None:
    seeds = []
    for key in (b"server", b"server", b"other"):
        grid, strategy = make_grid(3), make_gs_wgan(key=key)
        play(strategy, grid, 2)
        (seed,) = {
            request.critics.seed for round in requests_of(grid) for request in round.values()
        }
        seeds.append(seed)
    assert seeds[0] == seeds[1] != seeds[2]


def test_clients_answer_in_turn(make_gs_wgan: Make, make_grid: Grids) -> None:
    grid, strategy = make_grid(5), make_gs_wgan(clients=5, turns=2, rounds=4)
    play(strategy, grid)
    assert [sorted(round) for round in requests_of(grid)] == [[1, 3], [0, 2, 4], [1, 3], [0, 2, 4]]
    assert strategy.settings.plan.uses == 2


@pytest.mark.parametrize("summed", [False, True])
def test_the_published_form_asks_the_one_client_that_is_picked(
    make_gs_wgan: Make, make_grid: Grids, monkeypatch: pytest.MonkeyPatch, summed: bool
) -> None:
    """The step follows that critic's gradient, each row clipped."""
    strategy = make_gs_wgan(clients=4, critics=1, rounds=9, published=True, sigma=1e-9)
    grid = make_grid(4)
    if summed:
        grid = LocalGrid(client_app(grid.node), 4, batched=NodeCohort(grid.node))
    steps: list[torch.Tensor] = []
    monkeypatch.setattr(strategy.trainer, "step", lambda _, gradient, __: steps.append(gradient))
    asked = []
    for number in range(1, 10):
        exchange = strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid)
        asked += [list(broadcast.nodes) for broadcast in exchange.broadcasts]
        strategy.aggregate_train(number, grid.send_and_receive(exchange))
    schedule = strategy.settings.plan.schedule
    assert asked == [[k for k in range(4) if schedule.answers(k, t)] for t in range(1, 10)]
    assert all(len(clients) == 1 for clients in asked)
    gradients = torch.stack(steps)
    assert float(gradients.norm(dim=-1).max()) == pytest.approx(1.0, abs=1e-5)
    assert float(gradients.flatten(1).norm(dim=-1).max()) > 1.4  # as no whole clip would leave it


@pytest.mark.parametrize("turns", [None, 2])
def test_a_mean_is_of_those_who_answered(
    make_gs_wgan: Make, make_grid: Grids, turns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, strategy = make_grid(5), make_gs_wgan(clients=5, turns=turns, critics=4)

    def ones(replies: list[Message]) -> list[Message]:
        content = GradientReply(torch.ones(5, 4)).to_record()
        for reply in replies:
            reply.content = content
        return replies

    grid.change = ones
    steps: list[torch.Tensor] = []
    monkeypatch.setattr(strategy.trainer, "step", lambda _, gradient, __: steps.append(gradient))
    play(strategy, grid, 3)
    assert all(torch.equal(step, torch.full((5, 4), -0.25, dtype=torch.float64)) for step in steps)


@pytest.mark.parametrize(("turns", "shares"), [(None, [5, 5]), (2, [2, 3])])
def test_shared_noise_is_spread_over_those_who_are_asked(
    make_gs_wgan: Make, make_grid: Grids, turns: int | None, shares: list[int]
) -> None:
    grid = make_grid(5)
    strategy = make_gs_wgan(clients=5, turns=turns, share=NoiseShare("secure_aggregation"))
    play(strategy, grid, 2)
    for round, share in zip(requests_of(grid), shares, strict=True):
        assert {request.share for request in round.values()} == {share}
        variance = sum(request.own_plan.noise_std**2 for request in round.values())
        assert variance == pytest.approx(strategy.settings.plan.noise_std**2)


@pytest.mark.medium
@pytest.mark.parametrize("turns", [None, 2])
def test_sums_made_by_the_grid_train_the_same_generator(
    make_gs_wgan: Make, make_grid: Grids, turns: int | None
) -> None:
    """Critics of one batch are those of single clients, up to rounding."""
    plain, summed = (make_gs_wgan(clients=9, rounds=3, turns=turns, lr=1e-3) for _ in range(2))
    grid = make_grid(9)
    batched = LocalGrid(client_app(grid.node), 9, batched=NodeCohort(grid.node))
    expected = play(plain, grid)
    metrics = []
    for number in range(1, 4):
        messages = summed.configure_train(number, ArrayRecord(), ConfigRecord(), batched)
        replies = batched.send_and_receive(messages)
        assert isinstance(replies, Reduction)
        _, record = summed.aggregate_train(number, replies)
        metrics.append(dict(record or {}))
    for one, other in zip(metrics, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-3)
    torch.testing.assert_close(
        weights(plain.generator), weights(summed.generator), atol=1e-5, rtol=1e-4
    )


def test_a_resumed_run_is_the_same_run(make_gs_wgan: Make, make_grid: Grids) -> None:
    """The server's half: the states of critics stay with the clients."""
    whole, half, resumed = make_gs_wgan(), make_gs_wgan(), make_gs_wgan()
    expected = play(whole, make_grid())[3:]
    grid = make_grid()
    play(half, grid, 3)
    resumed.load_state(*copy.deepcopy(half.state()))
    resumed.round = 3
    assert play(resumed, grid) == expected
    assert torch.equal(weights(resumed.generator), weights(whole.generator))


def test_signal_to_noise_is_near_zero_for_noise_alone_and_large_for_signal(
    make_gs_wgan: Make, make_grid: Grids
) -> None:
    grid = make_grid(4)
    for sigma, low, high in ((1e6, -0.5, 0.5), (1e-3, 50.0, 1e6)):
        strategy = make_gs_wgan(clients=4, sigma=sigma, rows=300, rounds=1, fakes=10)
        (metrics,) = play(strategy, grid)
        assert low <= metrics["signal_to_noise"] <= high


def test_a_round_beyond_the_plan_is_not_asked_for(make_gs_wgan: Make, make_grid: Grids) -> None:
    strategy = make_gs_wgan(rounds=2)
    with pytest.raises(ClientError, match="is not accounted for"):
        strategy.configure_train(3, ArrayRecord(), ConfigRecord(), make_grid())


def test_replies_without_a_request_are_refused(make_gs_wgan: Make, make_grid: Grids) -> None:
    strategy = make_gs_wgan()
    with pytest.raises(ClientError, match="round 1 came before its request"):
        strategy.aggregate_train(1, [])
    strategy.configure_train(1, ArrayRecord(), ConfigRecord(), make_grid())
    with pytest.raises(ClientError, match="round 2 came before its request"):
        strategy.aggregate_train(2, [])


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (torch.zeros(5, 3), "gradient of shape"),
        (torch.zeros(4, 4), "gradient of shape"),
        (torch.full((5, 4), float("nan")), "expected finite values"),
    ],
)
def test_other_answers_are_refused(
    make_gs_wgan: Make, make_grid: Grids, gradient: torch.Tensor, message: str
) -> None:
    grid, strategy = make_grid(), make_gs_wgan()

    def spoil(replies: list[Message]) -> list[Message]:
        replies[1].content = GradientReply(gradient).to_record()
        return replies

    grid.change = spoil
    with pytest.raises(ClientError, match=f"client 1 answered with a .*{message}"):
        play(strategy, grid, 1)


def test_a_client_that_refuses_stops_the_run(make_gs_wgan: Make, make_grid: Grids) -> None:
    grid, strategy = make_grid(), make_gs_wgan()

    def refuse(replies: list[Message]) -> list[Message]:
        first = replies[0]
        asked = Message(first.content, first.metadata.src_node_id, "train")
        refusal = Message(Error(REFUSED, "secret text"), reply_to=asked)
        refusal.metadata.__dict__["_reply_to_message_id"] = first.metadata.reply_to_message_id
        refusal.metadata.__dict__["_src_node_id"] = first.metadata.src_node_id
        return [refusal, *replies[1:]]

    grid.change = refuse
    with pytest.raises(ClientError, match="asking critics in round 1, client 0 refused"):
        play(strategy, grid, 1)
    grid.change = lambda replies: replies[1:]
    with pytest.raises(ClientError, match="1 of 3 clients did not answer"):
        play(strategy, grid, 1)


def test_a_round_that_somebody_missed_is_divided_by_those_who_answered(
    make_gs_wgan: Make, make_grid: Grids, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, strategy = make_grid(), make_gs_wgan(critics=4, quorum=2)
    grid.change = lambda replies: [r for r in replies if client_of(r.metadata.src_node_id)]
    steps: list[torch.Tensor] = []

    def step(output: torch.Tensor, gradient: torch.Tensor, number: int) -> None:
        steps.append(gradient)

    monkeypatch.setattr(strategy.trainer, "step", step)
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    _, metrics = strategy.aggregate_train(1, replies)
    total = sum(GradientReply.from_record(r.content).gradient.double() for r in replies)
    assert len(replies) == 2
    assert torch.allclose(steps[0], -total / 8, atol=1e-9)
    assert strategy.absent == [0]
    std = strategy.settings.plan.noise_std
    assert dict(metrics or {})["mean_noise_std"] == pytest.approx(std / 2**0.5)
