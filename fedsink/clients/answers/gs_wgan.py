"""Central mode, client side: the noised sum of critics' gradients at generated rows.

The client's part of Algorithm 2 of Chen, Orekondy, Fritz 2020 with M critics a client (M = 1 is
Algorithm 2; one client with all critics asked is Algorithm 1), in the paper's order:

1. deal the records to the critics, once (`dealt`);
2. warm start, before the first round, against a local generator that is thrown away;
3. n_dis steps of WGAN-GP on own records and the server's rows, a critic each;
4. the gradient of each critic's output at the server's rows X;
5. clip to C and add up; 2 to 5 are `critic_totals`;
6. add 2Cσ·N(0, I) (`PrivacyPlan.release_each`).

As printed, Algorithm 2 releases a gradient in every one of its n_dis steps; here a request gets one
reply behind all of them, because each release costs ε.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedsink.clients.answers.base import (
    Asked,
    BatchedAnswer,
    Neighbours,
    Task,
    check_classes,
    check_view,
)
from fedsink.clients.answers.central import CentralAnswer
from fedsink.clients.answers.gs_wgan_critics import (
    CriticMessage,
    CriticState,
    Fakes,
    Parts,
    critic_totals,
)
from fedsink.clients.owner.policy import Policy
from fedsink.clients.owner.states import State
from fedsink.clients.records.pool import Pool, classes_under
from fedsink.clients.records.shard import Shard
from fedsink.data.spec import DataSpec
from fedsink.data.views import view_from_dict
from fedsink.models.critics import Critic, CriticTraining
from fedsink.privacy import PrivacyPlan
from fedsink.privacy.adjacency import CLIENT, REPLACE_ONE, USER
from fedsink.privacy.clips import ClipOfCritics
from fedsink.protocol.gs_wgan import CriticRequest, Critics
from fedsink.values import read_json

_DEALT: WeakKeyDictionary[Pool, tuple[Any, dict[tuple[int, int], Parts]]] = WeakKeyDictionary()
"""Records of each pool as they were dealt for its last request."""


class GSWGANAnswer(CentralAnswer, BatchedAnswer):
    """``train.gs_wgan``: `critic_gradients` of one round, and the critics' next state.

    The critics' state is kept under the reservation of the message; see
    `fedsink.clients.owner.states`. It is put before the reply is stored. A message whose reply is
    not stored trains from the state before its round, whatever happened since: under a key whose
    streams can be drawn again it arrives at the same state. Where that state is lost, a node starts
    its critics anew, with the steps of a first round. The ε is still the plan's: a total is a sum
    over parts of the records whatever the critics' states are, and the server learns only a noised
    sum.

    Guarantees:
        - A client answers only in its turn of the plan's schedule.
        - An architecture that the policy or the data's public description refuses is not built.
        - A stored reply is sent again without training.
    """

    Request = CriticRequest
    name = CriticRequest.name
    limits: ClassVar = {
        "maximum_images": None,
        "maximum_critics": None,
        "maximum_critic_width": None,
        "maximum_critic_steps": None,
    }

    def __init__(self, requests: Sequence[CriticRequest]) -> None:
        [self.request] = requests
        super().__init__(requests)

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Returns the policy's word for the answer: the name of its mechanism."""
        return ("critic",)

    def check_policy(self, policy: Policy) -> None:
        """Refuses as others do, and more images, more or larger critics, or more steps."""
        super().check_policy(policy)
        images = len(self.request.rows) + len(self.request.fakes)
        policy.check_limit("maximum_images", images, "images")
        critics, training = self.request.critics, self.request.critics.training
        policy.check_limit("maximum_critics", training.critics, "critics")
        policy.check_limit("maximum_critic_width", critics.hidden, "units in a critic's layer")
        steps = training.first_steps
        policy.check_limit("maximum_critic_steps", steps, "steps for its critics' first round")

    def check_data(self, data: DataSpec) -> None:
        """Refuses a view, a class list and critics that are not of the data as well."""
        super().check_data(data)
        check_view(self.request.view, self.request.rows.shape[1], data)
        check_classes(self.request.critics.classes, data)
        architecture(self.request)

    def compute(self, task: Task) -> list[Tensor]:
        """Returns the gradient, (n, D)."""
        [reply] = critic_gradients(self.request, [task], Pool([task.shard]), slice(0, 1))
        return [reply]

    def fits(self, other: Self) -> bool:
        """Returns False: the critics of one batch are shown the same rows."""
        return False

    @classmethod
    def compute_each(cls, asked: Sequence[Asked], pool: Pool, *, summed: bool) -> Tensor:
        """Returns the gradients of all clients, (K, 1, n, D)."""
        [some] = asked
        places = slice(int(some.places[0]), int(some.places[-1]) + 1)
        return critic_gradients(some.answer.request, some.tasks(pool), pool, places).unsqueeze(1)

    @classmethod
    def canaries(cls, plan: PrivacyPlan, records: int = 1) -> list[Neighbours]:
        """Returns records that turn the first critic's gradient round (all, under `client`).

        Records are points of a line, and the message's rows lie at 0. Three quarters of the rows to
        train against lie at −2 and one at 2, so that a critic of records at −1 falls at 0, and one
        whose records lie at 1, half of them or more, rises there. All rows of its gradient are
        equal, so that it is ±C·v_t once it is clipped: 2C apart. v_t is zero at rows that are not
        of the records' class, the odd and the even ones in turn: noise that is used in two rounds
        cancels in their difference, and the canary does not.
        """
        clip = ClipOfCritics.expect(plan.clip)
        cls.refuse_one_run(records)
        # Without a penalty a critic is as steep as it becomes: every clip binds.
        training = CriticTraining(
            clip.critics, steps=1, warm=30, batch=16, history=1, lr=0.05, penalty=0.0
        )
        requests = [
            CriticRequest(
                round=round,
                plan=plan,
                critics=Critics(training, classes=2, hidden=4, scale=1.0),
                view={"name": "pixel", "shape": [1]},
                rows=torch.zeros(16, 1),
                row_labels=(torch.arange(16) + round) % 2,
                fakes=torch.tensor([[-2.0], [-2.0], [-2.0], [2.0]]),
                fake_labels=torch.zeros(4, dtype=torch.int64),
            )
            for round in range(1, plan.rounds + 1)
        ]

        def shard(value: float, *others: float) -> Shard:
            """Returns a client with one record for each critic, and others of the first user."""
            values = torch.tensor([*[value] * clip.critics, *others]).unsqueeze(1)
            users = torch.tensor([*range(1, clip.critics + 1), *[0] * len(others)])
            return Shard(values, torch.zeros(len(values), dtype=torch.int64), users)

        absent = shard(-1.0, -1.0) if plan.adjacency == REPLACE_ONE else shard(-1.0)
        canaries = [1.0, 1.0] if plan.adjacency == USER else [1.0]
        present = shard(1.0) if plan.adjacency == CLIENT else shard(-1.0, *canaries)
        return [Neighbours(f"one {plan.unit}", requests, absent, present)]


def critic_gradients(
    request: CriticRequest, tasks: Sequence[Task], pool: Pool, clients: slice
) -> Tensor:
    """Trains the critics of K clients for one round; returns their noised sums, (K, n, D).

    Each client releases Σ_m clip(∂D_m/∂X, C) + N(0, (2Cσ)² I) over its M critics, each of which
    has been trained on its own part of the records; see `critic_totals`. With a rate q < 1 the sum
    is over the critics that are asked, each with probability q, and all are trained. The sums are
    float32; a request that spreads the noise over several clients gets int64 with a part of it
    (`IntegerGaussian`).

    Guarantees:
        - A reply depends on private data only through the total that is noised, which one part of
          the records moves by at most the clip's sensitivity.
        - Its shape depends only on the request; a client without records answers like any other.
        - Under the user adjacency all records of a user belong to one critic.
        - The asked critics are drawn for each round and client by coins used for nothing else;
          the draw changes neither the states nor the operations that run.
        - The state after the round is kept at the client, and is no part of the result.
    """
    critic, critics = architecture(request), request.critics
    clip = ClipOfCritics.expect(request.plan.clip)
    parts = dealt(request, pool, clients)  # step 1
    names = _names(request)
    stores = [task.state(names) for task in tasks]
    states = [
        _state(request, critic, task.client, store, parts.records)
        for task, store in zip(tasks, stores, strict=True)
    ]
    totals, trained = critic_totals(  # steps 2 to 5
        critic,
        critics.training,
        clip,
        _shown(request, parts.records.device),
        _asked(request, parts, tasks),
        _sharing_fakes(states),
        [task.stream("critic", request.round) for task in tasks],
        critics.local_generator(critic),
    )
    # Before the noised reply exists: after a crash in between its input state must be found.
    for state, store in zip(trained, stores, strict=True):
        store.put(request.round, state.to_tensors())
    noise = [task.stream("noise", request.round) for task in tasks]
    return request.release_each(clip.vouch(totals), noise)


def dealt(request: CriticRequest, pool: Pool, clients: slice) -> Parts:
    """Deals the records of some clients to the critics of a request; kept for the next one.

    Where users are protected, all records of a user belong to one critic; else a record's slot
    is the number of its name, and where it has none its place in its shard.
    """
    critics, by_user = request.critics, request.plan.unit == "user"
    view = json.dumps(request.view, sort_keys=True)
    key = (view, critics.training.critics, critics.classes, by_user)
    if pool not in _DEALT or _DEALT[pool][0] != key:
        _DEALT[pool] = key, {}
    cache = _DEALT[pool][1]
    start, stop, _ = clients.indices(len(pool))
    if (start, stop) not in cache:
        coordinates = pool.coordinates(request.view)
        labels = classes_under(critics.classes, pool.labels)
        slots = pool.records(slice(None)).whole_users() if by_user else pool.slots
        held = [pool.places_of(client) for client in range(start, stop)]
        shards = [(coordinates[o], labels[o], None if slots is None else slots[o]) for o in held]
        cache[start, stop] = Parts.deal(shards, critics.training.critics, critics.classes)
    return cache[start, stop]


def _asked(request: CriticRequest, parts: Parts, tasks: Sequence[Task]) -> Parts:
    """Returns the parts with only the critics asked that this round's coins choose."""
    if request.plan.rate == 1.0:
        return parts
    coins = [task.stream("sample", request.round) for task in tasks]
    return parts.asked(request.plan.sampler.draw_each([parts.critics] * len(tasks), coins))


def architecture(request: CriticRequest) -> Critic:
    """Returns the critics' architecture in the request's view; raises ValueError for a misfit."""
    return _architecture(request.critics, json.dumps(request.view, sort_keys=True))


@lru_cache(maxsize=4)
def _architecture(critics: Critics, view: str) -> Critic:
    return critics.architecture(view_from_dict(read_json(view)))


def _names(request: CriticRequest) -> str:
    """Returns a name that tells apart several kinds of critics under one reservation."""
    return json.dumps([request.critics.to_dict(), request.view], sort_keys=True)


def _state(
    request: CriticRequest, critic: Critic, client: int, store: State, like: Tensor
) -> CriticState:
    """Returns the state of the client's critics before this round."""
    critics, remembered = request.critics, store.before(request.round)
    if remembered is None:
        state = CriticState.start(critic, critics.training.critics, critics.initial, like)
    else:
        state = CriticState.from_tensors({k: v.to(like.device) for k, v in remembered.items()})
    turns = request.plan.schedule.answered(client, request.round)
    if state.rounds != turns and (store.simulated or remembered is None):
        store.lost(
            f"before round {request.round} the critics of client {client} have been trained "
            f"in {state.rounds} rounds and not in {turns}"
        )
    return state


def _shown(request: CriticRequest, device: torch.device) -> CriticMessage:
    rows, row_labels, fakes, labels = (
        getattr(request, name).to(device) for name in ("rows", "row_labels", "fakes", "fake_labels")
    )
    return CriticMessage(rows, row_labels, fakes, labels, request.rate)


def _sharing_fakes(states: Sequence[CriticState]) -> list[CriticState]:
    """Returns the states with equal generated rows replaced by one object, kept once."""
    pools: list[Fakes] = []
    shared = []
    for state in states:
        pool = next((pool for pool in pools if _equal(pool, state.fakes)), None)
        if pool is None:
            pools.append(pool := state.fakes)
        shared.append(replace(state, fakes=pool))
    return shared


def _equal(one: Fakes, two: Fakes) -> bool:
    return one.rows is two.rows or (
        torch.equal(one.labels, two.labels) and torch.equal(one.rows, two.rows)
    )
