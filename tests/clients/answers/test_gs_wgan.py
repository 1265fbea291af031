"""The answer of a client's critics: eligible critics, training, and the reply."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from fedsink.clients.answers import gs_wgan as critic_answer
from fedsink.clients.answers.base import Task
from fedsink.clients.answers.gs_wgan import dealt
from fedsink.clients.answers.gs_wgan_critics import CriticState, critic_totals
from fedsink.clients.app import client_app
from fedsink.clients.node import Node, close_nodes, keep_states, open_node
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.gate import Admitted
from fedsink.clients.owner.policy import PolicyRefusedError
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.owner.replies import ReplyStore
from fedsink.clients.owner.states import State
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.data import sources
from fedsink.data.labelled import number_of
from fedsink.errors import CheckpointError, ConfigError, DataError, LedgerError, ReleaseRefusedError
from fedsink.models.critics import CriticTraining
from fedsink.privacy import (
    CriticClip,
    JointSchedule,
    PickSchedule,
    PrivacyPlan,
    ReproducibleKey,
    RowClip,
    Stream,
    TurnSchedule,
    UnprotectedPlan,
)
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.protocol.exchange import Content
from fedsink.protocol.failure_codes import RUN_TAKEN
from fedsink.protocol.gs_wgan import CriticRequest, Critics
from fedsink.protocol.requests import unpack_replies

from ...support.requests import GRID, shared
from ...support.tiny import CLASSES, SIZE, points

CRITICS, ROWS, FAKES = 4, 6, 9
CLIP = CriticClip(0.5, CRITICS)
PLAN = PrivacyPlan(1.0, 1.0, 12, CLIP, JointSchedule(), 1e-5)
LIMITS = {"maximum_critics": 4, "maximum_critic_width": 5, "maximum_critic_steps": 5}

Ask = Callable[..., CriticRequest]


def request(round: int = 1, plan: Any = PLAN, run: str = "run", **critics: Any) -> CriticRequest:
    """Returns one use at the tiny data; keywords are of the critics or their training."""
    random = torch.Generator().manual_seed(round)
    training = {"critics": CRITICS, "steps": 2, "warm": 3, "batch": 3, "history": 2, "lr": 2e-3,
                "warm_generator": 0}  # fmt: skip
    for name in training.keys() & critics.keys():
        training[name] = critics.pop(name)
    return CriticRequest(
        round=round,
        plan=plan,
        critics=Critics(
            CriticTraining(**training), **{"classes": CLASSES, "hidden": 5, "scale": 1.0, **critics}
        ),
        view={"name": "pixel", "shape": [SIZE]},
        rows=torch.randn(ROWS, SIZE, generator=random),
        row_labels=torch.arange(ROWS) % CLASSES,
        fakes=torch.randn(FAKES, SIZE, generator=random),
        fake_labels=torch.arange(FAKES) % CLASSES,
        run=run,
    )


def replied(node: Node, asked: CriticRequest) -> Tensor:
    return unpack_replies(node.answer("train.gs_wgan", asked.to_record()))[0]


def place(node: Node, asked: CriticRequest) -> State:
    """State that the node trains for this request."""
    answer = critic_answer.GSWGANAnswer([asked])
    return node.task(answer, Admitted([])).state(critic_answer._names(asked))


def trained(node: Node, asked: CriticRequest) -> Mapping[str, Tensor]:
    """Weights of the node's critics after this request."""
    state = place(node, asked).before(asked.round + 1)
    assert state is not None
    return state


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_nodes()


@pytest.fixture
def owned(policy_file: Callable[..., Path]) -> Callable[..., NodeSettings]:
    """Makes settings of a node whose policy allows critics, with limits and state keys changed."""

    def make(
        state: str = "",
        backend: str = "fast",
        budget: Mapping[str, Any] | None = None,
        **limits: int,
    ) -> NodeSettings:
        path = policy_file(backend=backend, budget=budget)
        lines = [f"{key} = {value}" for key, value in (LIMITS | limits).items()]
        text = path.read_text().replace('"clipped-gaussian"', '"critic"')
        text = text.replace("maximum_images = 12", "maximum_images = 15")
        text = text.replace('folder = "state"', f'folder = "state"\n{state}')
        path.write_text("\n".join([text, *lines]))
        close_nodes()
        return NodeSettings.from_policy(read_policy(path))

    return make


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*arguments: object) -> None:
        raise AssertionError("an architecture was built")

    monkeypatch.setattr(Critics, "architecture", built)


# Who may be asked


def test_a_policy_that_allows_critics_states_every_limit(
    owned: Callable[..., NodeSettings],
) -> None:
    settings = owned()
    assert replied(Node(settings, 0), request()).shape == (ROWS, SIZE)
    text = (path := settings.policy or Path()).read_text()
    for key in LIMITS:
        path.write_text(text.replace(key, f"# {key}"))
        with pytest.raises(ConfigError, match=f"{key} is missing"):
            Node(settings, 0)


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        (request(critics=5, plan=replace(PLAN, clip=CriticClip(0.5, 5))), "maximum_critics"),
        (request(hidden=6), "maximum_critic_width"),
        (request(steps=3), "maximum_critic_steps"),
        (request(warm=4), "maximum_critic_steps"),
        (request(warm=0, warm_generator=2), "maximum_critic_steps"),
        (request(plan=replace(PLAN, clip=CriticClip(0.51, CRITICS))), "maximum_clip_bound"),
        (request(plan=replace(PLAN, noise_multiplier=0.49)), "minimum_noise_multiplier"),
        (request(plan=replace(PLAN, rounds=100_001)), "maximum_rounds"),
        (request(plan=replace(PLAN, rate=0.2, noise_multiplier=0.49)), "minimum_noise_multiplier"),
        (request(plan=replace(PLAN, delta=1e-3)), "budget.add-remove.delta"),
        (request(plan=replace(PLAN, adjacency="client")), "budget.client"),
        (shared(request(), 2), "secure_aggregation"),
        (replace(request(), rows=torch.zeros(7, SIZE), row_labels=torch.zeros(7).long()),
         "maximum_images"),
    ],
)  # fmt: skip
def test_a_policy_refuses_what_exceeds_a_limit_by_its_key(
    owned: Callable[..., NodeSettings], asked: CriticRequest, key: str, nothing_is_built: None
) -> None:
    node = Node(owned(), 0)
    with pytest.raises(PolicyRefusedError, match=key):
        replied(node, asked)
    assert not node.settings.ledger.exists()  # type: ignore[union-attr]


def test_a_policy_without_the_word_answers_no_critics(policy_file: Callable[..., Path]) -> None:
    node = Node(NodeSettings.from_policy(read_policy(policy_file())), 0)
    with pytest.raises(PolicyRefusedError, match=r"allow\.mechanisms: the message asks for critic"):
        replied(node, request())


def test_a_kind_of_critic_that_does_not_fit_the_data_is_refused(settings: NodeSettings) -> None:
    with pytest.raises(ValueError, match="a perceptron"):
        replied(Node(settings, 0), request(kind="convolution"))


def test_what_does_not_fit_the_data_is_refused_before_an_architecture_is_built(
    settings: NodeSettings, nothing_is_built: None
) -> None:
    node = Node(settings, 0)
    other_view = replace(request(), view={"name": "pixel", "shape": [2, 2]})
    other_rows = replace(request(), rows=torch.zeros(6, 3), fakes=torch.zeros(FAKES, 3))
    for asked, message in (
        (request(classes=4), "4 classes, the data 3"),
        (other_view, "another shape"),
        (other_rows, "3 coordinates"),
    ):
        with pytest.raises(ValueError, match=message):
            replied(node, asked)


PICKS = PickSchedule(3)  # clients 2, 1, 1, 0, 1, 1, 0, 1, 2, …


@pytest.mark.parametrize("schedule", [TurnSchedule(3), PICKS])
def test_a_client_answers_in_its_turn_alone(
    settings: NodeSettings, schedule: TurnSchedule | PickSchedule
) -> None:
    plan = replace(PLAN, schedule=schedule)
    for client in range(3):
        node = Node(settings, client)
        for round in range(1, 8):
            if schedule.answers(client, round):
                replied(node, request(round, plan))
            else:
                with pytest.raises(ReleaseRefusedError, match="not a turn of client"):
                    replied(node, request(round, plan))


@pytest.mark.parametrize(
    ("plan", "form"),
    [
        (replace(PLAN, clip=RowClip(0.5, ROWS)), "clip=row with the schedule 'joint'"),
        (replace(PLAN, schedule=PickSchedule(2**40)), "clip=critic with the schedule 'pick'"),
        (replace(PLAN, clip=RowClip(0.5, ROWS), schedule=PickSchedule(3)), "clip=row with"),
    ],
    ids=["rows", "picks", "both"],
)
def test_a_policy_that_allows_critics_never_admits_the_published_form(
    owned: Callable[..., NodeSettings], plan: PrivacyPlan, form: str
) -> None:
    node = Node(owned(), 0)
    message = f"allow.mechanisms: {form}.*is a published form .*, which only simulations answer"
    for round in (1, 2, 3):  # client 0's turn among them
        with pytest.raises(PolicyRefusedError, match=message):
            replied(node, request(round, critics=1, plan=plan))
    assert not node.settings.ledger.exists()  # type: ignore[union-attr]


def test_users_are_protected_where_records_tell_them_apart_alone(
    settings: NodeSettings, secret: NodeSettings
) -> None:
    plan, node = replace(PLAN, adjacency="user"), Node(settings, 0)
    for refusing in (node, Node(secret, 0)):
        with pytest.raises(DataError, match="do not tell them apart"):
            replied(refusing, request(plan=plan))
    assert secret.ledger is not None
    with sqlite3.connect(secret.ledger) as database:  # refused before a round is used up
        assert database.execute("SELECT count(*) FROM claims").fetchone() == (0,)
    node.shard.users = torch.arange(len(node.shard)) % 7 + 2**40
    replied(node, request(plan=plan))


# What is computed


def node_with(settings: NodeSettings, shard: Shard) -> Node:
    """A simulated client with other records."""
    node = Node(settings, 0)
    vars(node)["shard"] = shard
    return node


def records(n: int = 24, seed: int = 0) -> Shard:
    images = 3.0 * torch.randn(n, SIZE, generator=torch.Generator().manual_seed(seed))
    return Shard(images, torch.arange(n) % CLASSES, torch.arange(n) // 3)


def changed(shard: Shard, places: list[int]) -> Shard:
    """Other pictures and labels in these places."""
    images, labels = shard.images.clone(), shard.labels.clone()
    images[places] = -20.0 * images[places]
    labels[places] = (labels[places] + 1) % CLASSES
    return Shard(images, labels, shard.users)


@pytest.mark.parametrize("warmed", [0, 5])
@pytest.mark.parametrize("adjacency", ["add-remove", "user"])
def test_what_one_part_holds_moves_a_reply_by_at_most_the_sensitivity(
    settings: NodeSettings, adjacency: str, warmed: int
) -> None:
    """Noise of one seed is the same for both; the last round's states differ as well."""
    plan = replace(PLAN, adjacency=adjacency)
    secret = [1, 5, 9, 21] if adjacency == "add-remove" else [3, 4, 5]
    one = node_with(settings, records())
    two = node_with(settings, changed(records(), secret))
    for round in (1, 2, 3):
        asked = request(round, plan, steps=6, lr=0.1, warm_generator=warmed)
        distance = float(torch.linalg.vector_norm(replied(one, asked) - replied(two, asked)))
        assert 0.1 * plan.sensitivity < distance <= plan.sensitivity * (1 + 1e-6)
    three = node_with(settings, changed(records(), [1, 2, 3, 4, 8, 9, 12, 13]))
    asked = request(1, plan, steps=6, lr=0.1)
    again = node_with(settings, records())
    assert float(torch.linalg.vector_norm(replied(again, asked) - replied(three, asked))) > 1.0


def test_a_record_with_a_name_that_is_taken_away_moves_no_other_critic(
    settings: NodeSettings,
) -> None:
    """Without names a record's line is its slot: a closed gap moves all records behind it."""
    steep = {"steps": 24, "lr": 0.3}
    whole = records()
    signs = 1.0 - 2.0 * (torch.arange(len(whole)) % 2)  # so that neighbours pull critics apart
    whole = Shard(whole.images.abs() * signs.unsqueeze(1), whole.labels)
    kept = torch.arange(len(whole)) != 2
    names = torch.tensor([number_of(f"{place}.png") for place in range(len(whole))])
    distances = []
    for slots in (names, None):
        less = None if slots is None else slots[kept]
        one, two = (
            node_with(settings, shard)
            for shard in (
                Shard(whole.images, whole.labels, None, slots),
                Shard(whole.images[kept], whole.labels[kept], None, less),
            )
        )
        for round in (1, 2):
            moved = replied(one, request(round, **steep)) - replied(two, request(round, **steep))
        distances.append(float(torch.linalg.vector_norm(moved)))
    assert 0.0 < distances[0] <= PLAN.sensitivity * (1 + 1e-6)
    assert distances[1] > PLAN.sensitivity


def test_a_user_is_dealt_to_one_critic_where_users_are_protected(settings: NodeSettings) -> None:
    node = node_with(settings, records())
    for adjacency, owners in (("user", 1), ("add-remove", 3)):
        pool = critic_answer.Pool([node.shard])
        parts = dealt(request(plan=replace(PLAN, adjacency=adjacency)), pool, slice(0, 1))
        critic_of = torch.arange(CRITICS).repeat_interleave(parts.sizes)
        user = node.shard.images[3:6]  # the records of the second user
        places = [
            (parts.records[:-1] == parts_row).all(1).nonzero() for parts_row in _in_view(user)
        ]
        assert len({int(critic_of[place]) for place in places}) == owners


def _in_view(images: Tensor) -> Tensor:
    return Shard(images, torch.zeros(len(images)).long()).coordinates(request().view)


def test_the_shape_of_a_reply_is_the_requests_and_an_empty_client_answers(
    settings: NodeSettings,
) -> None:
    """The reply on zero records is only noise."""
    empty = node_with(settings, Shard(torch.zeros(0, SIZE), torch.zeros(0).long()))
    asked = request()
    nothing = asked.plan.clip.vouch(torch.zeros(ROWS, SIZE))
    noise = asked.plan.release(nothing, empty._key.stream("noise", client=0, round=1))
    assert torch.equal(replied(empty, asked), noise)
    assert replied(node_with(settings, records(5)), asked).shape == noise.shape


def test_the_share_of_the_noise_and_no_more_is_added(settings: NodeSettings) -> None:
    shares = [replied(node_with(settings, records()), shared(request(), n)) for n in (1, 3)]
    plan = UnprotectedPlan(1.0, 12, "critic", JointSchedule())
    unprotected = node_with(replace(settings, unprotected=True), records())
    clipped = replied(unprotected, request(plan=plan))
    assert float(torch.linalg.vector_norm(clipped)) > CLIP.bound
    totals = clipped_total(unprotected.shard)
    stream = Node(settings, 0)._key.stream("noise", client=0, round=1)
    normal = stream.normal(ROWS * SIZE).reshape(ROWS, SIZE)
    assert torch.allclose((shares[0] - totals).double(), PLAN.noise_std * normal, atol=1e-5)
    stream = Node(settings, 0)._key.stream("noise", client=0, round=1)
    one = IntegerGaussian(PLAN, 3, GRID, ROWS * SIZE)
    noise = stream.integers(one.size, one.scale).reshape(ROWS, SIZE) * GRID.granularity
    assert torch.allclose(GRID.decoded(shares[1]), noise + totals, atol=1e-5)


def clipped_total(shard: Shard) -> Tensor:
    """Returns the reply of the first round to `records`, without noise."""
    asked, pool = request(), critic_answer.Pool([shard])
    critic = critic_answer.architecture(asked)
    parts = dealt(asked, pool, slice(0, 1))
    state = CriticState.start(critic, CRITICS, asked.critics.initial, parts.records)
    shown = critic_answer._shown(asked, parts.records.device)
    coins = ReproducibleKey(7).stream("critic", client=0, round=1)
    training = asked.critics.training
    return critic_totals(critic, training, CLIP, shown, parts, [state], [coins])[0][0]


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_each_purpose_and_round_has_numbers_of_its_own(settings: NodeSettings, rate: float) -> None:
    """Noise that the coins of the training tell of would be no noise."""
    drawn: list[tuple[str, int, int]] = []

    class Listening(Task):
        def stream(self, purpose: str, round: int, use: int = 0) -> Stream:
            drawn.append((purpose, round, self.client))
            return super().stream(purpose, round, use)

    for asked in (request(t, replace(PLAN, rate=rate), warm_generator=1) for t in (1, 2)):
        tasks = []
        for client in (0, 1):
            node, answer = open_node(settings, client), critic_answer.GSWGANAnswer([asked])
            tasks.append(Listening(*node.task(answer, Admitted([b""]))))
        critic_answer.critic_gradients(asked, tasks, Pool([t.shard for t in tasks]), slice(0, 2))
    purposes = ("critic", "noise") if rate == 1.0 else ("critic", "noise", "sample")
    wanted = {(purpose, t, k) for purpose in purposes for t in (1, 2) for k in (0, 1)}
    assert len(drawn) == len(wanted)
    assert set(drawn) == wanted


SECRET = replace(PLAN, rate=0.4, noise_multiplier=2.0**-40)
"""Critics that are asked in secret, and next to no noise, to see which were."""


def test_a_critic_that_is_not_asked_is_trained_as_if_it_were(settings: NodeSettings) -> None:
    """States hold no trace of the coins: bit by bit they equal the states at rate 1."""
    nodes = [(Node(settings, 0), replace(PLAN, rate=rate)) for rate in (0.4, 1.0)]
    alike = []
    for round in (1, 2, 3):
        replies = [replied(node, request(round, plan, warm_generator=2)) for node, plan in nodes]
        alike.append(torch.equal(*replies))
    assert not all(alike)
    states = [trained(node, request(3, plan, warm_generator=2)) for node, plan in nodes]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])


@pytest.mark.medium
def test_each_critic_is_asked_with_the_plans_rate_by_coins_of_its_own(
    settings: NodeSettings,
) -> None:
    """The total is the sum of the gradients of those that the round's coins choose."""
    node, counts = node_with(settings, records()), torch.zeros(CRITICS)
    asked = request(1, SECRET, run="r", steps=0, warm=0)
    critic = critic_answer.architecture(asked)
    [weights] = critic.initial(asked.critics.initial).unsqueeze(0)
    gradient = critic.gradients(weights.expand(1, -1), asked.rows[None], asked.row_labels[None])
    one = CLIP.total(gradient.unsqueeze(0))[0]
    for seed in range(150):
        node = node_with(replace(settings, seed=seed), records())
        coins = Node(replace(settings, seed=seed), 0)._key.stream("sample", client=0, round=1)
        wanted = coins.uniform(CRITICS) < 0.4
        counts += wanted
        total = replied(node, asked).double()
        torch.testing.assert_close(total, int(wanted.sum()) * one, rtol=1e-4, atol=1e-5)
    assert float((counts / 150 - 0.4).abs().max()) < 4 * math.sqrt(0.24 / 150)


@pytest.mark.medium
def test_with_critics_asked_in_secret_a_part_moves_a_reply_by_at_most_the_sensitivity(
    settings: NodeSettings,
) -> None:
    """The part moves the reply if its critic is asked, and not at all otherwise."""
    distances = []
    for seed in range(12):
        own = replace(settings, seed=seed)
        one, two = (node_with(own, s) for s in (records(), changed(records(), [1, 5, 9, 21])))
        asked = request(1, SECRET, steps=6, lr=0.1)
        distances.append(float(torch.linalg.vector_norm(replied(one, asked) - replied(two, asked))))
        coins = Node(own, 0)._key.stream("sample", client=0, round=1)
        assert (distances[-1] > 0.0) == bool(coins.uniform(CRITICS)[1] < 0.4)
    assert max(distances) <= SECRET.sensitivity * (1 + 1e-6)
    assert max(distances) > 0.1 * SECRET.sensitivity


def test_what_is_remembered_is_its_owners_alone(owned: Callable[..., NodeSettings]) -> None:
    settings = owned()
    replied(open_node(settings, 0), request())
    assert settings.policy is not None
    [file] = (settings.policy.parent / "state" / "states").glob("*/*.state")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (file.parent, file.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_but_the_gradient_leaves_or_more_is_kept_behind_a_warm_start(
    settings: NodeSettings,
) -> None:
    """Neither local generators nor their pictures leave the node or are kept."""
    kept = []
    for node, asked in ((Node(settings, 0), request(warm_generator=3)),
                        (Node(settings, 1), request())):  # fmt: skip
        record = node.answer("train.gs_wgan", asked.to_record())
        assert list(record.array_records["arrays"]) == ["gradient"]
        assert dict(record.config_records["fields"]) == {"json": '{"protocol": 5}'}
        kept.append(trained(node, asked))
    assert len({tuple((name, v.shape) for name, v in state.items()) for state in kept}) == 1
    assert not torch.equal(kept[0]["weights"], kept[1]["weights"])


def test_a_round_goes_on_from_what_was_learned_before(settings: NodeSettings) -> None:
    node = Node(settings, 0)
    replied(node, request(1))
    before = trained(node, request(1))
    assert int(before["rounds"]) == 1
    assert before["fakes.rows"].shape == (FAKES, SIZE)
    replied(node, request(2))
    after = trained(node, request(2))
    assert int(after["rounds"]) == 2
    assert after["fakes.rows"].shape == (2 * FAKES, SIZE)
    assert not torch.equal(after["weights"], before["weights"])
    assert int(before["rounds"]) == 1


def test_a_message_that_names_no_classes_asks_one_critic_of_all_records(
    settings: NodeSettings,
) -> None:
    asked = replace(request(classes=1), row_labels=torch.zeros(ROWS).long(),
                    fake_labels=torch.zeros(FAKES).long())  # fmt: skip
    assert replied(Node(settings, 0), asked).shape == (ROWS, SIZE)


# A cohort


@pytest.mark.parametrize("adjacency", ["add-remove", "client"])
def test_a_cohort_answers_what_each_client_answers_up_to_rounding(
    settings: NodeSettings, adjacency: str
) -> None:
    plan = replace(PLAN, adjacency=adjacency)
    cohort = NodeCohort(settings)
    alone = [Node(settings, client) for client in range(3)]
    for round in (1, 2, 3):
        asked = request(round, plan)
        content = Content(lambda asked=asked: [asked], asked.to_record)  # type: ignore[misc]
        [(_, answers)] = cohort.answers("train.gs_wgan", [content], [range(3)])
        assert answers.failures == {}
        for client, reply in zip(answers.clients, answers.replies, strict=True):
            single = replied(alone[client], asked)
            assert torch.allclose(reply[0], single, atol=2e-4)
            assert not torch.equal(single, torch.zeros_like(single))


def test_clients_of_a_cohort_share_the_rows_they_were_shown(settings: NodeSettings) -> None:
    cohort = NodeCohort(settings)
    asked = request()
    content = Content(lambda: [asked], asked.to_record)
    list(cohort.answers("train.gs_wgan", [content], [range(3)]))
    states = [open_node(settings, client).states for client in range(3)]
    kept = [next(iter(each._states.values())).before(asked.round + 1) for each in states]
    rows = [(state or {})["fakes.rows"] for state in kept]
    assert rows[0] is rows[1] is rows[2]


# What is remembered


def files(settings: NodeSettings) -> list[Path]:
    """Every file of a state under a policy."""
    assert settings.ledger is not None
    return sorted(settings.ledger.parent.glob("states/*/*"))


def test_a_stored_reply_is_sent_again_without_training(
    owned: Callable[..., NodeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = owned()
    first = [replied(Node(settings, 0), request(round)) for round in (1, 2)]
    before = {path: path.read_bytes() for path in files(settings)}

    def train(*arguments: object) -> None:
        raise AssertionError("critics were trained")

    monkeypatch.setattr(critic_answer, "critic_totals", train)
    node = Node(settings, 0)
    for round in (1, 2, 1):
        assert torch.equal(replied(node, request(round)), first[round - 1])
    assert {path: path.read_bytes() for path in files(settings)} == before


def test_a_state_stays_until_the_message_after_the_next(owned: Callable[..., NodeSettings]) -> None:
    settings, names = owned(), []
    for round in range(1, 5):
        replied(Node(settings, 0), request(round))
        names.append([path.name for path in files(settings)])
    assert names == [
        ["1.state"], ["1.state", "2.state"], ["2.state", "3.state"], ["3.state", "4.state"],
    ]  # fmt: skip


def test_a_warm_start_that_was_cut_off_comes_again_with_the_same_coins(
    owned: Callable[..., NodeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, asked = owned(maximum_critic_steps=17), request(warm_generator=4)
    with monkeypatch.context() as patch:
        patch.setattr(ReplyStore, "put", full_disk)
        with pytest.raises(LedgerError, match="the disk is full"):
            replied(Node(settings, 0), asked)
    [(first, content)] = [(path, path.read_bytes()) for path in files(settings)]
    reply = replied(Node(settings, 0), asked)
    assert {path: path.read_bytes() for path in files(settings)} == {first: content}
    assert torch.equal(replied(Node(settings, 0), asked), reply)


@pytest.mark.parametrize("backend", ["fast", "secure"])
def test_a_reply_that_was_not_stored_is_trained_again_from_the_state_before(
    owned: Callable[..., NodeSettings], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a key whose streams can be drawn again, the state is the same."""
    settings = owned(backend=backend)
    replied(Node(settings, 0), request(1))
    with monkeypatch.context() as patch:
        patch.setattr(ReplyStore, "put", full_disk)
        with pytest.raises(LedgerError, match="the disk is full"):
            replied(Node(settings, 0), request(2))
    first = {path.name: path.read_bytes() for path in files(settings)}
    assert list(first) == ["1.state", "2.state"]
    reply = replied(Node(settings, 0), request(2))
    again = {path.name: path.read_bytes() for path in files(settings)}
    assert again["1.state"] == first["1.state"]
    assert (again["2.state"] == first["2.state"]) == (backend == "fast")
    assert int(trained(Node(settings, 0), request(2))["rounds"]) == 2
    assert torch.equal(replied(Node(settings, 0), request(2)), reply)


def full_disk(self: ReplyStore, *arguments: object) -> None:
    raise LedgerError("the disk is full")


@pytest.mark.parametrize("damage", ["deleted", "flipped", "emptied"])
def test_a_node_that_lost_its_critics_starts_them_anew_and_says_so_to_its_owner(
    owned: Callable[..., NodeSettings], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = owned()
    node = Node(settings, 0)
    for round in (1, 2, 3):
        replied(node, request(round))
    assert not caplog.records
    for path in files(settings):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        if damage == "deleted":
            path.unlink()
        else:
            path.write_bytes(content if damage == "flipped" else b"")
    reply = asked(settings, request(4))
    assert list(reply.content.array_records["arrays"]) == ["gradient"]
    assert int(trained(node, request(4))["rounds"]) == 1
    assert "it starts again" in caplog.text
    replied(node, request(5))
    assert int(trained(node, request(5))["rounds"]) == 2


def test_a_state_belongs_to_one_client_one_reservation_and_one_kind_of_critic(
    owned: Callable[..., NodeSettings],
) -> None:
    settings = replace(owned(), clients=2)
    asked = request()
    replied(Node(settings, 0), asked)

    def before(client: int, **changed: Any) -> Any:
        return place(Node(settings, client), request(**changed)).before(2)

    assert before(0) is not None
    assert before(1) is None
    assert before(0, run="other") is None
    assert before(0, hidden=4) is None
    assert before(0, plan=replace(PLAN, adjacency="client")) is None
    assert before(0, plan=replace(PLAN, rounds=PLAN.rounds + 1)) is None
    replied(Node(settings, 0), request(run="other"))
    assert len({path.parent for path in files(settings)}) == 2
    assert settings.policy is not None
    settings.policy.write_text(settings.policy.read_text().replace('"ward"', '"other ward"'))
    assert before(0) is None


def asked(settings: NodeSettings, question: CriticRequest) -> Message:
    """The reply as a server gets it."""
    message = Message(question.to_record(), dst_node_id=1, message_type="train.gs_wgan")
    return client_app(settings)(message, Context(1, 1, {"partition-id": 0}, RecordDict(), {}))


def code(settings: NodeSettings, question: CriticRequest) -> int | None:
    """The code of a refusal; None: there is an answer."""
    reply = asked(settings, question)
    return reply.error.code if reply.has_error() else None


OF_USERS, OF_CLIENTS = (replace(PLAN, adjacency=name) for name in ("user", "client"))


@pytest.mark.parametrize("first", [PLAN, OF_USERS, OF_CLIENTS])
@pytest.mark.parametrize("second", [PLAN, OF_USERS, OF_CLIENTS])
def test_one_runs_critics_never_go_on_in_another_account(
    owned: Callable[..., NodeSettings], first: PrivacyPlan, second: PrivacyPlan
) -> None:
    """Under another unit a record, or a user's, belongs to other critics."""
    accounts = {
        name: {"epsilon": 1e6, "delta": 1e-4}
        for name in ("replace-one", first.adjacency, second.adjacency)
    }
    settings = owned(budget=accounts)
    open_node(settings, 0).shard.users = torch.arange(len(open_node(settings, 0).shard)) // 3
    assert code(settings, request(1, first)) is None
    same = first == second
    assert code(settings, request(2, second)) == (None if same else RUN_TAKEN)
    assert code(settings, request(1, second, run="another")) is None
    assert code(settings, request(3, first)) is None


def test_one_runs_critics_never_go_on_with_other_records(
    owned: Callable[..., NodeSettings], install_source: Callable[..., None]
) -> None:
    settings = owned()
    assert code(settings, request(1)) is None
    close_nodes()
    sources.forget()
    install_source(lambda spec, split: tuple(values[1:] for values in points(spec, split)))
    assert code(settings, request(2)) == RUN_TAKEN
    assert code(settings, request(1, run="another")) is None


def test_a_simulated_run_has_one_plan_and_one_unit(settings: NodeSettings) -> None:
    """A seeded run keeps no ledger; states are found by the charge a ledger would have made."""
    for plan in (OF_CLIENTS, replace(PLAN, rounds=13)):
        node = Node(settings, 0)
        replied(node, request(1))
        with pytest.raises(CheckpointError, match="trained in 0 rounds and not in 1"):
            replied(node, request(2, plan))


@pytest.mark.parametrize("other", ["run", "round"])
def test_a_state_that_was_moved_to_another_run_or_round_is_lost(
    owned: Callable[..., NodeSettings], caplog: pytest.LogCaptureFixture, other: str
) -> None:
    settings = owned()
    node = Node(settings, 0)
    for round in (1, 2):
        replied(node, request(round))
    [_, second] = sorted(files(settings), key=lambda path: path.name)
    replied(node, request(1, run="other"))
    [first] = set(files(settings)) - set(second.parent.iterdir())
    if other == "run":
        first.write_bytes((second.parent / first.name).read_bytes())
        replied(node, request(2, run="other"))
    else:
        first.rename(first.with_name("2.state"))
        replied(node, request(3, run="other"))
    assert "is damaged and counts as lost" in caplog.text
    assert "it starts again" in caplog.text


def test_states_that_are_old_are_removed_when_the_node_opens(
    owned: Callable[..., NodeSettings],
) -> None:
    settings = owned("state_days = 2")
    for run in ("old", "young"):
        replied(Node(settings, 0), request(run=run))
    old = files(settings)[0]
    date = time.time() - 2.1 * 86_400
    os.utime(old, (date, date))
    Node(settings, 0)
    assert len(files(settings)) == 1
    assert not old.parent.exists()


# A simulation that continues from a checkpoint


@pytest.fixture(params=["seed", "key", "secure", "flower"])
def simulated(
    request: pytest.FixtureRequest, settings: NodeSettings, secret: NodeSettings, tmp_path: Path
) -> NodeSettings:
    states = tmp_path / "run.states"
    if request.param == "seed":
        return replace(settings, states=states)
    if request.param == "flower":
        return replace(settings, states=states, states_at_once=True)
    if request.param == "key":
        return replace(secret, states=states)
    return replace(secret, states=states, key_file=None, noise="secure")


def test_a_simulation_goes_on_from_its_checkpoint_to_the_same_replies(
    simulated: NodeSettings,
) -> None:
    """Killed after round 6, with checkpoints at 2 and 3, and the one at 4 never finished."""
    cohort, stores = NodeCohort(simulated), simulated.noise == "secure"

    def round(t: int) -> Tensor:
        asked = request(t)
        if stores:  # its replies: each client is a node
            return torch.stack([replied(open_node(simulated, k), asked) for k in range(3)])
        content = Content(lambda: [asked], asked.to_record)
        [(_, answers)] = cohort.answers("train.gs_wgan", [content], [range(3)])
        assert answers.failures == {}
        return answers.replies

    replies = []
    for t in range(1, 7):
        replies.append(round(t))
        if t in (2, 3, 4):
            keep_states(t)
    for checkpoint, kept in ((3, None), (4, None), (3, 4), (4, 5), (5, None)):
        close_nodes()
        cohort = NodeCohort(simulated)
        for t in range(checkpoint + 1, 7):
            assert torch.equal(round(t), replies[t - 1])
            if t == kept:
                keep_states(t)
                break


def test_a_simulation_whose_critics_are_lost_says_so(
    settings: NodeSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(settings, states=tmp_path / "run.states")
    for t in (1, 2):
        replied(open_node(settings, 0), request(t))
    keep_states(2)
    replied(open_node(settings, 0), request(3))
    close_nodes()
    with pytest.raises(CheckpointError, match="trained in 2 rounds and not in 3: continue from"):
        replied(open_node(settings, 0), request(4))
    shutil.rmtree(tmp_path / "run.states")
    close_nodes()
    with pytest.raises(CheckpointError, match="trained in 0 rounds and not in 2: continue from"):
        replied(open_node(settings, 0), request(3))


@pytest.mark.parametrize("schedule", [TurnSchedule(3), PICKS])
def test_turns_go_on_from_their_own_last_round(
    settings: NodeSettings, tmp_path: Path, schedule: TurnSchedule | PickSchedule
) -> None:
    plan = replace(PLAN, schedule=schedule)
    settings = replace(settings, states=tmp_path / "run.states")

    def play(first: int, last: int, kept: tuple[int, ...] = ()) -> list[Tensor]:
        replies = []
        for t in range(first, last + 1):
            [client] = [k for k in range(3) if schedule.answers(k, t)]
            replies.append(replied(open_node(settings, client), request(t, plan)))
            if t in kept:
                keep_states(t)
        return replies

    replies = play(1, 9, (2, 5))
    for checkpoint in (5, 2):  # as if the one at 5 had not been finished
        close_nodes()
        assert all(map(torch.equal, play(checkpoint + 1, 9), replies[checkpoint:]))
    shutil.rmtree(tmp_path / "run.states")
    close_nodes()
    with pytest.raises(CheckpointError, match="trained in 0 rounds and not in"):
        play(6, 9)


@pytest.mark.medium
def test_clipped_rows_get_the_noise_of_all_of_them(settings: NodeSettings) -> None:
    """Noise of std 2Cσ on each coordinate, where σ is published and σ/√n the plan's."""
    clip = RowClip(0.5, ROWS)
    plan = replace(PLAN, clip=clip, noise_multiplier=40.0 / math.sqrt(ROWS))
    assert plan.noise_std == pytest.approx(2 * 0.5 * 40.0)
    clients = [
        replied(Node(replace(settings, seed=seed), 0), request(1, plan, critics=1))
        for seed in range(48)
    ]
    noise = torch.stack(clients).double().std()
    assert float(noise) == pytest.approx(40.0, rel=0.1)


def test_records_are_dealt_anew_for_another_unit_view_or_number_of_critics() -> None:
    """The deal for one request is kept, and serves only requests that are dealt alike."""
    random = torch.Generator().manual_seed(0)
    n, shape = 24, (1, 4, 4)
    shard = Shard(
        torch.rand(n, *shape, generator=random), torch.arange(n) % 3, torch.arange(n) // 4,
        torch.arange(n) + 5,
    )  # fmt: skip
    views = {
        "pixel": {"name": "pixel", "shape": list(shape)},
        "dct": {"name": "dct", "shape": list(shape), "radius": 2.0},
        "narrow": {"name": "dct", "shape": list(shape), "radius": 1.5},
    }
    pool, alone = Pool([shard]), {}

    def asked(unit: str, view: str, critics: int, classes: int) -> CriticRequest:
        plan = PrivacyPlan(1.0, 1.0, 5, CriticClip(0.5, 8), JointSchedule(), 1e-5, unit)
        rows, labels = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
        described = Critics(CriticTraining(critics), classes)
        return CriticRequest(
            round=1, plan=plan, critics=described, view=views[view], rows=rows, row_labels=labels,
            fakes=rows, fake_labels=labels,
        )  # fmt: skip

    usual = ("add-remove", "pixel", 4, 3)
    others = [
        ("user", "pixel", 4, 3), ("add-remove", "dct", 4, 3), ("add-remove", "pixel", 6, 3),
        ("add-remove", "pixel", 4, 1), ("add-remove", "narrow", 4, 3),
    ]  # fmt: skip
    for one in (usual, *others):
        alone[one] = dealt(asked(*one), Pool([shard]), slice(0, 1))
    for one in (usual, *(each for other in others for each in (other, usual, other))):
        parts = dealt(asked(*one), pool, slice(0, 1))
        for name in ("records", "labels", "starts", "sizes", "holds"):
            assert torch.equal(getattr(parts, name), getattr(alone[one], name))
    by_user = alone["user", "pixel", 4, 3]
    users = by_user.starts.repeat_interleave(by_user.sizes)
    flat = 2.0 * shard.images.flatten(1) - 1.0
    owner = {int((flat == record).all(1).nonzero()): int(start)
             for record, start in zip(by_user.records[:-1], users, strict=True)}  # fmt: skip
    assert len({(int(shard.users[i]), start) for i, start in owner.items()}) == 6
    assert len({owner[i] for i in range(n)}) == 4
