from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from scipy import stats
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import client_gradient
from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.records.shard import Shard
from fedsink.data.partition import Unequal, partition
from fedsink.data.sources import forget, load
from fedsink.data.spec import DataSpec
from fedsink.errors import ClientError, ConfigError
from fedsink.privacy import NoiseShare, ReproducibleKey, Stream
from fedsink.protocol.dp_sinkhorn import GradientRequest, unpack_requests
from fedsink.protocol.exchange import Reduction
from fedsink.protocol.failure_codes import FAILED, REFUSED
from fedsink.protocol.packing import digest
from fedsink.protocol.requests import pack_replies, unpack_replies
from fedsink.server import checkpoint
from fedsink.simulation.virtual_clients import LocalGrid
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornStrategy
from fedsink.transport import ConvergedSolver, potential

from ...support.models import weights
from ...support.oracles import clipped_record_field
from ...support.playing import play
from ...support.tiny import points


def test_one_round_equals_a_computation_by_hand(make_central, make_grid, make_generator):
    """Record clip, class schedule: K = 3 clients, one per class."""
    grid = make_grid()
    strategy = make_central()
    play(strategy, grid, 1)

    plan, objective = strategy.settings.plan, strategy.settings.objective
    data = load(DataSpec("tiny", (4,), tuple("abc"), 61), "train")
    key = ReproducibleKey(7)
    deal = partition(data.labels, 3, {"name": "iid"}, 0)
    model = make_generator()
    labels = torch.arange(3).repeat_interleave(5)
    with torch.no_grad():
        past = [model(model.latent(15, Stream(b"server", "history", i)), labels) for i in range(2)]
    points = model(model.latent(15, Stream(b"server", "train", 1)), labels)
    gradient = torch.zeros(15, 4, dtype=torch.float64)
    for client in range(3):
        label = (client + 1) % 3
        mine = slice(5 * label, 5 * label + 5)
        rows, history = points.detach()[mine], torch.cat([batch[mine] for batch in past])
        f = potential(rows, history, 1.0, solver=ConvergedSolver(max_iterations=40, tolerance=1e-2))
        request = GradientRequest(
            round=1, label=label, plan=plan, objective=objective, view=strategy.settings.view,
            rows=rows, row_labels=labels[mine], potentials=f, self_gradient=torch.zeros(5, 4),
        )  # fmt: skip
        reply = client_gradient(
            request,
            Shard(*data.take(deal[client])),
            lambda purpose, k=client: key.stream(purpose, client=k, round=1),
        )
        nominal = 0.5 * (61 / 3) / 3
        field = clipped_record_field(rows, history, f, 1.0, 0.5) / len(history)
        gradient[mine] = reply.double() / nominal - field
    adam = torch.optim.Adam(model.parameters(), lr=0.05 * 0.5, betas=(0.9, 0.99))
    points.backward(gradient.float())
    adam.step()
    assert torch.allclose(weights(strategy.trainer.generator), weights(model), atol=1e-6)
    assert not torch.allclose(weights(make_generator()), weights(model), atol=1e-3)


VARIANTS = [
    {"clip": "record", "schedule": "class"},
    {"clip": "record", "schedule": "joint"},
    {"clip": "batch", "schedule": "class"},
    {"clip": "batch", "schedule": "joint"},
    {"clip": "batch", "schedule": "joint", "self_term": "semi_debiased"},
    {"clip": "batch", "schedule": "class", "self_term": "semi_debiased"},
    {"clip": "record", "schedule": "joint", "classes": 1},
    {"clip": "batch", "schedule": "joint", "classes": 1},
]


@pytest.mark.quick("2-*")
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("clients", [1, 2, 3, 7])
def test_any_number_of_clients_trains_the_generator(make_central, make_grid, variant, clients):
    """K = 1, K < C, K = C and K > C."""
    strategy = make_central(clients=clients, rounds=4, **variant)
    before = weights(strategy.trainer.generator).clone()
    metrics = play(strategy, make_grid(clients))
    assert strategy.round == 4
    assert all(
        record["loss"] > 0 and math.isfinite(record["signal_to_noise"]) for record in metrics
    )
    after = weights(strategy.trainer.generator)
    assert bool(after.isfinite().all())
    assert float((after - before).abs().max()) > 1e-3


@pytest.mark.medium
def test_training_moves_the_generator_to_the_data(make_central, make_grid):
    """With ample records per noise, the class means come out: 0, 1 and 2 in every coordinate."""
    strategy = make_central(rounds=250, rate=1.0, lr=0.03)
    plan = replace(strategy.settings.plan, noise_multiplier=1e-3)
    settings = replace(strategy.settings, plan=plan)
    strategy = DPSinkhornStrategy(settings, strategy.trainer.generator, b"server")
    play(strategy, make_grid())
    z = strategy.generator.latent(300, Stream(b"k"))
    labels = torch.arange(3).repeat_interleave(100)
    means = strategy.generator(z, labels).reshape(3, 400).mean(1)
    assert means.tolist() == pytest.approx([0.0, 1.0, 2.0], abs=0.2)


@pytest.mark.medium
@pytest.mark.parametrize("variant", VARIANTS[:4], ids=str)
def test_the_order_of_replies_does_not_matter_to_the_last_bit(make_central, make_grid, variant):
    ends = []
    for order in (lambda r: r, lambda r: r[::-1], lambda r: r[3:] + r[:3]):
        grid = make_grid(7)
        grid.change = order
        strategy = make_central(clients=7, rounds=3, **variant)
        play(strategy, grid)
        ends.append(weights(strategy.trainer.generator))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_sums_that_rounding_would_reorder_are_taken_in_client_order(make_central, make_grid):
    """1e30 + 1 − 1e30 is 0 or 1: the order of addition must not be that of arrival."""
    losses = set()
    for order in ([0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0]):
        strategy, grid = make_central(schedule="joint"), make_grid()
        messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
        replies = list(grid.send_and_receive(messages))
        for reply, value in zip(replies, (1e30, 1e3, -1e30), strict=True):
            reply.content = pack_replies([torch.full((15, 4), value)])
        _, record = strategy.aggregate_train(1, [replies[i] for i in order])
        losses.add(float((record or {})["loss"]))
    assert len(losses) == 1


@pytest.mark.parametrize(
    "variant",
    [{"tether": 2.0}, *VARIANTS[2:5]],
    ids=lambda variant: "-".join(map(str, variant.values())),
)
def test_the_server_learns_of_records_from_replies_alone(
    make_central, make_grid, install_source, variant
):
    """Other records behind the same replies: rows, potentials, self terms, weights are the same."""

    def played(replies: list[RecordDict]) -> tuple[list[bytes], list[RecordDict], Tensor]:
        """Requests, the clients' own replies, and weights of a run that hears `replies`, if any."""
        grid, strategy, own = make_grid(), make_central(rounds=3, **variant), []
        heard = iter(replies)

        def change(answers: list[Message]) -> list[Message]:
            own.extend(answer.content for answer in answers)
            for answer in answers:
                answer.content = next(heard, answer.content)
            return answers

        grid.change = change
        play(strategy, grid)
        requests = [
            digest(message.metadata.message_type, message.content) for message in grid.asked
        ]
        return requests, own, weights(strategy.trainer.generator)

    requests, replies, end = played([])
    close_nodes()
    forget()
    install_source(lambda spec, split: (7.0 - 3.0 * points(spec, split)[0], points(spec, split)[1]))
    again, others, again_end = played(replies)
    assert requests == again
    assert torch.equal(end, again_end)
    own, other = (unpack_replies(of[0])[0] for of in (replies, others))
    assert not torch.equal(own, other)


def test_every_client_is_asked_about_its_scheduled_class(make_central, make_grid):
    """Pitfall 3: also where it holds no record of it."""
    grid = make_grid(4)
    play(make_central(clients=4, rounds=5), grid)
    asked = [m for m in grid.asked if m.metadata.message_type == "train.dp_sinkhorn"]
    assert len(asked) == 4 * 5
    for message in asked:
        request = GradientRequest.from_record(message.content)
        client = message.metadata.dst_node_id - 1000
        assert request.label == (client + request.round) % 3
        assert set(request.row_labels.tolist()) == {request.label}
        assert request.rows.shape == (5, 4)


@pytest.mark.parametrize("variant", VARIANTS[:4], ids=str)
def test_requests_hold_no_graph_and_groups_in_row_order(make_central, make_grid, variant):
    grid = make_grid()
    play(make_central(**variant), grid, 1)
    request = GradientRequest.from_record(grid.asked[-1].content)
    joint = variant["schedule"] == "joint"
    expected = [0] * 5 + [1] * 5 + [2] * 5 if joint else [request.label] * 5
    assert request.row_labels.tolist() == expected
    if variant["clip"] == "record":
        assert request.potentials.shape == (len(expected),)
        assert not bool(request.self_gradient.any())
    else:
        assert request.self_gradient.shape == request.rows.shape
        assert float(request.self_gradient.norm()) > 0


def test_replies_about_the_same_rows_are_averaged(make_central, make_grid):
    """Clients k and k + 3 are asked about one class: only the mean of their replies matters."""
    ends = []
    for kind in ("own", "mean"):
        grid = make_grid(6)

        def change(replies: list[Message], kind: str = kind) -> list[Message]:
            own = [unpack_replies(r.content)[0].double() for r in replies]
            if kind == "own":
                return replies
            for k in range(3):
                mean = ((own[k] + own[k + 3]) / 2).to(torch.float64)
                for r in (replies[k], replies[k + 3]):
                    r.content = pack_replies([mean])
            return replies

        grid.change = change
        strategy = make_central(clients=6, rounds=1)
        play(strategy, grid)
        ends.append(weights(strategy.trainer.generator))
    assert torch.allclose(ends[0], ends[1], atol=1e-7)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(FAILED, "failed"), (REFUSED, "refused the request"), (17, "answered with Flower's error 17")],
)
def test_an_error_names_client_round_and_reason(make_central, make_grid, code, meaning):
    grid, strategy = make_grid(), make_central()
    play(strategy, grid, 2)
    grid.fail(1, code)
    message = f"While computing gradients in round 3, client 1 {meaning}"
    with pytest.raises(ClientError, match=message) as raised:
        play(strategy, grid, 3)
    assert "secret" not in str(raised.value)
    assert strategy.round == 2


@pytest.mark.parametrize(("gone", "first", "count"), [([2], 2, 1), ([1, 0], 0, 2)])
@pytest.mark.parametrize("schedule", ["class", "joint"])
def test_a_reply_that_never_comes_is_an_error_that_says_whose(
    make_central, make_grid, schedule, gone, first, count
):
    """Flower's send_and_receive(timeout=…) returns a partial list silently."""
    grid = make_grid()
    grid.lose(*gone)
    strategy = make_central(schedule=schedule)
    message = rf"in round 1, {count} of 3 clients did not answer \(client {first} first\)"
    with pytest.raises(ClientError, match=message):
        play(strategy, grid)
    assert strategy.round == 0


@pytest.mark.parametrize(
    ("uses", "gradient", "message"),
    [
        (1, [math.nan, 5, 4], r"values of shape \(1, 5, 4\); expected finite"),
        (
            1,
            [0.0, 1, 4],
            r"values of shape \(1, 1, 4\); expected finite values of shape \(1, 5, 4\)",
        ),
        (1, [0.0, 5, 3], r"values of shape \(1, 5, 3\)"),
        (3, [0.0, 5, 4], r"values of shape \(1, 5, 4\); expected .* \(3, 5, 4\)"),
        (1, None, "Malformed message"),
    ],
)
def test_a_reply_that_is_no_gradient_of_the_rows_is_refused(
    make_central, make_grid, uses, gradient, message
):
    """One broken client must not ruin the generator silently."""
    grid, strategy = make_grid(), make_central(uses_per_message=uses)
    content = RecordDict()
    if gradient is not None:
        value, *shape = gradient
        content = pack_replies([torch.full(shape, value)])
    grid.say(2, content)
    before = weights(strategy.trainer.generator).clone()
    with pytest.raises(ClientError, match=rf"round.* 1.*, client 2 answered(:| with) {message}"):
        play(strategy, grid)
    assert torch.equal(weights(strategy.trainer.generator), before)


def test_replies_before_a_request_are_refused(make_central):
    with pytest.raises(ClientError, match="Replies for round 1 came before its request"):
        make_central().aggregate_train(1, [])


def test_missing_clients_are_refused_at_once(make_central, make_grid):
    with pytest.raises(ClientError, match="Expected the clients 0 to 3, found 3 of them"):
        play(make_central(clients=4), make_grid(3))


class _Asking:
    """A grid that has no roster and no sums, as Flower's own have none."""

    def __init__(self, grid: Any) -> None:
        self.get_node_ids = grid.get_node_ids
        self.send_and_receive = lambda messages, timeout=None: grid.send_and_receive(list(messages))


def test_nodes_say_which_client_they_are_where_the_grid_does_not_know(make_central, make_grid):
    ours, theirs, grid = make_central(), make_central(), make_grid()
    play(ours, make_grid())
    asking: Any = _Asking(grid)
    play(theirs, asking)
    assert [m.metadata.message_type for m in grid.asked[:4]] == ["query.identity"] * 3 + [
        "train.dp_sinkhorn"
    ]
    assert torch.equal(weights(ours.generator), weights(theirs.generator))
    with pytest.raises(ClientError, match="Expected the clients 0 to 3, found 3 of them"):
        play(make_central(clients=4), asking)


def _summing(grid: Any) -> Any:
    """Returns a grid like `grid` that adds the replies up."""
    return LocalGrid(client_app(grid.node), grid.clients, batched=NodeCohort(grid.node))


@pytest.mark.medium
@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("schedule", ["class", "joint"])
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_sums_made_by_the_grid_train_the_same_generator(
    make_central, make_grid, clip, schedule, uses
):
    options = {"clip": clip, "schedule": schedule, "clients": 7, "uses_per_message": uses}
    ours, theirs = make_central(**options), make_central(**options)
    play(ours, make_grid(7), ours.messages)
    play(theirs, _summing(make_grid(7)), theirs.messages)
    torch.testing.assert_close(
        weights(ours.generator), weights(theirs.generator), rtol=0, atol=1e-5
    )
    assert ours.round == theirs.round == 6


def test_a_failure_behind_a_sum_names_the_client(make_central, make_grid):
    strategy, grid = make_central(clients=2), make_grid(2)
    strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    with pytest.raises(ClientError, match=r"in round 1, client 1 refused the request; its own log"):
        strategy.aggregate_train(1, cast(Any, Reduction([None, None], {1: REFUSED})))
    with pytest.raises(ClientError, match=r"not every client's answer was added up"):
        strategy.aggregate_train(1, cast(Any, Reduction([None, None], {})))


def test_an_unmodified_flower_strategy_start_runs_it(make_central, make_grid):
    ours, theirs = make_central(), make_central()
    play(ours, make_grid())
    result = theirs.start(make_grid(), ArrayRecord(), num_rounds=6)
    assert torch.equal(weights(ours.generator), weights(theirs.generator))
    assert len(result.train_metrics_clientapp) == 6
    assert theirs.round == 6


def test_flower_cannot_run_more_rounds_than_the_plan(make_central, make_grid):
    """Pitfall 6: no more rounds are charged for (clients refuse them as well)."""
    with pytest.raises(ClientError, match="6 rounds in 6 messages, and message 7"):
        make_central().start(make_grid(), ArrayRecord(), num_rounds=7)


def test_scaling_uses_public_numbers_only(make_central, make_grid):
    """Pitfall 17: other shard sizes, same requests in round 1 and same scale."""
    even, uneven = make_central(), make_central()
    assert even.settings.nominal_batch == pytest.approx(0.5 * 61 / 3 / 3)
    first, second = make_grid(), make_grid(partition=Unequal(sizes=(50, 10, 1)))
    contents = []
    for strategy, grid in ((even, first), (uneven, second)):
        messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
        contents.append([GradientRequest.from_record(m.content) for m in messages])
        # The same replies give the same step, whatever the shards behind them.
        replies = grid.send_and_receive(messages)
        for reply in replies:
            reply.content = pack_replies([torch.ones(5, 4)])
        strategy.aggregate_train(1, replies)
    for ours, theirs in zip(*contents, strict=True):
        assert torch.equal(ours.rows, theirs.rows)
        assert torch.equal(ours.potentials, theirs.potentials)
    assert torch.equal(weights(even.trainer.generator), weights(uneven.trainer.generator))
    assert even.settings.nominal_batch == uneven.settings.nominal_batch


def test_record_sums_are_divided_by_the_nominal_batch_and_batch_means_are_not(
    make_central, make_grid
):
    losses = {}
    for clip in ("record", "batch"):
        for nominal in (61 / 3, 10 * 61 / 3):
            strategy, grid = make_central(clip=clip, nominal_records=nominal), make_grid()
            messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
            replies = grid.send_and_receive(messages)
            for reply in replies:
                reply.content = pack_replies([torch.full((5, 4), 1e6)])
            _, record = strategy.aggregate_train(1, replies)
            losses[clip, nominal] = float((record or {})["loss"])
    assert losses["record", 61 / 3] == pytest.approx(10 * losses["record", 10 * 61 / 3], rel=1e-3)
    assert losses["batch", 61 / 3] == losses["batch", 10 * 61 / 3]


@pytest.mark.medium
def test_state_goes_on_bit_identically(make_central, make_grid, tmp_path):
    for variant in VARIANTS[:5]:
        through, until, resumed = (make_central(**variant) for _ in range(3))
        play(through, make_grid())
        play(until, make_grid(), 3)
        checkpoint.save(tmp_path, *until.state())
        resumed.load_state(*checkpoint.load(tmp_path))
        resumed.round = 3
        play(resumed, make_grid())
        assert torch.equal(weights(resumed.generator), weights(through.generator))
        assert torch.equal(weights(resumed.trainer.generator), weights(through.trainer.generator))


@pytest.mark.medium
def test_epsilon_so_far_grows_from_zero_to_the_plans(make_central, make_grid):
    """Pitfall 6: the total of all rounds, not that of one."""
    strategy, grid = make_central(rounds=6), make_grid()
    values = [strategy.epsilon_so_far()]
    for number in range(1, 7):
        play(strategy, grid, number)
        values.append(strategy.epsilon_so_far())
    assert values[0] == 0.0
    assert values == sorted(values)
    assert values[-1] == pytest.approx(strategy.settings.plan.epsilon())
    assert values[-1] > 1.2 * values[1]


def test_label_prior_reveals_nothing(make_central):
    """Pitfall 17: class frequencies are private."""
    assert make_central().label_prior().tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("schedule", ["class", "joint"])
@pytest.mark.parametrize("per_message", [1, 2])
def test_shared_noise_adds_up_to_the_plans_in_every_mean(
    make_central, make_grid, schedule, per_message
):
    """K = 7, C = 3: cohorts of 3 and 2. Nobody is sampled, so a mean over m is only noise."""
    share = NoiseShare("secure_aggregation")
    strategy = make_central(
        clients=7, schedule=schedule, rate=1e-12, rows=400, rounds=2, share=share,
        uses_per_message=per_message,
    )  # fmt: skip
    grid, std = make_grid(7), strategy.settings.plan.noise_std
    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    for client, message in enumerate(messages):
        for request in unpack_requests(message.content):
            cohort = [k for k in range(7) if schedule == "joint" or k % 3 == client % 3]
            assert request.share == len(cohort)
            assert request.plan == strategy.settings.plan
    sums = strategy._sums(strategy._broadcasts, grid.send_and_receive(messages), "test", range(7))
    for use, rows in enumerate(strategy._rounds):
        labels = [rows.layout.label(client, rows.round) for client in range(7)]
        means = rows.means(sums, use)[0].reshape(*rows.seen.shape)
        for kind, mean in zip(rows.kinds.tolist(), means, strict=True):
            m = 7 if schedule == "joint" else labels.count(kind)
            noise = m * mean.flatten()
            p_values = [
                float(stats.kstest(noise.numpy(), "norm", args=(0.0, scale * std)).pvalue)
                for scale in (1.0, 2 / 3, 3 / 2)
            ]
            assert p_values[0] > 1e-6
            assert max(p_values[1:]) < 1e-12


def test_signal_to_noise_counts_the_shared_noise_once(make_central, make_grid):
    """Two of 6 clients per class: a signal of 3 standard deviations of a reply is 3√2 of a mean."""
    for share in (NoiseShare(), NoiseShare("secure_aggregation")):
        strategy = make_central(rows=200, clients=6, rounds=1, share=share)
        grid, std = make_grid(6), strategy.settings.noise_std(0)
        replies = grid.send_and_receive(
            list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
        )
        for factor, low, high in ((0.0, -0.3, 0.3), (3.0, 3.5, 5.0)):
            for number, reply in enumerate(replies):
                noise = std * Stream(b"k", number).normal(200, 4) + factor * std
                grid_of = strategy.settings.noise_of(number)[1]
                sent = noise.float()
                if grid_of is not None:  # longer than any client's total
                    sent = (noise / grid_of.granularity).round().long()
                reply.content = pack_replies([sent])
            _, record = strategy.aggregate_train(1, replies)
            assert low <= float((record or {})["signal_to_noise"]) <= high
            strategy._points, strategy._rounds = strategy._generate([1])


def test_signal_to_noise_of_cohorts_of_different_sizes_has_no_bias(make_central, make_grid):
    """Of 5 clients one class has 1 and two have 2: the noise of the means is 1 + ½ + ½."""
    strategy = make_central(rows=600, clients=5, rounds=1)
    grid, std = make_grid(5), strategy.settings.plan.noise_std
    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    for number, reply in enumerate(replies):
        noise = std * Stream(b"k", number).normal(600, 4)
        reply.content = pack_replies([noise])
    _, record = strategy.aggregate_train(1, replies)
    # A mean square of 3·2400 values: its error is √(2/2400) of each block; 0.31 with 9/5 instead.
    assert abs(float((record or {})["signal_to_noise"])) < 0.22


@pytest.mark.parametrize("variant", VARIANTS[:6], ids=str)
def test_a_message_holds_the_rounds_that_single_messages_would(make_central, make_grid, variant):
    """T = 5, U = 2: messages for rounds 1-2, 3-4 and 5; rows of the first as in U = 1.

    The self terms of one message are one batch of problems, so they agree up to rounding.
    """
    grid, strategy = make_grid(4), make_central(clients=4, rounds=5, uses_per_message=2, **variant)
    metrics = play(strategy, grid, 1)
    assert (strategy.messages, strategy.message, strategy.round) == (3, 1, 2)
    single = make_central(clients=4, rounds=5, **variant)
    messages = list(single.configure_train(1, ArrayRecord(), ConfigRecord(), make_grid(4)))
    for ours, theirs in zip(grid.asked[-4:], messages, strict=True):
        first, _ = unpack_requests(ours.content)
        (expected,) = unpack_requests(theirs.content)
        assert torch.equal(first.rows, expected.rows)
        torch.testing.assert_close(first.potentials, expected.potentials)
        torch.testing.assert_close(first.self_gradient, expected.self_gradient)
    for number in (2, 3):
        messages = list(strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid))
        _, record = strategy.aggregate_train(number, grid.send_and_receive(messages))
        metrics.append(dict(record or {}))
    assert (strategy.message, strategy.round) == (3, 5)
    assert all(record["loss"] > 0 for record in metrics)
    asked = [m for m in grid.asked if m.metadata.message_type == "train.dp_sinkhorn"]
    held = [[r.round for r in unpack_requests(m.content)] for m in asked]
    assert held == [[1, 2]] * 4 + [[3, 4]] * 4 + [[5]] * 4
    for message in asked:
        client = message.metadata.dst_node_id - 1000
        for request in unpack_requests(message.content):
            of_class = (client + request.round) % 3 if variant["schedule"] == "class" else None
            assert request.label == of_class


def test_a_message_takes_one_step_along_the_mean_of_its_gradients(make_central, make_grid):
    """A fixed generator: the gradients of rounds 1 and 2 come from two strategies of U = 1."""
    variant = {"clip": "batch", "self_term": "semi_debiased", "rounds": 3}
    steps: dict[int, list[Any]] = {1: [], 2: []}
    for uses in (1, 2):
        strategy, grid = make_central(uses_per_message=uses, **variant), make_grid()
        strategy.trainer.step = lambda *a, to=steps[uses]: to.append(a)  # type: ignore[method-assign]
        play(strategy, grid, 3 if uses == 1 else 1)
    (together,) = steps[2]
    points, gradient, number = together
    apart = [gradient for _, gradient, _ in steps[1]]
    assert number == 1
    assert torch.allclose(gradient, torch.cat(apart[:2]) / 2, atol=1e-6)
    assert torch.allclose(points, torch.cat([points for points, _, _ in steps[1][:2]]), atol=1e-6)
    assert points.requires_grad


@pytest.mark.medium
def test_many_uses_per_message_train_save_and_resume(make_central, make_grid, tmp_path):
    through, until, resumed = (make_central(rounds=7, uses_per_message=3) for _ in range(3))

    def go(strategy: DPSinkhornStrategy, messages: int) -> list[float]:
        epsilons, grid = [], make_grid()
        for number in range(strategy.message + 1, messages + 1):
            asked = list(strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid))
            strategy.aggregate_train(number, grid.send_and_receive(asked))
            epsilons.append(strategy.epsilon_so_far())
        return epsilons

    plan = through.settings.plan
    assert go(through, 3) == [plan.epsilon_after(t) for t in (3, 6, 7)]
    assert through.epsilon_so_far() == plan.epsilon()
    go(until, 2)
    checkpoint.save(tmp_path, *until.state())
    resumed.load_state(*checkpoint.load(tmp_path))
    resumed.round = until.round
    go(resumed, 3)
    assert torch.equal(weights(resumed.generator), weights(through.generator))


def test_rows_must_be_positive(make_central):
    with pytest.raises(ConfigError, match=r"strategy\.rows must be .* at least 1, not 0"):
        make_central(rows=0)
    with pytest.raises(ConfigError, match=r"uses_per_message must be .* at least 1, not 0"):
        make_central(uses_per_message=0)
