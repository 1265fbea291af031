"""Critics at a client: effects that one part of the records may have, and may not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from fedsink.clients.answers.gs_wgan_critics import (
    CriticMessage,
    CriticState,
    Fakes,
    Parts,
    _other_labels,
    critic_totals,
)
from fedsink.data.views import PixelView
from fedsink.models.critics import (
    Adam,
    ConvolutionCritic,
    CriticTraining,
    LocalGenerator,
    PerceptronCritic,
)
from fedsink.privacy import CriticClip, RowClip, Stream
from fedsink.privacy.clips import ClipOfCritics

Shard = tuple[Tensor, Tensor, Tensor | None]
Operations = Callable[[Callable[[], object]], list[tuple[Any, ...]]]

D, CLASSES, CRITICS, ROWS = 4, 3, 5, 6
CRITIC = PerceptronCritic(D, CLASSES, hidden=6, scale=1.0)
PICTURES = ConvolutionCritic(PixelView((1, 2, 2)), CLASSES, features=2)
TRAINING = CriticTraining(CRITICS, steps=2, warm=3, batch=3, history=2)
MATCHING = replace(TRAINING, mismatch=0.5)
WARMED = replace(TRAINING, warm_generator=3)
LOCAL = LocalGenerator(D, CLASSES, scale=3.0)
CLIP = CriticClip(0.7, CRITICS)


def message(seed: int = 0, rows: int = ROWS) -> CriticMessage:
    stream = Stream(b"test", "message", seed)
    x, fakes = (stream.normal(n, D).float() for n in (rows, 9))
    return CriticMessage(x, torch.arange(rows) % CLASSES, fakes, torch.arange(9) % CLASSES, 0.01)


def shard(n: int = 17, seed: int = 0) -> Shard:
    records = 2.0 + Stream(b"test", "shard", seed).normal(n, D).float()
    return records, torch.arange(n) % CLASSES, torch.arange(n)


def start(critic: Any = CRITIC, critics: int = CRITICS) -> CriticState:
    return CriticState.start(critic, critics, Stream(b"public"), torch.zeros(1))


def taught(
    parts: Parts,
    states: list[CriticState],
    coins: list[Stream],
    *,
    shown: CriticMessage | None = None,
    critic: Any = CRITIC,
    training: CriticTraining = TRAINING,
    clip: ClipOfCritics = CLIP,
) -> tuple[Tensor, list[CriticState]]:
    """One round, behind a warm start where the training has one."""
    local = LOCAL if training.warm_generator else None
    return critic_totals(critic, training, clip, shown or message(), parts, states, coins, local)


def totals(
    shards: list[Shard],
    states: list[CriticState] | None = None,
    *,
    rounds: int = 1,
    clip: ClipOfCritics = CLIP,
    critic: Any = CRITIC,
    critics: int = CRITICS,
    training: CriticTraining = TRAINING,
) -> tuple[Tensor, list[CriticState]]:
    """The totals of the last of some rounds, and the states after it."""
    states = states or [start(critic, critics) for _ in shards]
    parts = Parts.deal(shards, critics, CLASSES)
    for t in range(rounds):
        coins = [Stream(b"test", "coins", client, t) for client in range(len(shards))]
        how = {"critic": critic, "training": training, "clip": clip}
        total, states = taught(parts, states, coins, shown=message(t), **how)
    return total, states


def square(total: Tensor, other: Tensor) -> Fraction:
    """‖total − other‖², exactly."""
    pairs = zip(total.flatten().tolist(), other.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))


# Dealing


def test_a_record_belongs_to_the_critic_of_its_slot():
    records, labels, _ = shard(12)
    slots = torch.tensor([0, 7, 7, 3, 25, 1, 9, 14, 2, 2, 11, 5])
    parts = Parts.deal([(records, labels, slots), shard(0), shard(6)], CRITICS, CLASSES)
    assert parts.sizes.tolist() == [3, 2, 4, 1, 2, 0, 0, 0, 0, 0, 2, 1, 1, 1, 1]
    for critic in range(CRITICS):
        own = parts.records[parts.starts[critic] :][: parts.sizes[critic]]
        assert torch.equal(own, records[slots % CRITICS == critic])
        held = labels[slots % CRITICS == critic]
        assert parts.holds[critic].tolist() == [bool((held == c).any()) for c in range(CLASSES)]


def test_without_names_a_records_slot_is_its_line():
    """The slot is not a place among ordered records, which other records would move."""
    records, labels, lines = shard(12)
    unnamed, numbered = (
        Parts.deal([(records, labels.flip(0), slots)], CRITICS, CLASSES) for slots in (None, lines)
    )
    for name in ("records", "labels", "starts", "sizes", "holds"):
        assert torch.equal(getattr(unnamed, name), getattr(numbered, name))


def test_records_are_drawn_evenly_from_the_own_part_and_from_none_where_it_is_empty():
    parts = Parts.deal([shard(0), shard(7), shard(0)], CRITICS, CLASSES)
    uniform = Stream(b"test").uniform(3 * CRITICS, 3000)
    places = parts.draw(uniform)
    held = range(CRITICS, 2 * CRITICS)
    for critic in held:
        counts = torch.bincount(places[critic], minlength=8)
        low, size = int(parts.starts[critic]), int(parts.sizes[critic])
        assert counts[low : low + size].sum() == 3000
        assert counts[low : low + size].min() > 0.9 * 3000 / size
    assert bool((places[:CRITICS] == 7).all())  # else they would be the next critic's
    assert bool((places[2 * CRITICS :] == 7).all())
    assert not parts.records[7].any()
    edge = parts.draw(torch.full((3 * CRITICS, 1), 1.0 - 2.0**-53, dtype=torch.float64))
    assert torch.equal(edge[held, 0], parts.starts[held] + parts.sizes[held] - 1)


def test_a_record_meets_a_fake_of_its_own_label_and_any_where_there_is_none():
    fakes = Fakes(torch.arange(5.0).unsqueeze(1), torch.tensor([2, 0, 2, 0, 2]))
    labels = torch.tensor([0, 1, 2]).repeat_interleave(2000).reshape(3, 2000)
    places = fakes.draw(Stream(b"test").uniform(3, 2000), labels, CLASSES)
    for label, allowed in ((0, {1, 3}), (1, {0, 1, 2, 3, 4}), (2, {0, 2, 4})):
        counts = torch.bincount(places[label], minlength=5)
        assert set(counts.nonzero().flatten().tolist()) == allowed
        assert counts[counts > 0].min() > 0.85 * 2000 / len(allowed)


def test_the_fakes_of_the_last_messages_are_kept():
    fakes = start().fakes
    for t in range(4):
        fakes = fakes.appended(torch.full((3, D), float(t)), torch.full((3,), t), history=2)
    assert fakes.labels.tolist() == [2, 2, 2, 3, 3, 3]
    assert fakes.rows[:, 0].tolist() == [2, 2, 2, 3, 3, 3]


# What one part can move

ANY = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e-45, 2.0**-126, 3e38, -3e38]),
)


@st.composite
def parts(draw: st.DrawFn) -> Shard:
    """Up to three records of the first critic, of any values."""
    n = draw(st.integers(0, 3))
    values = draw(st.lists(ANY, min_size=n * D, max_size=n * D))
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=n, max_size=n))
    return (
        torch.tensor(values, dtype=torch.float32).reshape(n, D),
        torch.tensor(labels, dtype=torch.int64),
        torch.zeros(n, dtype=torch.int64),
    )


@st.composite
def hostile(draw: st.DrawFn) -> CriticState:
    """A state whose first critic holds any floats; the others hold trained weights."""
    state = totals([shard()], rounds=2)[1][0]
    fill = draw(st.lists(ANY, min_size=4, max_size=4))
    scale = draw(st.sampled_from([0.0, 1.0, 1e15]))
    noise = Stream(b"test", draw(st.integers(0, 20))).normal(CRITIC.size).float()
    row = torch.tensor(fill, dtype=torch.float32).repeat(CRITIC.size)[: CRITIC.size] + scale * noise
    weights, mean, squares = (
        v.clone() for v in (state.weights, state.adam.mean, state.adam.square)
    )
    weights[0], mean[0], squares[0] = row, row.flip(0), row
    return replace(state, weights=weights, adam=Adam(mean, squares, state.adam.steps.clone()))


@pytest.mark.medium
@settings(max_examples=150)
@given(
    parts(), parts(), hostile(), hostile(), st.sampled_from([1e-20, 0.7, 1e9]), st.booleans()
)  # fmt: skip
def test_two_totals_that_differ_in_one_part_and_state_are_within_the_sensitivity(
    part, other_part, state, other_state, bound, warmed
):
    """In the first round, behind a warm start, or in a later one."""
    clip = CriticClip(bound, CRITICS)
    rest = tuple(values[shard()[2] % CRITICS != 0] for values in shard())
    training = WARMED if warmed else TRAINING

    def total(own: Shard, own_state: CriticState) -> Tensor:
        joined = tuple(torch.cat(pair) for pair in zip(own, rest, strict=True))
        own_state = replace(own_state, rounds=0) if warmed else own_state
        return totals([joined], [own_state], clip=clip, training=training)[0]

    one, other = total(part, state), total(other_part, other_state)
    assert bool(one.isfinite().all())
    assert square(one, other) <= Fraction(clip.sensitivity) ** 2


def negated(state: CriticState) -> CriticState:
    """The state with the first critic's output negated."""
    weights = state.weights.clone()
    for name in ("head", "label_heads"):
        CRITIC.arrays(weights)[name][0] *= -1.0
    return replace(state, weights=weights)


def critic_against_its_negation(
    clip: ClipOfCritics, rows: int, critics: int = CRITICS
) -> tuple[Tensor, Tensor]:
    """Totals of a steep critic and of its negation, neither of which is trained further."""
    state = start(critics=critics)
    state = replace(state, weights=100.0 * state.weights)
    still = replace(TRAINING, steps=0, warm=0)
    dealt = Parts.deal([shard()], critics, CLASSES)
    one, other = (
        taught(dealt, [s], [Stream(b"test")], shown=message(0, rows), training=still, clip=clip)[0]
        for s in (state, negated(state))
    )
    return one, other


def test_the_sensitivity_is_attained_by_a_critic_against_its_negation():
    one, other = critic_against_its_negation(CLIP, ROWS)
    assert math.sqrt(square(one, other)) == pytest.approx(CLIP.sensitivity, rel=1e-5)


def test_a_clip_of_every_row_breaks_the_sensitivity_by_the_root_of_the_rows():
    """The published clip: each row by itself, and noise for one row."""
    n = 32
    clip = RowClip(0.7, n)
    one, other = critic_against_its_negation(clip, n, critics=1)
    distance = math.sqrt(square(one, other))
    assert distance == pytest.approx(2 * 0.7 * math.sqrt(n), rel=1e-5)
    assert distance == pytest.approx(clip.sensitivity, rel=1e-5)
    assert distance > 5 * CLIP.sensitivity
    one, other = critic_against_its_negation(CLIP, n)
    assert square(one, other) <= Fraction(CLIP.sensitivity) ** 2


@pytest.mark.medium
@settings(max_examples=100)
@given(parts(), parts(), hostile(), hostile(), st.sampled_from([1e-20, 0.7, 1e9]))
def test_with_clipped_rows_no_part_and_state_exceed_the_sensitivity_of_all_of_them(
    part, other_part, state, other_state, bound
):
    def total(own: Shard, held: CriticState) -> Tensor:
        first = {
            name: value if name.startswith("fakes") or value.dim() == 0 else value[:1]
            for name, value in held.to_tensors().items()
        }
        alone = CriticState.from_tensors(first)
        return totals([own], [alone], clip=RowClip(bound, ROWS), critics=1)[0]

    one, other = total(part, state), total(other_part, other_state)
    assert all(square(row, torch.zeros(D)) <= Fraction(bound) ** 2 for row in one[0])
    assert square(one, other) <= 4 * ROWS * Fraction(bound) ** 2


@pytest.mark.parametrize("training", [TRAINING, WARMED], ids=["plain", "warmed"])
@pytest.mark.parametrize("critic", [CRITIC, PICTURES], ids=["perceptron", "convolution"])
@pytest.mark.parametrize("change", ["absent", "replaced", "relabelled", "not finite", "added"])
def test_no_record_moves_another_critic(change, critic, training):
    """Equal bit by bit, over several rounds: the states, and so the sum."""
    records, labels, slots = shard()
    place = 8
    if change == "absent":
        kept = torch.arange(len(labels)) != place
        other: Shard = (records[kept], labels[kept], slots[kept])
    elif change == "added":
        more = torch.full((1, D), 5.0)
        other = (
            torch.cat([more, records]),
            torch.cat([labels[:1], labels]),
            torch.cat([torch.tensor([103]), slots]),
        )
    else:
        values, kinds = records.clone(), labels.clone()
        values[place] = {"replaced": 9.0, "relabelled": values[place], "not finite": math.nan}[
            change
        ]
        kinds[place] = (kinds[place] + (change == "relabelled")) % CLASSES
        other = (values, kinds, slots)
    moved = 103 % CRITICS if change == "added" else place % CRITICS
    states = [
        totals([s], rounds=3, critic=critic, training=training)[1][0] for s in (shard(), other)
    ]
    same = torch.arange(CRITICS) != moved
    assert not torch.equal(states[0].weights[moved], states[1].weights[moved])
    for name in ("weights", "adam.mean", "adam.square", "adam.steps"):
        one, two = (state.to_tensors()[name][same] for state in states)
        assert torch.equal(one, two)


# Masks and empty parts


def test_rows_of_classes_that_a_part_lacks_are_zero():
    records, labels, slots = shard(40)
    kept = (labels == 1) & (slots % CRITICS == 2)
    total, _ = totals([(records[kept], labels[kept], slots[kept])])
    assert bool((total[0, message().row_labels != 1] == 0).all())
    assert bool((total[0, message().row_labels == 1].norm(dim=-1) > 0).all())
    assert float(total.norm()) == pytest.approx(CLIP.bound, rel=1e-5)


def test_a_class_that_one_part_alone_has_is_asked_of_no_other_critic():
    records, labels, slots = shard()
    labels = labels % 2
    labels[8] = 2
    own = slots % CRITICS == 8 % CRITICS
    whole, alone, others = (
        totals([(records[kept], labels[kept], slots[kept])])[0]
        for kept in (torch.ones_like(own), own, ~own)
    )
    torch.testing.assert_close(whole, alone + others, rtol=1e-5, atol=1e-6)
    assert bool((others[0, message().row_labels == 2] == 0).all())


@pytest.mark.parametrize("training", [TRAINING, WARMED], ids=["plain", "warmed"])
def test_without_records_the_total_is_zero_and_nothing_is_learned(training):
    total, [state] = totals([shard(0)], rounds=3, training=training)
    assert torch.equal(total, torch.zeros(1, ROWS, D, dtype=torch.float64))
    assert torch.equal(state.weights, start().weights)
    assert not state.adam.steps.any()
    assert state.rounds == 3


def test_the_total_is_the_sum_of_the_critics_clipped_gradients():
    total, [state] = totals([shard()])
    x, row_labels = message().rows, message().row_labels
    expected = torch.zeros(ROWS, D, dtype=torch.float64)
    for m in range(CRITICS):
        own = state.weights[m : m + 1]
        gradient = CRITIC.gradients(own, x[None], row_labels[None])[0].double()
        held = shard()[1][shard()[2] % CRITICS == m]
        gradient[~torch.isin(row_labels, held)] = 0.0
        expected += gradient * min(1.0, CLIP.bound / float(gradient.norm()))
    torch.testing.assert_close(total[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize(
    "training",
    [TRAINING, MATCHING, replace(MATCHING, warm_generator=2)],
    ids=["plain", "matching", "warmed"],
)
@pytest.mark.parametrize("size", [3, 200])  # of less than one batch, and of more than all
def test_the_operations_do_not_depend_on_how_records_are_dealt(
    operations: Operations, training: CriticTraining, size: int
):
    """A part may be empty, of one class, or hold all: the same work."""
    records, labels, slots = shard(size)
    kinds = [slots, torch.zeros_like(slots), 3 * slots, slots % 2]
    classes = [labels, torch.zeros_like(labels)]
    seen = []
    for slot in kinds:
        for label in classes:
            dealt = Parts.deal([(records, label, slot)], CRITICS, CLASSES)
            coins = [Stream(b"test")]
            ask = partial(taught, dealt, [start()], coins, training=training)
            seen.append(operations(ask))
    assert all(each == seen[0] for each in seen)
    assert len(seen[0]) > 100


def test_a_critic_that_is_not_asked_answers_zero_and_is_trained_all_the_same():
    dealt, which = Parts.deal([shard(), shard(9, 1)], CRITICS, CLASSES), torch.arange(10) % 3 == 0

    def both(parts: Parts) -> tuple[Tensor, list[CriticState]]:
        return taught(parts, [start(), start()], [Stream(b"test", client) for client in range(2)])

    (every, states), (some, of_some) = both(dealt), both(dealt.asked(which))
    for state, other in zip(states, of_some, strict=True):
        for name, value in state.to_tensors().items():
            assert torch.equal(value, other.to_tensors()[name])
    for client in range(2):
        own = slice(client * CRITICS, (client + 1) * CRITICS)
        alone = [both(dealt.asked(torch.arange(10) == m))[0][client] for m in range(10)[own]]
        for total, asked in ((every, torch.ones(10, dtype=torch.bool)), (some, which)):
            wanted = sum(g for g, a in zip(alone, asked[own], strict=True) if a)
            torch.testing.assert_close(total[client], wanted)


# Cohorts and states


@pytest.mark.medium
@pytest.mark.parametrize("training", [TRAINING, WARMED], ids=["plain", "warmed"])
@pytest.mark.parametrize("critic", [CRITIC, PICTURES], ids=["perceptron", "convolution"])
def test_clients_in_one_batch_give_what_each_gives_alone(critic, training):
    shards = [shard(17), shard(0), shard(5, 1), shard(30, 2)]
    together, states = totals(shards, rounds=3, critic=critic, training=training)
    for client, own in enumerate(shards):
        dealt, state = Parts.deal([own], CRITICS, CLASSES), start(critic)
        for t in range(3):
            coins = [Stream(b"test", "coins", client, t)]
            alone, [state] = taught(
                dealt, [state], coins, shown=message(t), critic=critic, training=training
            )
        torch.testing.assert_close(together[client], alone[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(states[client].weights, state.weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [TRAINING, WARMED], ids=["plain", "warmed"])
def test_the_same_coins_give_the_same_bits_and_other_coins_do_not(training):
    again = [totals([shard()], rounds=2, training=training)[0] for _ in range(2)]
    assert torch.equal(*again)
    dealt = Parts.deal([shard()], CRITICS, CLASSES)
    other = taught(dealt, [start()], [Stream(b"test", "other")], training=training)[0]
    assert not torch.equal(other, totals([shard()], training=training)[0])


# The warm start


def test_a_local_generator_trains_critics_in_their_first_round_alone():
    """A second round is the same with it and without it, and nothing of it is kept."""
    plain, warmed = (totals([shard()], training=training) for training in (TRAINING, WARMED))
    assert not torch.equal(plain[0], warmed[0])
    assert warmed[1][0].to_tensors().keys() == plain[1][0].to_tensors().keys()
    [steps] = {int(s) for s in warmed[1][0].adam.steps}
    assert steps == TRAINING.steps_after(0) + 3 * TRAINING.steps
    found = [totals([shard()], warmed[1], training=training)[0] for training in (TRAINING, WARMED)]
    assert torch.equal(*found)


def test_the_coins_of_a_warm_start_are_the_clients_and_the_rounds():
    """Critics of equal records, at one client or two, differ in nothing but their coins."""
    alike = (torch.ones(4, D), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    parts = Parts.deal([alike, alike], 2, CLASSES)
    # Against one row of the server's, without midpoints, a step is the same whatever the coins.
    training = replace(WARMED, critics=2, warm=0, penalty=0.0)
    shown = replace(message(), fakes=torch.zeros(1, D), fake_labels=torch.zeros(1).long())
    coins = [Stream(b"test", client) for client in (0, 1)]
    began, clip = [start(critics=2), start(critics=2)], CriticClip(0.7, 2)
    _, states = taught(parts, began, coins, shown=shown, training=training, clip=clip)
    rows = torch.cat([state.weights for state in states])
    assert len({tuple(row.tolist()) for row in rows}) == 4


@pytest.mark.medium
def test_a_local_generator_learns_its_critics_records_by_class():
    """Each class at a different corner, and each critic's further out than the previous one's."""
    labels, slots = torch.arange(90) % CLASSES, torch.arange(90) // CLASSES % 3
    records = 2.0 * (1.0 + slots.unsqueeze(1)) * torch.eye(CLASSES, D)[labels]
    made: list[tuple[Tensor, Tensor]] = []

    class Listening(LocalGenerator):
        def points(self, weights: Tensor, uniform: Tensor, labels: Tensor) -> Tensor:
            made.append((super().points(weights, uniform, labels).detach(), labels))
            return super().points(weights, uniform, labels)

    training = CriticTraining(3, steps=3, warm=0, batch=12, warm_generator=300)
    parts = Parts.deal([(records, labels, slots)], 3, CLASSES)
    critic_totals(
        PerceptronCritic(D, CLASSES, hidden=16, scale=1.0), training, CriticClip(1.0, 3),
        message(), parts, [start(PerceptronCritic(D, CLASSES, 16, 1.0), 3)], [Stream(b"test")],
        Listening(D, CLASSES, scale=1.0),
    )  # fmt: skip

    def error(steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        wanted = [2.0 * (1.0 + torch.arange(3)).reshape(3, 1, 1) * torch.eye(CLASSES, D)[of]
                  for _, of in steps]  # fmt: skip
        gaps = [points - at for (points, _), at in zip(steps, wanted, strict=True)]
        return torch.cat(gaps, 1).square().sum(-1).mean(1).sqrt()

    assert bool((error(made[-80:]) < 0.5 * error(made[:4])).all())


def test_clients_of_one_batch_keep_one_copy_of_the_fakes():
    _, states = totals([shard(), shard(9, 1), shard(0)], rounds=3)
    assert len({id(state.fakes) for state in states}) == 1


def test_given_states_are_not_changed():
    _, states = totals([shard(), shard(9, 1)], rounds=2)
    before = [{k: v.clone() for k, v in s.to_tensors().items()} for s in states]
    totals([shard(), shard(9, 1)], states)
    for state, tensors in zip(states, before, strict=True):
        for name, value in state.to_tensors().items():
            assert torch.equal(value, tensors[name])


def test_a_state_goes_through_a_file_of_tensors_and_goes_on_alike():
    _, states = totals([shard(), shard(9, 1)], rounds=2)
    restored = [CriticState.from_tensors(load(save(state.to_tensors()))) for state in states]
    expected, actual = (totals([shard(), shard(9, 1)], s) for s in (states, restored))
    assert torch.equal(expected[0], actual[0])
    assert actual[1][0].rounds == 3


def test_clients_of_one_batch_have_equally_many_rounds_behind_them():
    _, [state] = totals([shard()])
    with pytest.raises(ValueError, match=r"have equally many rounds behind them, not \{0, 1\}"):
        totals([shard(), shard()], [start(), state])


def test_critics_learn_to_tell_records_from_fakes():
    """Records lie around (2, …, 2) and fakes around 0: D grows towards the records."""
    total, states = totals([shard(60)], rounds=40)
    assert bool((total[0].sum(-1) > 0).all())
    points = torch.cat([message().fakes, shard()[0][:9]]).expand(CRITICS, -1, -1)
    labels = (torch.arange(18) % CLASSES).expand(CRITICS, -1)
    scores = CRITIC.scores(states[0].weights, points, labels)
    assert bool((scores[:, 9:].mean(1) > scores[:, :9].mean(1) + 1.0).all())


@pytest.mark.medium
def test_matching_aware_critics_score_a_record_higher_under_its_own_label():
    """Three classes, each around a different corner."""
    labels = torch.arange(90) % CLASSES
    records = 4.0 * torch.eye(CLASSES, D)[labels] + 0.3 * Stream(b"test").normal(90, D).float()
    points, own = (v.expand(CRITICS, *v.shape) for v in (records, labels))

    def margin(training: CriticTraining) -> float:
        [state] = totals([(records, labels, None)], rounds=40, training=training)[1]
        other = CRITIC.scores(state.weights, points, (own + 1) % CLASSES)
        return float((CRITIC.scores(state.weights, points, own) - other).mean())

    assert margin(MATCHING) > margin(TRAINING) + 1.0


def test_another_label_is_never_the_own_one_and_each_is_as_likely():
    labels = torch.arange(4).repeat(3000)
    others = _other_labels(labels, Stream(b"test").uniform(12000), 4)
    table = torch.bincount(4 * labels + others, minlength=16).reshape(4, 4)
    assert not table.diagonal().any()
    assert int((table - 1000)[~torch.eye(4, dtype=torch.bool)].abs().max()) < 5 * 26


def test_with_one_class_no_label_is_another():
    critic, records = PerceptronCritic(D, 1, hidden=6, scale=1.0), shard()[0]
    parts = Parts.deal([(records, torch.zeros(17, dtype=torch.int64), None)], CRITICS, 1)
    shown = replace(
        message(), row_labels=torch.zeros(ROWS).long(), fake_labels=torch.zeros(9).long()
    )
    found = []
    for training in (TRAINING, MATCHING):
        how = {"shown": shown, "critic": critic, "training": training}
        found.append(taught(parts, [start(critic)], [Stream(b"test")], **how)[0])
    assert torch.equal(*found)
