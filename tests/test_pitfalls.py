"""The twenty pitfalls, each a defect seen in a public project; each test meets the real component.

The comment at the head of a test says how it fails where the pitfall comes back. More tests of each
lie beside the code.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from omegaconf import OmegaConf
from scipy import stats
from torch import Tensor

from fedsink.clients import dp_sinkhorn as gradient_module
from fedsink.clients import privatize_once as privatizer_module
from fedsink.clients.app import client_app
from fedsink.clients.dp_sinkhorn import client_gradient
from fedsink.clients.ledger.account_report import AccountReport, report
from fedsink.clients.ledger.database import Database
from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.policy_file import read_policy
from fedsink.clients.privatize_once import privatize
from fedsink.clients.shard import Shard
from fedsink.conf.loading import composed
from fedsink.data import sources
from fedsink.data.maps import PixelRange, PointBall
from fedsink.data.partition import Iid, Unequal
from fedsink.data.spec import DataSpec
from fedsink.errors import BudgetError, PrivacyError, ReleaseRefusedError
from fedsink.flower_internals import become
from fedsink.models import build
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    GaussianMechanism,
    JointSchedule,
    LaplaceMechanism,
    PrivacyPlan,
    RecordClip,
    SecretKey,
    Stream,
)
from fedsink.privacy.accounting.accountants import gaussian_delta
from fedsink.protocol.dp_sinkhorn import GradientReply, GradientRequest
from fedsink.protocol.failure_codes import MALFORMED
from fedsink.protocol.objective import Objective
from fedsink.protocol.packing import digest
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeReply, PrivatizeRequest
from fedsink.simulation.simulated_run import RunIdentity, configure, start
from fedsink.simulation.virtual_clients import LocalGrid
from fedsink.strategies.central_statement import central_statement
from fedsink.strategies.dp_sinkhorn.rows import Layout
from fedsink.strategies.dp_sinkhorn.self_term import SelfTermSettings, self_term
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhorn, DPSinkhornSettings
from fedsink.strategies.trainer import OptimizerSettings

from .support import streams, tiny
from .support.asking import gradient
from .support.policies import limits, policy
from .support.requests import gradient_request, plan_of
from .support.streams import Streams, silent
from .support.tiny import CLASSES, SIZE, points_of

RECORDS = 60
SPEC = replace(tiny.SPEC, nominal_records=RECORDS)
LOCAL = LocalPlan("laplace", PointBall("l1", 1.0, SIZE), 3.0, 0.0, 1.0, CLASSES)
PUBLIC = {"name": "pixel", "shape": [SIZE]}
Read = Callable[[DataSpec, str], tuple[Tensor, Tensor]]
Use = Callable[[Read], None]


def records(spec: DataSpec = SPEC, split: str = "train") -> tuple[Tensor, Tensor]:
    """60 points of three classes, stored class by class."""
    return points_of(RECORDS)


@pytest.fixture(autouse=True)
def use(install_source: Callable[..., None], tmp_path: Path, monkeypatch: Any) -> Use:
    """Gives the nodes other data, as a new process would find them."""

    def install(read: Read) -> None:
        close_nodes()
        sources.load.cache_clear()
        install_source(read)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    become(1, 1)  # Flower names the process's node when a message is made
    install(records)
    return install


@pytest.fixture
def owned(tmp_path: Path) -> Callable[..., NodeSettings]:
    """A node under a policy, as a new process would find it."""

    def make(epsilon: float = 1e6, backend: str = "fast", delta: float = 1e-4) -> NodeSettings:
        path = tmp_path / "node" / "policy.toml"
        path.parent.mkdir(exist_ok=True)
        budget = {"add-remove": limits(epsilon, delta), "replace-one": limits(epsilon, 0.0)}
        path.write_text(policy(backend=backend, budget=budget, data={"nominal_records": 100}))
        close_nodes()
        return NodeSettings.from_policy(read_policy(path))

    return make


def ask_for(
    n: int = 6,
    *,
    clip: str = "record",
    label: int | None = None,
    round: int = 1,
    run: str = "run",
    **plan: Any,
) -> GradientRequest:
    """Returns a request for n rows, under a plan whose fields `plan` replaces."""
    request = gradient_request(
        plan_of(clip, "joint" if label is None else "class", **{"rounds": 30, **plan}),
        Objective(lam=0.5, classes=CLASSES),
        round=round,
        label=label,
        rows=torch.randn(n, SIZE, generator=torch.Generator().manual_seed(3)),
        run=run,
    )
    return replace(request, potentials=torch.zeros(n), self_gradient=torch.zeros(n, SIZE))


def keyed(key: object) -> Streams:
    return streams.keyed(str(key).encode())


def whole_shard() -> Shard:
    return Shard.checked(*records(), CLASSES)


def answer(node: Node, request: GradientRequest) -> Tensor:
    return gradient(node, request, digest("train.dp_sinkhorn", request.to_record()))


def upload(settings: NodeSettings, plan: LocalPlan = LOCAL, chunk: int = 0) -> Message:
    request = PrivatizeRequest(plan, chunk, 100, "upload")
    return message(settings, "train.privatize_once", request.to_record())


def message(settings: NodeSettings, kind: str, content: RecordDict, client: int = 0) -> Message:
    context = Context(1, 1, {"partition-id": client}, RecordDict(), {})
    return client_app(settings)(Message(content, dst_node_id=1, message_type=kind), context)


def uploaded(reply: Message) -> Tensor:
    return PrivatizeReply.from_record(reply.content).values


def accounts(settings: NodeSettings) -> list[AccountReport]:
    assert settings.ledger is not None
    database = Database(settings.ledger, writable=False)
    try:
        return report(database)
    finally:
        database.close()


def has_std(noise: Tensor, std: float) -> None:
    """Accepts N(0, std²) and rejects two thirds and three halves of it."""
    drawn = noise.double().flatten().numpy() / std
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(factor * drawn, "norm").pvalue < 1e-4


def test_pitfall_01_a_reply_depends_on_private_data_through_the_noised_sum_alone():
    # Fails if a sum is divided by the realised batch, or a loss, norm or size is sent along.
    request, (images, labels) = ask_for(), records()
    parts = [Shard(images[a:b], labels[a:b]) for a, b in ((0, 17), (17, 60), (0, 60))]
    first, rest, every = (client_gradient(request, part, silent) for part in parts)
    assert float(every.norm()) > 1
    assert torch.allclose(first + rest, every, atol=1e-5)
    for clients in (1, 7):  # shards of 60 and of 8 or 9 records
        settings = NodeSettings(SPEC, Iid(), clients, seed=1)
        reply = message(settings, "train.dp_sinkhorn", request.to_record())
        assert sorted(reply.content) == ["arrays", "fields"]
        assert dict(reply.content.config_records["fields"]) == {"json": '{"protocol": 5}'}
        [(name, array)] = reply.content.array_records["arrays"].items()
        assert (name, array.dtype, tuple(array.shape)) == ("gradient", "float32", (1, 6, SIZE))
        assert not reply.content.metric_records


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_pitfall_02_sensitivity_is_asked_from_the_clip_that_was_applied(clip):
    # Fails if noise is scaled by a typed number: another bound, or Δ where a batch needs 2Δ.
    request = ask_for(300, clip=clip)
    for bound in (0.5, 0.03):
        made = RecordClip(bound) if clip == "record" else BatchClip(bound)
        request = replace(request, plan=replace(request.plan, clip=made))
        far = [torch.full((1, SIZE), sign * 100.0) for sign in (1, -1)]
        zero = torch.zeros(1, dtype=torch.int64)
        shards = [Shard(torch.zeros(0, SIZE), zero[:0]), *(Shard(x, zero) for x in far)]
        total = [client_gradient(request, shard, silent) for shard in shards]
        sensitivity = request.plan.sensitivity
        moved = [
            float((a - b).norm())
            for a in total[1:]
            for b in (total if clip == "batch" else total[:1])
        ]
        assert 0.9 * sensitivity < max(moved) <= sensitivity
        has_std(client_gradient(request, shards[1], keyed(bound)) - total[1], sensitivity)


def test_pitfall_02_a_map_for_other_records_lends_its_sensitivity_to_none():
    # Fails if a server may name the shape that a map's sensitivity is computed from.
    settings = NodeSettings(SPEC, None, 1, seed=1)
    for other in (PointBall("l1", 1.0, 1), PixelRange((1, 1, 1))):
        assert upload(settings, replace(LOCAL, map=other)).error.code == MALFORMED
    assert not upload(settings).has_error()


@pytest.mark.medium
def test_pitfall_03_the_accountants_event_is_what_the_sampler_does():
    # Fails if event and sampler differ in rate, multiplier or number of uses.
    rate, rounds = 0.3, 1500
    random = torch.full((1, SIZE), 1.0)
    shard = Shard(random, torch.ones(1, dtype=torch.int64))
    plan = PrivacyPlan(rate, 2.0, rounds, RecordClip(0.5), ClassSchedule(CLASSES), 1e-5)
    visits = sampled = 0
    for round in range(1, rounds + 1):
        label = plan.schedule.label(0, round)
        request = replace(ask_for(label=label, round=round), plan=plan)
        visits += bool(
            client_gradient(replace(request, plan=replace(plan, rate=1.0)), shard, silent).any()
        )
        quiet = {"sample": Stream(b"k", "sample", round), "noise": silent("noise")}
        sampled += bool(client_gradient(request, shard, quiet.__getitem__).any())
    assert visits == plan.event.count == plan.uses
    assert plan.event.event.sampling_probability == rate
    assert stats.binomtest(sampled, visits, rate).pvalue > 1e-4
    assert stats.binomtest(sampled, visits, 1.5 * rate).pvalue < 1e-4
    wide = replace(ask_for(200), plan=replace(plan, rate=1e-12, schedule=JointSchedule()))
    has_std(
        client_gradient(wide, shard, keyed(3)) / plan.sensitivity,
        plan.event.event.event.noise_multiplier,
    )


@pytest.mark.parametrize("capacity", [None, 20])
@pytest.mark.parametrize("clip", ["record", "batch"])
def test_pitfall_04_empty_batches_extreme_rates_and_wild_gradients_are_answered(clip, capacity):
    # Fails if a batch without records raises, is skipped, or not noised; or NaN passes the clip.
    empty = Shard(torch.zeros(0, SIZE), torch.zeros(0, dtype=torch.int64))
    more = {"capacity": capacity, "nominal_records": RECORDS}
    for shard, rate in ((whole_shard(), 1e-12), (empty, 1.0), (empty, 0.5), (whole_shard(), 1.0)):
        request = ask_for(200, clip=clip, rate=rate, **more)
        released = client_gradient(request, shard, keyed(rate))
        has_std(
            released - client_gradient(request, shard, silent_but_sampling(rate)),
            request.plan.noise_std,
        )
    with pytest.raises(PrivacyError, match=r"rate must lie in \(0, 1\], received 0"):
        ask_for(rate=0.0)
    for wild in ({"rows": torch.full((6, SIZE), 3e38)}, {"potentials": torch.full((6,), math.nan)}):
        request = replace(ask_for(clip=clip, **more), **wild)  # type: ignore[arg-type]
        assert bool(client_gradient(request, whole_shard(), keyed("wild")).isfinite().all())


def silent_but_sampling(key: object) -> Callable[[str], Stream]:
    return lambda purpose: (keyed(key) if purpose == "sample" else silent)(purpose)


def test_pitfall_05_no_noise_comes_from_a_global_generator():
    # Fails if noise is drawn by torch's or numpy's global generator: seeded alike, equal noise.
    settings = NodeSettings(SPEC, Iid(), 2, seed=7)
    request = ask_for(100, rate=1e-12)
    releases = []
    for client in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        releases.append(answer(Node(settings, client), request).flatten())
        state = torch.random.get_rng_state()
        torch.manual_seed(0)
        assert torch.equal(state, torch.random.get_rng_state())
    assert abs(float(torch.corrcoef(torch.stack(releases))[0, 1])) < 0.25


def test_pitfall_06_epsilon_is_the_whole_runs_and_survives_the_client(owned):
    # Fails if one round's ε is charged, or a rebuilt client begins with a full budget.
    request = ask_for(rate=0.1)
    whole, one = request.plan.epsilon(), replace(request.plan, rounds=1).epsilon()
    assert whole > 1.5 * one
    answer(Node(owned(1.9 * whole), 0), request)
    [account, *_] = accounts(owned(1.9 * whole))
    assert account.spent_epsilon == pytest.approx(whole)
    with pytest.raises(BudgetError):
        answer(Node(owned(1.9 * whole), 0), replace(request, run="again"))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 30.0])
def test_pitfall_07_gaussian_noise_is_calibrated_where_the_classical_formula_fails(epsilon):
    # Fails if σ = Δ·√(2 ln(1.25/δ))/ε is used at any ε.
    delta = 1e-5
    mechanism = GaussianMechanism(2.0, epsilon, delta)
    assert gaussian_delta(mechanism.scale / 2.0, epsilon) <= delta
    assert gaussian_delta(0.999 * mechanism.scale / 2.0, epsilon) > delta
    classical = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if epsilon == 30.0:
        assert gaussian_delta(classical, epsilon) > delta


def test_pitfall_08_what_no_private_record_met_gets_no_noise_and_the_rest_gets_all():
    # Fails if generated rows are noised by the server, or rows that met records are not.
    layout = Layout(1, 1, JointSchedule(), True, 12, 0.5)
    clip, like = BatchClip(0.5), torch.zeros(0, SIZE)
    term = self_term(
        SelfTermSettings("semi_debiased", p=0.5), Objective(1.0, 1), clip, layout, like
    )
    rows = torch.randn(18, SIZE, generator=torch.Generator().manual_seed(4))
    kinds = torch.zeros(1, dtype=torch.int64)
    one, again = (
        term(rows.unsqueeze(0), kinds, layout.row_labels(kinds)).outside for _ in range(2)
    )
    assert torch.equal(one, again)
    assert bool(one[0, 12:].any())  # the six rows that stay with the server
    request = ask_for(200, clip="batch")
    noise = client_gradient(request, whole_shard(), keyed(8)) - client_gradient(
        request, whole_shard(), silent
    )
    for part in noise.split(100):  # every row that was sent
        has_std(part, request.plan.noise_std)


@pytest.mark.parametrize("backend", ["fast", "secure"])
def test_pitfall_09_a_second_request_gets_the_same_bytes_or_a_refusal(owned, backend):
    # Fails if an upload that is asked for again is noised again.
    first = uploaded(upload(owned(backend=backend)))
    assert torch.equal(uploaded(upload(owned(backend=backend))), first)
    replies = owned(backend=backend).replies
    assert replies is not None
    for file in replies.iterdir():
        file.unlink()
    assert upload(owned(backend=backend)).has_error()


def test_pitfall_10_a_real_device_adds_no_floating_point_noise(owned, monkeypatch):
    # Fails if secure noise is computed from uniform floats, whose gaps show the value.
    def forbidden(self: Stream, *shape: int) -> Tensor:
        raise AssertionError("noise in floating point")

    for name in ("normal", "laplace", "add_gaussian", "add_laplace"):
        monkeypatch.setattr(Stream, name, forbidden)
    node = Node(owned(backend="secure"), 0)
    assert bool(answer(node, ask_for(12)).any())
    assert not upload(owned(backend="secure")).has_error()
    with pytest.raises(AssertionError):
        gradient(Node(NodeSettings(SPEC, None, 1, seed=1), 0), ask_for(), b"")


@pytest.fixture
def quiet() -> Iterator[None]:
    log = logging.getLogger("fedsink.clients")
    log.disabled = True
    yield
    log.disabled = False


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "error", [ValueError, RuntimeError, OSError, KeyError, ReleaseRefusedError]
)
def test_pitfall_11_no_exceptions_text_travels(use, error):
    # Fails if a reply carries str(error), its type or a traceback.
    def read(spec: DataSpec, split: str) -> tuple[Tensor, Tensor]:
        raise error("patient 4711 in /home/alice/scans")

    use(read)
    settings = NodeSettings(SPEC, None, 1, seed=1)
    for reply in (message(settings, "train.dp_sinkhorn", ask_for().to_record()), upload(settings)):
        assert reply.has_error()
        sent = message_to_proto(reply).SerializeToString()
        for word in (b"4711", b"alice", error.__name__.encode(), b"Traceback"):
            assert word not in sent


@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_pitfall_12_the_charge_is_on_the_disk_before_there_is_anything_to_release(
    owned, monkeypatch, mode
):
    # Fails if the ledger is written after the answer was computed: a crash would undercount.
    settings, seen = owned(), []

    def crash(*arguments: object) -> None:
        seen.append([(a.spent_epsilon, a.runs[0].claimed) for a in accounts(settings)])
        raise KeyboardInterrupt

    monkeypatch.setattr(gradient_module, "client_gradient", crash)
    monkeypatch.setattr(privatizer_module, "privatize", crash)
    ask: dict[str, Callable[[], object]] = {
        "central": lambda: answer(Node(settings, 0), ask_for()),
        "ldp": lambda: upload(settings),
    }
    with pytest.raises(KeyboardInterrupt):
        ask[mode]()
    expected = ask_for().plan.epsilon() if mode == "central" else LOCAL.total_epsilon
    [[(charged, claimed)]] = seen
    assert (claimed, charged) == (1, pytest.approx(expected))


def test_pitfall_13_sensitivity_and_noise_do_not_follow_the_data():
    # Fails if a bound is a norm or quantile of the records: their scale would move the noise.
    images, labels = records()
    for clip in ("record", "batch"):
        request = ask_for(100, clip=clip)
        for factor in (1e-6, 1.0, 30.0):
            shard = Shard(factor * images, labels)
            noise = client_gradient(request, shard, keyed(1)) - client_gradient(
                request, shard, silent
            )
            has_std(noise, request.plan.noise_std)
    ball = LocalPlan("laplace", PointBall("l1", 1.0, SIZE), 1.0)
    for factor in (1e-6, 1.0, 30.0):
        shard = Shard(factor * images.repeat(5, 1), labels.repeat(5))
        released, alone = (privatize(shard, ball, s)[0] for s in (keyed(2), unmoved))
        drawn = (released - alone).flatten().double().numpy() / ball.image_mechanism.scale
        assert stats.kstest(drawn, "laplace").pvalue > 1e-4
        assert stats.kstest(1.5 * drawn, "laplace").pvalue < 1e-4


def unmoved(purpose: str) -> Stream:
    """The order of `keyed(2)`, and no noise."""
    return keyed(2)(purpose) if purpose == "order" else silent(purpose)


def test_pitfall_14_no_noise_can_be_recomputed_from_what_is_published(owned):
    # Fails if two runs share noise, or a round is answered again for rows that differ in a bit.
    request = ask_for(12, rate=1e-12, rounds=1)
    releases = [answer(Node(owned(), 0), replace(request, run=run)).flatten() for run in "ab"]
    assert abs(float(torch.corrcoef(torch.stack(releases))[0, 1])) < 0.75
    rows = request.rows.clone()
    rows.view(torch.int32)[0, 0] ^= 1
    with pytest.raises(ReleaseRefusedError, match="already answered another request"):
        answer(Node(owned(), 0), replace(request, rows=rows, run="a"))


def test_pitfall_14_a_run_folder_holds_no_secret(tmp_path, monkeypatch):
    # Fails if the noise key or its seed is written beside the generator.
    made = []

    def create(path: str | Path, run: str) -> SecretKey:
        made.append((Path(path), make(path, run).secret))
        return SecretKey(made[0][1], run)

    make = SecretKey.create
    monkeypatch.setattr(SecretKey, "create", create)
    folder = start(configuration("rounds=2", "clients=2", "seed=null"), tmp_path / "run")
    [(path, secret)] = made  # a finished run's key is deleted
    assert folder not in path.parents
    published = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert len(published) > 3
    for content in published:
        assert secret not in content
        assert secret.hex().encode() not in content


def configuration(*overrides: str) -> dict[str, Any]:
    found = composed(["engine=local", "report.pictures=0", "report.html=false", *overrides])
    resolved: Any = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
    return resolved


def test_pitfall_15_a_node_adds_plans_up_and_takes_no_pld_total_of_several(owned):
    # Fails if a history is recomposed by PLD to admit the next use: δ would be 1.88e-5, not 1e-5.
    settings = owned(3.0, delta=4e-5)
    first, second, small = (
        ask_for(rounds=1, noise_multiplier=sigma, run=f"sigma {sigma}")
        for sigma in (2.0, 1.9351, 8.0)
    )
    total = PLDAccountant(value_discretization_interval=1e-3)
    for sigma in (2.0, 1.9351):
        total.compose(dp_accounting.GaussianDpEvent(sigma))
    assert total.get_epsilon(1e-5) <= 3.001  # a PLD total would have admitted the second
    node = Node(settings, 0)
    answer(node, first)
    with pytest.raises(BudgetError, match="are left"):
        answer(node, second)
    answer(node, small)  # the account is not simply closed


def test_pitfall_16_changed_data_inherit_what_was_spent(owned, use):
    # Fails if budgets belong to a fingerprint: a record appended or a backup restored renews them.
    request = ask_for(rate=0.1)
    ceiling = 1.9 * request.plan.epsilon()
    answer(Node(owned(ceiling), 0), request)
    images, labels = records()
    appended = torch.cat((images, images[:1])), torch.cat((labels, labels[:1]))
    for read in (lambda *_: appended, lambda *_: (images[1:], labels[1:]), records):
        use(read)
        with pytest.raises(BudgetError):
            answer(Node(owned(ceiling), 0), replace(request, run="another"))


def test_pitfall_17_public_scaling_knows_no_private_size():
    # Fails if requests, step or label prior follow the sizes or class counts of the shards.
    plan = PrivacyPlan(0.5, 1.0, 6, RecordClip(0.5), ClassSchedule(CLASSES), 1e-5)
    settings = DPSinkhornSettings(
        plan, Objective(1.0, CLASSES, label_weight=2.0), SelfTermSettings("history", 2), PUBLIC, 5,
        OptimizerSettings(0.05), 3, RECORDS / 3,
    )  # fmt: skip
    trained, requests = [], []
    for partition in (Iid(), Unequal(sizes=(50, 9, 1))):
        random = torch.Generator().manual_seed(3)
        generator = build("mlp", (SIZE,), CLASSES, generator=random, latent_dim=2, hidden=[8],
                          output="linear", batch_norm=False)  # fmt: skip
        strategy = DPSinkhorn(settings, generator, b"server")
        close_nodes()
        grid = LocalGrid(client_app(NodeSettings(SPEC, partition, 3, seed=7)), 3)
        asked = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
        requests.append([m.content.array_records["arrays"]["rows"].data for m in asked])
        replies = list(grid.send_and_receive(asked))
        for reply in replies:
            reply.content = GradientReply(torch.ones(5, SIZE)).to_record()
        strategy.aggregate_train(1, replies)
        trained.append(torch.cat([p.flatten() for p in strategy.trainer.generator.parameters()]))
        assert torch.equal(strategy.label_prior(), torch.full((CLASSES,), 1 / CLASSES))
    assert requests[0] == requests[1]
    assert torch.equal(trained[0], trained[1])


def test_pitfall_18_the_order_of_an_upload_reveals_no_label():
    # Fails if records leave in the order in which they are stored, here class by class.
    plan = replace(LOCAL, epsilon=1e6, label_epsilon=20.0)  # labels arrive as they are
    first = [int(privatize(whole_shard(), plan, keyed(i))[1][0]) for i in range(300)]
    assert stats.chisquare(np.bincount(first, minlength=CLASSES)).pvalue > 1e-4
    assert stats.chisquare([300, 0, 0]).pvalue < 1e-4


def test_pitfall_19_every_client_adds_the_whole_noise_unless_the_run_says_otherwise():
    # Fails if noise is shared out over a cohort, 1/√40 of it, without noise.share having said so.
    request = ask_for(200, rate=1e-12)
    for clients in (1, 4, 40):
        settings = NodeSettings(SPEC, Iid(), clients, seed=clients)
        for client in {0, clients - 1}:
            has_std(answer(Node(settings, client), request), request.plan.noise_std)
    plans = []
    for clients in (1, 4, 40):
        config = configuration("sigma=2", f"clients={clients}", "seed=1")
        found = configure(config, Path("run"), RunIdentity.fresh(1)).server.strategy
        assert isinstance(found, DPSinkhornSettings)
        plans.append(found.plan)
    assert len({plan.noise_std for plan in plans}) == 1
    assert plans[0].noise_std == 2 * plans[0].sensitivity
    words = ("share", "aggregat", "distributed", "cohort", "divide", "split")
    keys = {
        *keys_of(configuration()),
        *(f.name for c in (NodeSettings, PrivacyPlan) for f in fields(c)),
    }
    assert {"sigma", "clients", "noise", "noise_multiplier"} <= keys
    assert [key for key in keys if any(word in key for word in words)] == ["share"]
    assert configuration()["noise"]["share"] == "local"
    assert request.share == 1


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from keys_of(inner)


def test_pitfall_20_replace_one_is_never_read_from_an_add_remove_accountant(owned):
    # Fails if a replace-one ε is computed from add/remove pairs, or charged to their account.
    plan = PrivacyPlan(0.2, 2.0, 50, RecordClip(0.5), JointSchedule(), 1e-5)
    replaced = replace(plan, adjacency="replace-one")
    assert replaced.epsilon() > 1.5 * plan.epsilon()
    for accountant in ("rdp", "prv", "rdp-opacus"):
        with pytest.raises(PrivacyError, match="replace-one"):
            replaced.epsilon(accountant)
    stated = [central_statement(p, 1, "secret") for p in (plan, replaced)]
    assert [s["adjacency_name"] for s in stated] == ["add-remove", "replace-one"]
    assert stated[1]["epsilon"] == replaced.epsilon()
    settings = owned()
    answer(Node(settings, 0), ask_for())
    assert not upload(settings).has_error()
    spent = {a.adjacency: a.spent_epsilon for a in accounts(settings)}
    assert spent["replace-one"] == pytest.approx(LOCAL.total_epsilon)
    assert spent["add-remove"] == pytest.approx(ask_for().plan.epsilon())
    assert LaplaceMechanism.adjacency == "replace-one"
    assert json.loads(json.dumps(replaced.to_dict()))["adjacency"] == "replace-one"
