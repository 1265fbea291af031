"""The guard around an app that is not fedsink's: what leaves, what it costs, and hostile use."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx
from scipy.optimize import brentq
from scipy.stats import norm

from fedsink import guard
from fedsink.clients.guard import answer_guarded
from fedsink.clients.node import close_nodes
from fedsink.clients.owner.ledger.account_report import RunReport, refusals, report
from fedsink.clients.owner.ledger.database import Database
from fedsink.clients.owner.policy_file import read_policy
from fedsink.commands.cli import main
from fedsink.errors import ConfigError, PrivacyError, ReleaseRefusedError
from fedsink.flower_internals import become
from fedsink.privacy import SecretKey
from fedsink.protocol.failure_codes import FAILED, MALFORMED, REFUSED, RUN_TAKEN
from fedsink.simulation.grid import SimulationGrid, client_context, client_of

from ..support.laws import assert_law

NOMINAL, DELTA, BOUND, SIGMA, ROUNDS = 100, 1e-5, 0.5, 2.0, 4
UPDATE: dict[str, Any] = {
    "job": "update", "rounds": ROUNDS, "delta": DELTA, "clip_bound": BOUND,
    "noise_multiplier": SIGMA,
}  # fmt: skip
RECORDS: dict[str, Any] = {"job": "records", "rounds": ROUNDS, "delta": DELTA}
METRICS: dict[str, Any] = {
    "metric_noise_multiplier": 30.0, "metrics": {"accuracy": [0.0, 1.0], "loss": [0.0, 5.0]},
}  # fmt: skip
Train = Callable[[Message, Context], Any]
Arrays = dict[str, np.ndarray]

RECEIVED: Arrays = {
    "layer.weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "layer.bias": np.zeros(2, np.float32),
    "scale": np.asarray(1.5, np.float64),
    "steps": np.asarray(7),
}
"""A network's parameters, with a number of floats and BatchNorm's counter of batches."""


def toml(table: dict[str, Any], name: str = "") -> str:
    values = "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items() if type(v) is not dict)
    inner = (toml(v, f"{name}.{k}".lstrip(".")) for k, v in table.items() if type(v) is dict)
    return (f"[{name}]\n{values}" if name else "") + "".join(inner)


class Ward:
    """An owner with a policy, and an app that trains as a test says."""

    def __init__(
        self, folder: Path, app: dict[str, Any], *, epsilon: float = 1e4, backend: str = "fast"
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / "policy.toml"
        self.tables: dict[str, Any] = {
            "data": {"lineage": "ward", "nominal_records": NOMINAL},
            "state": {"folder": "state"},
            "noise": {"backend": backend},
            "budget": {
                adjacency: {"epsilon": epsilon, "delta": 100 * DELTA}
                for adjacency in ("add-remove", "client")
            },
        }
        self.write(app)
        self.config: dict[str, Any] = {"policy": str(self.file)}
        self.submitted: dict[str, Any] = {}  # the run_config, which whoever submits a run writes
        self.trains: Train = lambda message, context: reply(message, arrays_of(message))
        self.app = ClientApp(mods=[guard()])
        for register in (self.app.train, self.app.evaluate, self.app.query):
            register()(lambda message, context: self.trains(message, context))

    def write(self, app: dict[str, Any]) -> None:
        self.file.write_text(toml({**self.tables, "app": app}))

    def ask(
        self, run: int = 1, kind: str = "train", arrays: Arrays = RECEIVED, **content: Any
    ) -> Message:
        become(run, 11)
        records = {"arrays": record(arrays), "config": ConfigRecord({"lr": 0.1}), **content}
        message = Message(RecordDict(records), dst_node_id=11, message_type=kind)
        message.metadata.__dict__["_run_id"] = run
        return self.app(message, Context(run, 11, self.config, RecordDict(), self.submitted))

    def runs(self) -> dict[str, RunReport]:
        database = Database(self.file.parent / "state" / "ledger.sqlite", writable=False)
        try:
            return {run.run: run for account in report(database) for run in account.runs}
        finally:
            database.close()

    def noise(self, run: str, std: float, size: int, number: int = -1) -> np.ndarray:
        """Returns the noise of one round, drawn again from the owner's key and ledger."""
        state = self.file.parent / "state"
        database = Database(state / "ledger.sqlite", writable=False)
        claims = database.rows(
            "SELECT round, digest FROM claims JOIN runs ON run = id WHERE name=? ORDER BY round",
            run,
        )
        database.close()
        round, digest = claims[number]
        key = SecretKey.load(state / "noise.key")
        stream = key.stream("guard", client=0, round=round, request=digest)
        return stream.add_gaussian(torch.zeros(size, dtype=torch.float64), std).numpy()


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def arrays_of(message: Message) -> Arrays:
    [found] = message.content.array_records.values()
    return {name: array.numpy() for name, array in found.items()}


def reply(message: Message, arrays: Arrays, **metrics: Any) -> Message:
    content = RecordDict({"mine": record(arrays)})
    content["scores"] = MetricRecord({"num-examples": 41, "accuracy": 0.75, **metrics})
    return Message(content, reply_to=message)


def moved_by(step: float) -> Train:
    def train(message: Message, context: Context) -> Message:
        arrays = {n: np.asarray(v + step, v.dtype) for n, v in arrays_of(message).items()}
        return reply(message, arrays)

    return train


def floats(arrays: Arrays) -> np.ndarray:
    return np.concatenate([v.ravel().astype(float) for v in arrays.values() if v.dtype.kind == "f"])


def metrics_of(answer: Message) -> dict[str, Any]:
    [found] = answer.content.metric_records.values()
    return dict(found)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns ε(δ) of μ-Gaussian DP (Balle and Wang 2018, Theorem 8)."""

    def excess(eps: float) -> float:
        return float(
            norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu) - delta
        )

    return float(brentq(excess, 0, 200, xtol=1e-12))


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_nodes()


@pytest.fixture
def ward(tmp_path: Path) -> Callable[..., Ward]:
    numbers = count()
    return lambda app, **more: Ward(tmp_path / f"ward{next(numbers)}", app, **more)


Wards = Callable[..., Ward]


# What a job costs


@pytest.mark.parametrize(("sigma", "rounds"), [(2.0, 4), (0.7, 1), (15.0, 100)])
def test_an_update_job_costs_what_gaussian_dp_says(ward: Wards, sigma: float, rounds: int) -> None:
    owner = ward({**UPDATE, "noise_multiplier": sigma, "rounds": rounds})
    assert not owner.ask().has_error()
    run = owner.runs()["flower-1"]
    assert run.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(rounds) / sigma, DELTA), 1e-6)
    assert (run.delta, run.rounds, run.claimed) == (DELTA, rounds, 1)


@pytest.mark.medium
@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.02, 1.1, 50), (1.0, 3.0, 2)])
def test_a_job_of_records_costs_what_dp_accounting_says(
    ward: Wards, rate: float, sigma: float, steps: int
) -> None:
    owner = ward(RECORDS)
    owner.trains = reserving(rate, sigma, steps)
    assert not owner.ask().has_error()
    accountant = PLDAccountant()
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    once = dp_accounting.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian
    accountant.compose(dp_accounting.SelfComposedDpEvent(once, steps * ROUNDS))
    run = owner.runs()["flower-1"]
    assert run.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
    assert run.plan["training"] == "as the app says"


def test_an_event_of_ones_own_and_fewer_rounds_are_reserved(ward: Wards) -> None:
    owner = ward(RECORDS)
    event = dp_accounting.LaplaceDpEvent(2.0)
    owner.trains = lambda message, context: (
        guard.reserve(event=event, rounds=2),
        reply(message, arrays_of(message)),
    )[1]
    assert [owner.ask().has_error() for _ in range(3)] == [False, False, True]
    accountant = PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, 2))
    expected = accountant.get_epsilon(DELTA)
    assert owner.runs()["flower-1"].epsilon == pytest.approx(expected, rel=1e-3)


def reserving(rate: float = 0.1, sigma: float = 2.0, steps: int = 5, **more: Any) -> Train:
    def train(message: Message, context: Context) -> Message:
        guard.reserve(rate, sigma, steps, **more)
        return moved_by(1.0)(message, context)

    return train


def test_metrics_cost_gaussian_dp_of_their_own(ward: Wards) -> None:
    owner = ward({**UPDATE, **METRICS})
    assert not owner.ask(kind="evaluate").has_error()
    assert not owner.ask().has_error()
    runs, expected = owner.runs(), gaussian_epsilon(math.sqrt(2 * ROUNDS) / 30.0, DELTA)
    assert runs.keys() == {"flower-1", "flower-1/train metrics", "flower-1/evaluate metrics"}
    for kind in ("train", "evaluate"):
        assert runs[f"flower-1/{kind} metrics"].epsilon == pytest.approx(expected, 1e-6)


# When it is charged


@pytest.mark.parametrize("job", [UPDATE, RECORDS])
def test_the_job_is_charged_and_the_round_claimed_before_the_app_trains(
    ward: Wards, job: dict[str, Any]
) -> None:
    owner, seen = ward(job), list[tuple[float | None, int]]()

    def train(message: Message, context: Context) -> Message:
        if job is RECORDS:
            assert guard.reserve(0.1, 2.0, 5) == len(seen) + 1
        run = owner.runs()["flower-1"]
        seen.append((run.epsilon, run.claimed))
        raise RuntimeError("the machine stops here")

    owner.trains = train
    owner.ask(), owner.ask()
    assert [claimed for _, claimed in seen] == [1, 2]
    assert seen[0][0] == seen[1][0] is not None


@pytest.mark.parametrize("job", [UPDATE, RECORDS])
def test_every_message_is_a_round_and_one_beyond_the_plan_is_refused(
    ward: Wards, job: dict[str, Any]
) -> None:
    """Pitfall 9: a repeated message is a round, too, and never the same noise again."""
    owner = ward(job)
    owner.trains = reserving() if job is RECORDS else moved_by(0.0)
    answers = [owner.ask() for _ in range(ROUNDS)]
    assert not any(answer.has_error() for answer in answers)
    if job is UPDATE:
        assert len({floats(arrays_of(answer)).tobytes() for answer in answers}) == ROUNDS
    refused = owner.ask()
    assert (refused.error.code, refused.error.reason) == (REFUSED, None)
    assert owner.runs()["flower-1"].claimed == ROUNDS


def test_jobs_add_up_to_the_ceiling_in_whatever_order_they_are_asked(ward: Wards) -> None:
    one = gaussian_epsilon(math.sqrt(ROUNDS) / SIGMA, DELTA)
    owner = ward(UPDATE, epsilon=2.5 * one)
    outcomes = [owner.ask(run).has_error() for _ in range(ROUNDS) for run in (1, 2, 3)]
    assert outcomes == [False, False, True] * ROUNDS
    assert {name: run.claimed for name, run in owner.runs().items()} == {
        "flower-1": ROUNDS, "flower-2": ROUNDS,
    }  # fmt: skip


def test_a_hopeless_policy_is_refused_when_it_is_read(ward: Wards) -> None:
    with pytest.raises(ConfigError, match=r"a job costs ε = \d.* above the budget's: add noise"):
        read_policy(ward(UPDATE, epsilon=1.0).file)


def test_a_job_that_changes_its_plan_is_refused(ward: Wards) -> None:
    owner = ward(RECORDS)
    owner.trains = reserving()
    assert not owner.ask().has_error()
    for other in (reserving(steps=6), reserving(sigma=3.0), reserving(rounds=2)):
        owner.trains = other
        assert owner.ask().error.code == RUN_TAKEN
    owner = ward(UPDATE)
    assert not owner.ask().has_error()
    owner.write({**UPDATE, "noise_multiplier": 3.0})
    close_nodes()
    assert owner.ask().error.code == RUN_TAKEN


@pytest.mark.slow
def test_ten_thousand_questions_get_the_plans_rounds(ward: Wards) -> None:
    owner = ward(UPDATE)
    answers = [owner.ask().has_error() for _ in range(10_000)]
    assert answers.count(False) == ROUNDS
    assert owner.runs()["flower-1"].claimed == ROUNDS


# What leaves of an update


def test_an_update_moves_by_at_most_the_clip_over_a_whole_history(ward: Wards) -> None:
    """Minus the noise, whatever the app sends and the server asks."""
    for layers in (False, True):
        owner = ward({**UPDATE, "rounds": 40, "noise_multiplier": 20.0, "layers": layers})
        stretched = [0.0, 1e-12, 0.01, -0.3, 1.0, 1e6, -1e15]
        for number, step in enumerate(stretched):
            arrays = {n: np.asarray(v * (1 + number), v.dtype) for n, v in RECEIVED.items()}
            owner.trains = moved_by(step)
            sent = owner.ask(arrays=arrays)
            assert not sent.has_error()
            size = floats(arrays).size
            noise = owner.noise("flower-1", 20.0 * BOUND, size)
            change = floats(arrays_of(sent)) - floats(arrays) - noise
            raw = np.full(size, step)
            if not layers:
                raw *= min(1.0, BOUND / max(np.linalg.norm(raw), 1e-300))
                np.testing.assert_allclose(change, raw, atol=2e-5)
            assert np.linalg.norm(change) <= BOUND + 2e-5
            if layers and abs(step) >= 0.3:
                parts = np.split(change, [6, 8])
                each = [np.linalg.norm(part) for part in parts]
                np.testing.assert_allclose(each, BOUND / math.sqrt(3), rtol=1e-2)


def test_two_neighbours_differ_by_at_most_the_clip_over_a_whole_history(ward: Wards) -> None:
    """One whose app trains as it likes, and one without data: the same ledger, noise taken off."""
    with_data, without = ward({**UPDATE, "rounds": 10}), ward({**UPDATE, "rounds": 10})
    without.trains = moved_by(0.0)
    arrays = [dict(RECEIVED), dict(RECEIVED)]
    for number in range(10):
        with_data.trains = moved_by((-2.0) ** number)
        released = []
        for owner in (with_data, without):
            sent = arrays_of(owner.ask(arrays=arrays[0]))  # chosen by the first one's replies
            noise = owner.noise("flower-1", SIGMA * BOUND, floats(sent).size)
            released.append(floats(sent) - noise)
        assert np.linalg.norm(released[0] - released[1]) <= BOUND * (1 + 1e-5)
        arrays[0] = arrays_of(with_data.ask(run=2 + number, arrays=arrays[0]))


@pytest.mark.parametrize("share", [1, 4])
def test_the_noise_has_the_plans_law(ward: Wards, share: int) -> None:
    trusted = {"secure_aggregation": "trusted", "share": share} if share > 1 else {}
    owner = ward({**UPDATE, **trusted})
    zeros = {"w": np.zeros(4000, np.float32)}
    drawn = [floats(arrays_of(owner.ask(arrays=zeros))) for _ in range(2)]
    for values in drawn:
        assert_law(values, norm(scale=SIGMA * BOUND / math.sqrt(share)))
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.1
    run = owner.runs()["flower-1"]
    assert run.plan["share"] == share
    assert run.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(ROUNDS) / SIGMA, DELTA), 1e-6)


@pytest.mark.medium
def test_noise_can_be_float_safe(ward: Wards) -> None:
    owner = ward(UPDATE, backend="secure")
    zeros = {"w": np.zeros(2000, np.float32)}
    assert_law(floats(arrays_of(owner.ask(arrays=zeros))), norm(scale=SIGMA * BOUND))
    assert not (owner.file.parent / "state" / "noise.key").exists()


def test_noise_is_not_drawn_again_beside_a_ledger_that_was_put_back(ward: Wards) -> None:
    """Pitfall 14: the difference of two replies under one noise would show the update."""
    owner = ward(UPDATE)
    first = floats(arrays_of(owner.ask()))
    close_nodes()
    for file in (owner.file.parent / "state").glob("ledger.sqlite*"):
        file.unlink()
    assert np.abs(floats(arrays_of(owner.ask())) - first).min() > 1e-4


# What an app can do wrong


def _late(message: Message, context: Context) -> Message:
    """Replies, and goes on changing what it has sent."""
    arrays = {n: v.copy() for n, v in arrays_of(message).items()}
    answer = reply(message, arrays)

    def change() -> None:
        for name in list(answer.content["mine"]):
            answer.content["mine"][name] = Array(np.full(3, 99.0))

    threading.Timer(0.01, change).start()
    return answer


def _exits(message: Message, context: Context) -> Message:
    raise SystemExit("enough")


def _rewrites(message: Message, context: Context) -> Message:
    """Changes the message that it was sent, and answers with it."""
    message.metadata.__dict__["_dst_node_id"] = 4711
    message.content["arrays"] = record({"patient": np.ones(3)})
    return Message(message.content, reply_to=message)


def other(change: Callable[[Arrays], Any]) -> Train:
    """Answers with changed arrays, in place of those received."""

    def train(message: Message, context: Context) -> Message:
        arrays = arrays_of(message)
        arrays.update(change(arrays) or {})
        return reply(message, arrays)

    return train


def two_records(message: Message, context: Context) -> Message:
    answer = reply(message, arrays_of(message))
    answer.content["more"] = record({"patients": np.arange(3.0)})
    return answer


WRONG: dict[str, Train] = {
    "raises": lambda m, c: {}["a secret of patient 4711"],
    "exits": _exits,
    "another shape": other(lambda a: {"layer.bias": np.ones(3, np.float32)}),
    "one more array": other(lambda a: {"patients": np.ones(3)}),
    "one less": other(lambda a: a.pop("scale") and None),
    "NaN": other(lambda a: {"layer.bias": np.asarray([np.nan, 0], np.float32)}),
    "infinity": other(lambda a: {"scale": np.asarray(-np.inf)}),
    "integers": other(lambda a: {"layer.bias": np.asarray([1, 2])}),
    "words": other(lambda a: {"layer.bias": np.asarray(["4711", ""])}),
    "two records": two_records,
    "no record": lambda m, c: Message(RecordDict(), reply_to=m),
    "two replies": lambda m, c: [reply(m, arrays_of(m))] * 2,
    "nothing": lambda m, c: None,
    "the message itself": _rewrites,
}


@pytest.mark.parametrize("how", WRONG)
def test_an_app_that_fails_has_an_update_of_zeros(ward: Wards, how: str) -> None:
    owner = ward({**UPDATE, **METRICS})
    owner.trains = WRONG[how]
    sent = owner.ask()
    assert not sent.has_error()
    noise = owner.noise("flower-1", SIGMA * BOUND, 9)
    np.testing.assert_allclose(floats(arrays_of(sent)) - noise, floats(RECEIVED), atol=1e-5)
    assert sent.metadata.dst_node_id == 0 or sent.metadata.dst_node_id == 11
    assert_nothing_else_leaves(sent, {"num-examples", "accuracy", "loss"})


@pytest.mark.parametrize("how", WRONG)
def test_parameters_that_a_job_of_records_did_not_receive_stay(ward: Wards, how: str) -> None:
    owner = ward(RECORDS)

    def train(message: Message, context: Context) -> Any:
        guard.reserve(0.1, 2.0, 5)
        return WRONG[how](message, context)

    owner.trains = train
    sent = owner.ask()
    assert (sent.error.code, sent.error.reason) == (FAILED, None)
    assert owner.runs()["flower-1"].claimed == 1


def assert_nothing_else_leaves(sent: Message, metrics: set[str]) -> None:
    assert list(sent.content) == ["arrays", "metrics"]
    assert {n: (v.shape, v.dtype) for n, v in arrays_of(sent).items()} == {
        n: (v.shape, v.dtype) for n, v in RECEIVED.items()
    }
    assert arrays_of(sent)["steps"] == RECEIVED["steps"]
    assert metrics_of(sent).keys() == metrics
    assert metrics_of(sent)["num-examples"] == NOMINAL


def test_what_a_thread_changes_afterwards_has_left_already(ward: Wards) -> None:
    owner = ward(RECORDS)
    reserve, late = reserving(), list[Exception]()
    answered, threads = threading.Event(), list[threading.Thread]()

    def train(message: Message, context: Context) -> Message:
        reserve(message, context)

        def reserve_more() -> None:
            answered.wait()
            try:
                guard.reserve(0.1, 2.0, 5)
            except PrivacyError as error:
                late.append(error)

        threads.append(threading.Thread(target=copy_context().run, args=(reserve_more,)))
        threads[0].start()
        return _late(message, context)

    owner.trains = train
    sent = owner.ask()
    answered.set()
    threads[0].join()
    before = floats(arrays_of(sent))
    threading.Event().wait(0.05)
    np.testing.assert_array_equal(floats(arrays_of(sent)), before)
    assert_nothing_else_leaves(sent, {"num-examples"})
    assert len(late) == 1
    assert owner.runs()["flower-1"].claimed == 1


def test_a_job_of_records_is_answered_with_what_the_app_sends(ward: Wards) -> None:
    owner = ward(RECORDS)
    owner.trains = reserving()
    sent = owner.ask()
    np.testing.assert_allclose(floats(arrays_of(sent)), floats(RECEIVED) + 1, rtol=1e-6)
    assert_nothing_else_leaves(sent, {"num-examples"})


def test_an_app_that_reserves_nothing_gets_nothing_out(
    ward: Wards, caplog: pytest.LogCaptureFixture
) -> None:
    owner = ward(RECORDS, epsilon=0.5)
    owner.trains = moved_by(1.0)
    assert owner.ask().error.code == REFUSED
    assert "call guard.reserve(sample_rate, noise_multiplier, steps) before" in caplog.text

    def swallows(message: Message, context: Context) -> Message:
        with pytest.raises(ReleaseRefusedError, match="budget"):
            guard.reserve(0.5, 0.5, 100)
        return reply(message, arrays_of(message))

    owner.trains = swallows
    assert owner.ask().error.code == REFUSED
    assert owner.runs() == {}


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        ((0.0, 1.0, 1), {}, "sample_rate must"),
        ((1.1, 1.0, 1), {}, "sample_rate must"),
        ((0.1, -1.0, 1), {}, "noise_multiplier"),
        ((0.1, 1.0, 0), {}, "steps must"),
        ((0.1, 1.0, 1.5), {}, "steps must"),
        ((0.1, 1.0, 1), {"rounds": 0}, "rounds must"),
        ((0.1, 1.0, 1), {"rounds": ROUNDS + 1}, "for at most 4 rounds: this one reserves 5"),
        ((0.1, 1.0), {}, "steps must"),
        ((0.1, 1.0, 1), {"event": dp_accounting.GaussianDpEvent(1.0)}, "or event="),
        ((), {"event": "a Gaussian"}, "the pld accountant cannot bound"),
    ],
)
def test_a_bad_reservation_is_a_sentence(
    ward: Wards, words: tuple[Any, ...], more: dict[str, Any], message: str
) -> None:
    owner, errors = ward(RECORDS), list[str]()

    def train(received: Message, context: Context) -> Message:
        try:
            guard.reserve(*words, **more)
        except (PrivacyError, ReleaseRefusedError) as error:
            errors.append(str(error))
        return reply(received, arrays_of(received))

    owner.trains = train
    assert owner.ask().has_error()
    assert message in errors[0]
    assert owner.runs() == {}


def test_nothing_is_reserved_where_no_message_to_train_by_records_is_answered(ward: Wards) -> None:
    with pytest.raises(PrivacyError, match="while it answers a message under a guard"):
        guard.reserve(0.1, 1.0, 1)
    owner = ward({**UPDATE, **METRICS})
    owner.trains = reserving()
    assert not owner.ask().has_error()  # it counts as an app that fails
    assert owner.ask(kind="evaluate").content.metric_records.keys() == {"metrics"}
    assert all("training" not in run.plan for run in owner.runs().values())


# What else leaves


@pytest.mark.parametrize("job", [UPDATE, RECORDS])
def test_an_evaluation_returns_nothing_that_the_policy_does_not_name(
    ward: Wards, job: dict[str, Any]
) -> None:
    owner = ward(job)
    owner.trains = WRONG["raises"]  # it is not even asked
    sent = owner.ask(kind="evaluate")
    assert dict(sent.content.metric_records) == {"metrics": {"num-examples": NOMINAL}}
    assert list(sent.content) == ["metrics"]
    assert owner.ask(kind="query").error.code == REFUSED


@pytest.mark.parametrize(
    ("loss", "place"),
    [(2.0, 2.0), (-3.0, 0.0), (7, 5.0), (math.nan, 0.0), (math.inf, 5.0), ([1.0, 2.0], 0.0)],
)
def test_a_named_metric_leaves_inside_its_bounds_and_noised(
    ward: Wards, loss: Any, place: float
) -> None:
    owner = ward({**UPDATE, **METRICS})
    owner.trains = lambda m, c: reply(m, arrays_of(m), loss=loss, patient=4711.0)
    sent = metrics_of(owner.ask(kind="evaluate"))
    assert sent.keys() == {"num-examples", "accuracy", "loss"}
    noise = owner.noise("flower-1/evaluate metrics", 30.0, 2)
    assert sent["accuracy"] == pytest.approx(0.75 + noise[0], abs=1e-4)
    assert sent["loss"] == pytest.approx(place + 5 * noise[1], abs=1e-4)


def test_messages_that_cannot_be_guarded_are_refused_before_anything_is_charged(
    ward: Wards,
) -> None:
    owner = ward(UPDATE)
    bad: Sequence[dict[str, Any]] = (
        {"arrays": {"w": np.asarray([np.nan], np.float32)}},
        {"arrays": {"steps": np.asarray(7)}},
        {"more": record(RECEIVED)},
    )
    assert [owner.ask(**words).error.code for words in bad] == [MALFORMED] * len(bad)
    assert owner.runs() == {}


# Who enforces it


def test_the_ledger_says_who_enforces(ward: Wards, capsys: pytest.CaptureFixture[str]) -> None:
    owner, seen = ward(RECORDS), list[dict[str, Any]]()

    def train(message: Message, context: Context) -> Message:
        seen.append(dict(context.run_config))
        return reserving()(message, context)

    owner.trains = train
    owner.ask(run=1)
    become(2, 11)
    message = Message(
        RecordDict({"arrays": record(RECEIVED)}), dst_node_id=11, message_type="train"
    )
    message.metadata.__dict__["_run_id"] = 2
    owner.write({**RECORDS, "client": "stranger.client_app:app", "config": {"lr": 0.3}})
    module = ModuleType("stranger.client_app")
    module.app = owner.app  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "stranger", ModuleType("stranger"))
        patch.setitem(__import__("sys").modules, "stranger.client_app", module)
        policy = read_policy(owner.file)
        assert not answer_guarded(
            policy, message, Context(2, 11, owner.config, RecordDict(), {"lr": 9.0})
        ).has_error()
    with pytest.raises(SystemExit):
        main(["ledger", "show", f"policy={owner.file}"])
    assert seen == [{}, {"lr": 0.3}]  # at a node the owner's, whatever the run's is
    shown = capsys.readouterr().out
    assert "flower-1" in shown
    assert "guard: records, enforced by the application, trained as the app says" in shown
    assert "guard: records, enforced by the node, trained as the app says" in shown
    assert owner.runs()["flower-2"].claimed == 1  # its own guard inside the node's charges nothing


def test_a_policy_comes_from_the_node_and_every_partition_has_its_own_ledger(
    ward: Wards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner = ward(UPDATE)
    owner.config = {"partition-id": 3, "num-partitions": 5}
    owner.submitted = {"policy": str(owner.file)}
    assert owner.ask().error.code == MALFORMED
    assert "export FEDSINK_POLICY=" in caplog.text
    monkeypatch.setenv("FEDSINK_POLICY", str(owner.file))
    for part in (3, 3, 4):
        owner.config = {"partition-id": part, "num-partitions": 5}
        assert not owner.ask().has_error()
    claims = {}
    for part in (3, 4):
        ledger = owner.file.parent / "state" / f"client-{part}" / "ledger.sqlite"
        database = Database(ledger, writable=False)
        [account] = report(database)
        claims[account.lineage] = account.runs[0].claimed
        database.close()
    assert claims == {"ward/client-3": 2, "ward/client-4": 1}
    owner.config = {"policy": 7}
    assert owner.ask().error.code == MALFORMED


def test_an_owner_sees_how_often_the_app_failed(ward: Wards) -> None:
    owner = ward(UPDATE)
    owner.trains = WRONG["raises"]
    owner.ask(), owner.ask()
    database = Database(owner.file.parent / "state" / "ledger.sqlite", writable=False)
    assert refusals(database) == {"AppFailed": 2}
    database.close()


# Servers of Flower


class Hospitals(SimulationGrid):
    """Three nodes of Flower; the policy of the last one allows two rounds."""

    def __init__(self, wards: Sequence[Ward]) -> None:
        super().__init__(len(wards))
        self._wards = wards

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        answers = []
        for message in messages:
            client = client_of(message.metadata.dst_node_id)
            context = client_context(client, self.clients, message.metadata.run_id)
            context.node_config["policy"] = str(self._wards[client].file)
            answers.append(self._wards[client].app(message, context))
        return answers

    def keep(self, round: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "words"), [(FedAvg, {}), (FedProx, {"proximal_mu": 0.1}), (FedAdam, {"eta": 0.01})]
)
def test_strategies_of_flower_run_on_with_fewer_clients(
    ward: Wards, kind: type[FedAvg], words: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    wards = [ward({**UPDATE, "clip_bound": 1e-3, "rounds": n}) for n in (ROUNDS, ROUNDS, 2)]
    for owner in wards:
        owner.trains = moved_by(1.0)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    start = {n: v for n, v in RECEIVED.items() if v.dtype.kind == "f"}
    result = kind(min_available_nodes=3, **words).start(
        grid=Hospitals(wards), initial_arrays=record(start), num_rounds=ROUNDS
    )
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert result.arrays.keys() == start.keys()
    assert [owner.runs()["flower-1"].claimed for owner in wards] == [ROUNDS, ROUNDS, 2]
