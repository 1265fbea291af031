from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedsink.clients.answers.gs_wgan_critics import CriticMessage, CriticState, Parts, critic_totals
from fedsink.clients.app import client_app
from fedsink.clients.node_cohort import NodeCohort
from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration
from fedsink.data.partition import partition
from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError, ConfigError, FedsinkError, PrivacyError
from fedsink.models import Generator
from fedsink.models.critics import CriticTraining
from fedsink.privacy import (
    ADJACENCIES,
    BatchClip,
    Cost,
    CriticClip,
    JointSchedule,
    NoiseShare,
    PickSchedule,
    PrivacyPlan,
    ReproducibleKey,
    RowClip,
    Stream,
    TurnSchedule,
    UnprotectedPlan,
)
from fedsink.privacy.accounting.accountants import gaussian_epsilon
from fedsink.protocol.exchange import Reduction
from fedsink.protocol.failure_codes import REFUSED
from fedsink.protocol.gs_wgan import CriticRequest, Critics
from fedsink.protocol.requests import pack_replies, unpack_replies
from fedsink.simulation.grid import client_of
from fedsink.simulation.virtual_clients import LocalGrid
from fedsink.strategies.base.trainer import OptimizerSettings
from fedsink.strategies.gs_wgan import GSWGANSettings, GSWGANStrategy, gs_wgan_epsilon
from fedsink.strategies.methods import settings_of

from ..support.models import weights
from ..support.playing import play


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


def test_one_round_equals_a_computation_by_hand(make_gs_wgan, make_grid, make_generator):
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
        total += request.plan.release(request.plan.clip.vouch(of_client), noise).double()
    adam = torch.optim.Adam(model.parameters(), lr=0.05 * 0.5, betas=(0.5, 0.9))
    points.backward((-total / 12).float())
    adam.step()
    torch.testing.assert_close(weights(strategy.trainer.generator), weights(model))
    assert not torch.allclose(weights(make_generator()), weights(model), atol=1e-3)


def test_the_sum_is_divided_by_how_many_critics_are_asked_on_average(make_gs_wgan, make_grid):
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
def test_any_number_of_clients_trains_the_generator(make_gs_wgan, make_grid, clients):
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
def test_training_moves_the_generator_to_the_data(make_gs_wgan, make_grid):
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


def test_labels_are_public_and_balanced_over_the_rounds(make_gs_wgan, make_grid):
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


def test_rows_and_fakes_are_fresh(make_gs_wgan, make_grid):
    grid, strategy = make_grid(1), make_gs_wgan(clients=1, rounds=3, lr=1e-12, key=b"a")
    play(strategy, grid)
    rows = torch.cat([torch.cat([r[0].rows, r[0].fakes]) for r in requests_of(grid)])
    assert len(rows.unique(dim=0)) == len(rows) == 36


def test_every_client_starts_from_one_state_that_the_key_decides(make_gs_wgan, make_grid):
    seeds = []
    for key in (b"server", b"server", b"other"):
        grid, strategy = make_grid(3), make_gs_wgan(key=key)
        play(strategy, grid, 2)
        (seed,) = {
            request.critics.seed for round in requests_of(grid) for request in round.values()
        }
        seeds.append(seed)
    assert seeds[0] == seeds[1] != seeds[2]


def test_clients_answer_in_turn(make_gs_wgan, make_grid):
    grid, strategy = make_grid(5), make_gs_wgan(clients=5, turns=2, rounds=4)
    play(strategy, grid)
    assert [sorted(round) for round in requests_of(grid)] == [[1, 3], [0, 2, 4], [1, 3], [0, 2, 4]]
    assert strategy.settings.plan.uses == 2


@pytest.mark.parametrize("summed", [False, True])
def test_the_published_form_asks_the_one_client_that_is_picked(
    make_gs_wgan, make_grid, monkeypatch, summed
):
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
def test_a_mean_is_of_those_who_answered(make_gs_wgan, make_grid, turns, monkeypatch):
    grid, strategy = make_grid(5), make_gs_wgan(clients=5, turns=turns, critics=4)

    def ones(replies: list[Message]) -> list[Message]:
        content = pack_replies([torch.ones(5, 4)])
        for reply in replies:
            reply.content = content
        return replies

    grid.change = ones
    steps: list[torch.Tensor] = []
    monkeypatch.setattr(strategy.trainer, "step", lambda _, gradient, __: steps.append(gradient))
    play(strategy, grid, 3)
    assert all(torch.equal(step, torch.full((5, 4), -0.25, dtype=torch.float64)) for step in steps)


@pytest.mark.parametrize(("turns", "shares"), [(None, [5, 5]), (2, [2, 3])])
def test_shared_noise_is_spread_over_those_who_are_asked(make_gs_wgan, make_grid, turns, shares):
    grid = make_grid(5)
    strategy = make_gs_wgan(clients=5, turns=turns, share=NoiseShare("secure_aggregation"))
    play(strategy, grid, 2)
    for round, share in zip(requests_of(grid), shares, strict=True):
        assert {request.share for request in round.values()} == {share}
        variance = sum(request.own_plan.noise_std**2 for request in round.values())
        assert variance == pytest.approx(strategy.settings.plan.noise_std**2)


@pytest.mark.medium
@pytest.mark.parametrize("turns", [None, 2])
def test_sums_made_by_the_grid_train_the_same_generator(make_gs_wgan, make_grid, turns):
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


def test_a_resumed_run_is_the_same_run(make_gs_wgan, make_grid):
    """The server's half: the states of critics stay with the clients."""
    whole, half, resumed = make_gs_wgan(), make_gs_wgan(), make_gs_wgan()
    expected = play(whole, make_grid())[3:]
    grid = make_grid()
    play(half, grid, 3)
    resumed.load_state(*copy.deepcopy(half.state()))
    resumed.round = 3
    assert play(resumed, grid) == expected
    assert torch.equal(weights(resumed.generator), weights(whole.generator))


def test_signal_to_noise_is_near_zero_for_noise_alone_and_large_for_signal(make_gs_wgan, make_grid):
    grid = make_grid(4)
    for sigma, low, high in ((1e6, -0.5, 0.5), (1e-3, 50.0, 1e6)):
        strategy = make_gs_wgan(clients=4, sigma=sigma, rows=300, rounds=1, fakes=10)
        (metrics,) = play(strategy, grid)
        assert low <= metrics["signal_to_noise"] <= high


def test_a_round_beyond_the_plan_is_not_asked_for(make_gs_wgan, make_grid):
    strategy = make_gs_wgan(rounds=2)
    with pytest.raises(ClientError, match="is not accounted for"):
        strategy.configure_train(3, ArrayRecord(), ConfigRecord(), make_grid())


def test_replies_without_a_request_are_refused(make_gs_wgan, make_grid):
    strategy = make_gs_wgan()
    with pytest.raises(ClientError, match="round 1 came before its request"):
        strategy.aggregate_train(1, [])
    strategy.configure_train(1, ArrayRecord(), ConfigRecord(), make_grid())
    with pytest.raises(ClientError, match="round 2 came before its request"):
        strategy.aggregate_train(2, [])


def test_other_answers_stop_the_run(make_gs_wgan, make_grid):
    """`CentralRounds` checks them for every method; here the words name this one's task."""
    grid, strategy = make_grid(), make_gs_wgan()
    grid.fail(0, REFUSED)
    with pytest.raises(ClientError, match="answering round 1, client 0 refused"):
        play(strategy, grid, 1)
    grid.lose(0)
    with pytest.raises(ClientError, match="1 of 3 clients did not answer"):
        play(strategy, grid, 1)
    grid.say(1, pack_replies([torch.zeros(5, 3)]))
    with pytest.raises(ClientError, match="client 1 answered with values of shape"):
        play(strategy, grid, 1)


def test_a_round_that_somebody_missed_is_divided_by_those_who_answered(
    make_gs_wgan, make_grid, monkeypatch
):
    grid, strategy = make_grid(), make_gs_wgan(critics=4, quorum=2)
    grid.lose(0)
    steps: list[torch.Tensor] = []
    monkeypatch.setattr(strategy.trainer, "step", lambda _, gradient, __: steps.append(gradient))
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    _, metrics = strategy.aggregate_train(1, replies)
    total = sum(unpack_replies(r.content)[0].double() for r in replies)
    assert len(replies) == 2
    assert torch.allclose(steps[0], -total / 8, atol=1e-9)
    assert strategy.absent == [0]
    std = strategy.settings.plan.noise_std
    assert dict(metrics or {})["mean_noise_std"] == pytest.approx(std / 2**0.5)


@pytest.fixture
def make_gs_wgan(make_generator: Callable[..., Generator]) -> Callable[..., GSWGANStrategy]:
    """A GS-WGAN strategy; keywords are of the plan, the optimiser or the settings."""

    def make(
        *, clients: int = 3, rounds: int = 6, critics: int = 2, turns: int | None = None,
        sigma: float = 1.0, lr: float = 0.05, key: bytes = b"server", published: bool = False,
        **more: Any,
    ) -> GSWGANStrategy:  # fmt: skip
        clip = RowClip(1.0, 5) if published else CriticClip(1.0, critics)
        schedule = JointSchedule() if turns is None else TurnSchedule(turns)
        if published:
            schedule = PickSchedule(clients)
        training = CriticTraining(critics, steps=2, warm=4, batch=3, lr=5e-3)
        settings = GSWGANSettings(
            plan=PrivacyPlan(1.0, sigma, rounds, clip, schedule, 1e-5),
            critics=Critics(training, classes=3, hidden=8, scale=2.0),
            view={"name": "pixel", "shape": [4]},
            rows=5,
            fakes=7,
            optimizer=OptimizerSettings(lr, (0.5, 0.9), warmup=2, ema=0.9),
            clients=clients,
        )
        return GSWGANStrategy(replace(settings, **more), make_generator(3), key)

    return make


def settings(*overrides: str) -> GSWGANSettings:
    chosen = settings_of(config("strategy=gs_wgan", *overrides), "run")
    assert isinstance(chosen, GSWGANSettings)
    return chosen


def config(*overrides: str) -> Configuration:
    return Configuration.read(compose_config(["mode=central", "data=digits", *overrides]))


def plan(*overrides: str) -> PrivacyPlan:
    chosen = settings(*overrides).plan
    assert isinstance(chosen, PrivacyPlan)
    return chosen


@pytest.mark.medium
def test_the_clip_is_the_critics_without_a_word():
    assert config("strategy=gs_wgan").clip == "critic"
    assert (config().clip, config("clip=batch").clip) == ("record", "batch")
    chosen = settings("strategy.critics=7", "strategy.bound=0.5")
    assert chosen.plan.clip == CriticClip(0.5, 7)
    assert chosen.critics.training.critics == 7
    assert (chosen.plan.rate, chosen.plan.schedule) == (1.0, JointSchedule())
    for clip in ("record", "batch"):
        with pytest.raises(ConfigError, match=f"leave out clip={clip}"):
            settings(f"clip={clip}")


@pytest.mark.parametrize("data", ["digits", "mnist", "fashion_mnist", "half_circle"])
def test_every_dataset_has_a_recipe(data):
    assert 9.9 < settings(f"data={data}").plan.epsilon() <= 10.0


@pytest.mark.medium
def test_a_method_has_values_of_its_own_for_a_dataset():
    """Holds whatever the recipe of the dataset says for other methods."""
    assert config("strategy=gs_wgan", "data=mnist").recipe["view"]["radius"] == 10
    assert config("data=mnist").recipe["view"]["radius"] == 14


@pytest.mark.medium
def test_any_two_of_eps_sigma_and_rounds_give_the_third():
    """R uses are one Gaussian of multiplier σ/√R: no error of an accountant."""
    assert plan("eps=10", "rounds=20").noise_multiplier == pytest.approx(2.236, rel=1e-3)
    assert plan("sigma=2.2361", "eps=10").rounds == 20
    assert plan("sigma=2.2361", "rounds=20").epsilon() == pytest.approx(10.0, abs=0.01)
    assert plan("eps=1", "rounds=300").noise_multiplier == pytest.approx(64.62, rel=1e-3)


@pytest.mark.medium
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user"])
def test_all_adjacencies_of_records_cost_the_same(adjacency):
    chosen = settings("sigma=2.2361", "rounds=20", f"adjacency={adjacency}")
    stated = chosen.statement("reproducible")
    assert stated["epsilon"] == pytest.approx(10.0, abs=0.01)
    assert stated["adjacency_name"] == adjacency
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user"}
    assert stated["unit"] == ("user" if adjacency == "user" else "record")
    assert "No sampling is assumed" in stated["sample_secrecy"]
    assert stated["epsilon_unamplified"] == stated["epsilon"]
    assert "subsampling" not in stated["not_protected"]
    assert "larger guarantee" not in stated["not_protected"]
    assert stated["rounds_per_record"] == 20


@pytest.mark.medium
def test_critics_may_be_asked_in_secret_and_privacy_json_says_what_that_assumes():
    chosen = settings("rate=0.2", "rounds=20", "eps=10")
    stated = chosen.statement("reproducible")
    assert (stated["rate"], chosen.plan.rate) == (0.2, 0.2)
    assert 9.9 < stated["epsilon"] <= 10.0
    assert stated["epsilon_unamplified"] > 20.0
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user"}
    assert stated["mechanism"].startswith("Poisson-subsampled Gaussian on the sum of critics'")
    assert "All are trained, asked or not" in stated["sample_secrecy"]
    assert "Which critics are asked has to stay secret" in stated["not_protected"]
    assert "which critics were asked: against whoever learns it" in str(chosen.notice(stated))


@pytest.mark.medium
def test_clients_as_units_are_asked_in_secret_for_nothing():
    """No amplification is claimed, so the plan assumes none either."""
    chosen = settings("rate=0.2", "rounds=20", "eps=10", "adjacency=client", "strategy.critics=1")
    stated = chosen.statement("reproducible")
    assert stated["epsilon_unamplified"] == stated["epsilon"]
    assert chosen.plan.noise_multiplier == pytest.approx(2.236, rel=1e-3)
    assert "Which critics are asked" not in stated["not_protected"]


@pytest.mark.medium
def test_a_client_costs_a_multiplier_of_as_many_critics():
    one = plan("adjacency=client", "strategy.critics=1", "sigma=2", "rounds=20")
    three = plan("adjacency=client", "strategy.critics=3", "sigma=6", "rounds=20")
    assert three.epsilon() == pytest.approx(one.epsilon())
    of_record = plan("strategy.critics=3", "sigma=2", "rounds=20")
    assert of_record.epsilon() == pytest.approx(one.epsilon())
    stated = settings("adjacency=client", "strategy.critics=1").statement("reproducible")
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user", "client"}
    assert (stated["unit"], stated["critics"]) == ("client", 1)
    stated = settings("adjacency=client", "strategy.critics=3").statement("reproducible")
    assert set(stated["adjacencies"]) == {"client"}


@pytest.mark.medium
def test_turns_divide_the_uses():
    chosen = plan("clients=50", "strategy.turns=50", "rounds=1000", "eps=10")
    assert chosen.schedule == TurnSchedule(50)
    assert chosen.uses == 20
    assert chosen.noise_multiplier == pytest.approx(2.236, rel=1e-3)
    with pytest.raises(ConfigError, match="turns=11 leaves rounds in which none of clients=10"):
        settings("strategy.turns=11")


@pytest.mark.medium
def test_noise_may_be_shared_by_those_who_answer_together():
    chosen = settings("clients=9", "strategy.turns=2", "noise.share=secure_aggregation")
    assert chosen.share == NoiseShare("secure_aggregation")
    assert [chosen.noise_of(client)[0] for client in (0, 1)] == [5, 4]
    stated = chosen.statement("reproducible")
    assert [cohort["clients"] for cohort in stated["noise_share"]["cohorts"]] == [4, 5]
    notice = chosen.notice(stated)
    assert notice is not None
    assert "noise.share=secure_aggregation" in notice


def test_without_privacy_nothing_is_clipped_or_noised():
    chosen = settings("eps=inf", "rounds=30", "strategy.turns=2")
    assert chosen.plan == UnprotectedPlan(1.0, 30, "critic", TurnSchedule(2))
    assert chosen.statement("reproducible")["epsilon"] is None


PUBLISHED = ("strategy.published=true", "strategy.critics=1", "strategy.rows=32", "clients=1000")


def test_the_published_form_has_the_published_clip_noise_and_picks():
    chosen = settings(*PUBLISHED, "strategy.row_sigma=1.07", "rounds=20000", "seed=1",
                      "strategy.bound=0.5")  # fmt: skip
    plan = chosen.plan
    assert isinstance(plan, PrivacyPlan)
    assert (plan.clip, plan.schedule, plan.rate) == (RowClip(0.5, 32), PickSchedule(1000, 1), 1.0)
    assert plan.noise_multiplier == pytest.approx(1.07 / math.sqrt(32))
    assert plan.noise_std == pytest.approx(2 * 0.5 * 1.07)
    assert plan.uses == 36
    assert plan.epsilon() == pytest.approx(637, abs=0.6)


@pytest.mark.medium
@pytest.mark.quick("user")
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user", "client"])
def test_privacy_json_of_the_published_form_says_what_is_proved_and_what_is_claimed(adjacency):
    chosen = settings(*PUBLISHED, "strategy.row_sigma=1.07", "rounds=20000", "seed=1",
                      f"adjacency={adjacency}")  # fmt: skip
    stated = chosen.statement("reproducible")
    assert stated["epsilon"] == stated["clients"][-1]["epsilon"]
    assert stated["epsilon"] == gaussian_epsilon(stated["sigma"] / math.sqrt(36), 1e-5)
    assert stated["epsilon"] == pytest.approx(637, abs=0.6)
    assert stated["epsilon_published"] == pytest.approx(9.993, abs=1e-3)
    assert stated["epsilon_published_meaning"] == "the paper's claim (Theorem A.1), not proved"
    assert (stated["clip"], stated["schedule"], stated["pick_seed"]) == ("row", "pick", 1)
    assert stated["row_sigma"] == pytest.approx(1.07)
    assert stated["noise_std"] == pytest.approx(2.14)
    assert stated["sensitivity"] == pytest.approx(2 * math.sqrt(32))
    assert (stated["rounds_per_record"], stated["critics"]) == (36, 1)
    assert "each row of which is clipped by itself" in stated["mechanism"]
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user", "client"}
    notice = chosen.notice(stated)
    assert notice is not None
    assert "ε = 637.4 is what can be proved; 9.993 is the paper's claim (Theorem A.1)" in notice
    for other, promise in (
        (settings(), r"ε = [\d.]+, δ = 1e-05 per record\."),
        (settings("eps=inf", *PUBLISHED), None),
    ):
        stated = other.statement("reproducible")
        assert "epsilon_published" not in stated
        notice = other.notice(stated)
        assert notice is None if promise is None else re.fullmatch(promise, notice or "")


@pytest.mark.slow
def test_the_published_form_may_be_calibrated_to_an_epsilon_that_holds():
    chosen = settings(*PUBLISHED, "eps=10", "rounds=2000")
    stated = chosen.statement("reproducible")
    assert 9.99 < stated["epsilon"] <= 10
    assert stated["noise_std"] == pytest.approx(2 * stated["row_sigma"])
    claimed = gs_wgan_epsilon(stated["row_sigma"], uses=64_000, critics=1000, delta=1e-5)
    assert stated["epsilon_published"] == claimed < 0.5
    solved = settings(*PUBLISHED, "eps=10", f"strategy.row_sigma={stated['row_sigma']}").plan
    assert solved.rounds >= 2000
    assert solved.uses == chosen.plan.uses
    secret, seeded = (settings(*PUBLISHED, f"seed={seed}").plan for seed in ("null", "0"))
    assert secret == seeded


@pytest.mark.medium
def test_without_privacy_the_published_form_picks_clients_alone():
    chosen = settings(*PUBLISHED, "eps=inf", "rounds=30")
    assert chosen.plan == UnprotectedPlan(1.0, 30, "row", PickSchedule(1000))


@pytest.mark.medium
def test_the_reduced_published_run_is_what_its_name_says():
    chosen = settings("experiment=gs_wgan_published_digits", "seed=0")
    plan = chosen.plan
    assert (plan.clip, plan.schedule, plan.rounds) == (RowClip(1.0, 30), PickSchedule(100), 1500)
    stated = chosen.statement("reproducible")
    assert stated["row_sigma"] == pytest.approx(1.07)
    assert (stated["rounds_per_record"], round(stated["epsilon"])) == (25, 436)
    assert stated["epsilon_published"] == pytest.approx(33.06, abs=0.01)


@pytest.mark.medium
@pytest.mark.quick("*noise.share*", "*capacity=5*", "*row_sigma=0*", "*adjacency=*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["strategy.critics=2"],
            "excludes strategy.critics=2: a client has one critic, so set",
        ),
        (["strategy.turns=5"], "excludes strategy.turns=5: clients are picked at random"),
        (["noise.share=secure_aggregation"], "excludes noise.share=secure_aggregation: one"),
        (
            ["strategy.critic.mismatch=0.5"],
            "excludes strategy.critic.mismatch=0.5: its critics",
        ),
        (["policy=x.toml"], "excludes policy=x.toml: a node under a policy never answers it"),
        (["adjacency=nobody"], "adjacency 'nobody' is unknown"),
        (["rate=0.001"], "the row clip has only rate=1"),
        (["capacity=5"], "the row clip draws no batch of records, so capacity=5"),
        (["strategy.row_sigma=1", "sigma=1"], "strategy.row_sigma=1 and sigma=1 both state"),
        (["strategy.row_sigma=0"], "strategy.row_sigma must be null or a positive number"),
        (["strategy.row_sigma=1", "eps=inf"], "eps=inf adds no noise, so strategy.row_sigma=1 has"),
        (["strategy.row_sigma=9", "eps=1", "rounds=20000"], "cost ε = .*, not eps=1: leave one"),
        (["strategy.rows=0"], "strategy.rows must be a whole number of at least 1"),
        (["noise.tolerate_dropouts=1"], "noise.tolerate_dropouts=1 belongs to noise.share"),
        (["strategy.published=1"], "strategy.published is true or false, not 1"),
        (["strategy.published=false", "strategy.row_sigma=1"], "or set strategy.published=true"),
    ],
    ids=str,
)
def test_what_the_published_form_has_not_is_refused_by_name(overrides, message):
    with pytest.raises(FedsinkError, match=message):
        settings(*PUBLISHED, *overrides)


def test_critics_are_described_by_the_configuration():
    chosen = settings("strategy.critic.kind=convolution", "strategy.critic.hidden=4",
                      "strategy.critic.late=0.5", "conditional=false")  # fmt: skip
    assert (chosen.critics.kind, chosen.critics.hidden, chosen.critics.classes) == (
        "convolution", 4, 1,
    )  # fmt: skip
    assert chosen.critics.training.late == 0.5


@pytest.mark.quick("*capacity=5*", "*rate=1.5*", "*adjacency=*", "*critics=0*", "*turns=0*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["capacity=5"], "the critic clip draws no batch of records"),
        (["rate=1.5"], "rate must lie in"),
        (["adjacency=nobody"], "adjacency"),
        (["mechanism.name=laplace"], "mode=central noises sums"),
        (["shuffler=trusted"], "shuffler=trusted belongs to mode=ldp"),
        (["strategy.rows=0"], "strategy.rows must be"),
        (["strategy.fakes=2.5"], "strategy.fakes must be"),
        (["strategy.critics=0"], "critics must be"),
        (["strategy.critics=20000"], "critics must be at most 16384"),
        (["strategy.turns=0"], "turns must be"),
        (["strategy.critic.kind=forest"], "A critic is a perceptron or a convolution"),
        (["strategy.critic.hidden=99999"], "the critics' width must be"),
        (["strategy.critic.scale=0"], "the scale of a critic's coordinates"),
        (["strategy.critic.batch=0"], "batch must be"),
        (["+strategy.critic.depth=3"], "Unknown key strategy.critic.depth"),
        (["strategy.critics=16000", "strategy.critic.hidden=300"], "weights, where"),
        (["strategy.critics=16000", "strategy.critic.batch=9999"], "pairs in the first round"),
        (["+strategy.depth=3"], "Unknown key strategy.depth"),
        (["eps=inf", "sigma=1"], "eps=inf adds no noise"),
        (["eps=inf", "noise.share=secure_aggregation"], "has nothing to share"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_by_name(overrides, message):
    with pytest.raises(FedsinkError, match=message):
        settings(*overrides)


ROUNDS, ROWS, CRITICS, DELTA, SIGMA = 20_000, 32, 1000, 1e-5, 1.07


def test_the_published_federated_epsilon_is_reproduced():
    claimed = gs_wgan_epsilon(SIGMA, uses=30_000 * ROWS, critics=CRITICS, delta=DELTA)
    assert claimed == pytest.approx(12.7, abs=0.05)


@pytest.mark.medium
@pytest.mark.quick("add-remove-329")
@pytest.mark.parametrize(("adjacency", "proved"), [("add-remove", 329), ("replace-one", 347)])
def test_rows_that_are_selected_together_cost_what_one_gaussian_of_all_of_them_does(
    adjacency, proved
):
    """Clipped row by row, 32 rows move by √32 times the sensitivity of one."""
    cost = Cost(BatchClip(1.0), JointSchedule(), adjacency)
    found = cost.epsilon(1 / CRITICS, SIGMA / math.sqrt(ROWS), ROUNDS, DELTA)
    assert found == pytest.approx(proved, abs=0.6)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("schedule", "uses", "proved"),
    [(TurnSchedule(CRITICS), 20, 379), (PickSchedule(CRITICS, 1), 36, 637)],
    ids=["in turn", "picked"],
)
def test_clients_that_the_server_chooses_cost_their_uses(schedule, uses, proved, adjacency):
    """Holds for every unit: no choice is secret, and a client has one critic."""
    clip = RowClip(1.0, ROWS)
    sigma = SIGMA / math.sqrt(ROWS)
    plan = PrivacyPlan(1.0, sigma, ROUNDS, clip, schedule, DELTA, adjacency=adjacency)
    assert plan.noise_std == pytest.approx(2 * clip.bound * SIGMA)
    assert plan.uses == plan.event.count == uses
    assert plan.epsilon() == pytest.approx(proved, abs=0.6)
    assert plan.published


@pytest.mark.medium
def test_more_uses_less_noise_and_fewer_critics_cost_more():
    costs = [
        gs_wgan_epsilon(SIGMA, uses=1000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA, uses=2000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA / 2, uses=2000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA / 2, uses=2000, critics=CRITICS // 2, delta=DELTA),
    ]
    assert costs == sorted(costs)
    assert len(set(costs)) == 4


def test_bad_values_are_refused():
    for options, message in (
        ({"sigma": 0.0}, "sigma must be a finite number > 0"),
        ({"uses": 0}, "uses must be an integer"),
        ({"critics": 0}, "critics must be an integer"),
        ({"delta": 1.0}, "delta must lie in"),
    ):
        values = {"sigma": 1.0, "uses": 10, "critics": 10, "delta": 1e-5} | options
        with pytest.raises(PrivacyError, match=message):
            gs_wgan_epsilon(values.pop("sigma"), **values)
