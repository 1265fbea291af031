"""Tests of `fedsink.privacy.steps`: each round is sampled and released once, by one key."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    Clipped,
    CriticClip,
    NoiseKey,
    PrivacyPlan,
    RecordClip,
    ReproducibleKey,
)

PLAN = PrivacyPlan.solve(rate=0.3, clip=RecordClip(0.5), delta=1e-5, sigma=1.0, rounds=4)
DATA = torch.randn(40, 3, generator=torch.Generator().manual_seed(3))


def played(key: NoiseKey, plan: PrivacyPlan = PLAN, **which: int) -> list[Tensor]:
    """Releases of all rounds."""
    return [
        step.release(plan.clip.sum(DATA[step.sample(len(DATA))]))
        for step in plan.steps(key, **which)
    ]


def test_a_loop_is_the_plans_sampler_clip_and_noise() -> None:
    key, released = ReproducibleKey(1), played(NoiseKey.reproducible(1), client=2)
    for round, noised in enumerate(released, 1):
        chosen = PLAN.sampler.draw(40, key.stream("sample", client=2, round=round))
        rows = DATA[chosen].double()
        total = (rows * (0.5 / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
        noise = key.stream("noise", client=2, round=round).normal(3) * PLAN.noise_std
        torch.testing.assert_close(noised.double(), total + noise, rtol=0.0, atol=1e-5)


def test_no_two_clients_rounds_or_keys_share_a_sample_or_noise() -> None:
    key = NoiseKey.secret()
    alone = [PLAN.clip.sum(DATA[:0])] * 4
    noise = []
    for source, client in ((key, 0), (key, 1), (NoiseKey.secret(), 0)):
        for step, total in zip(PLAN.steps(source, client), alone, strict=True):
            step.sample(0)
            noise.append(step.release(total))
    drawn = torch.stack(noise)
    assert len(drawn.unique(dim=0)) == 12
    assert len(drawn.unique()) == 36


def test_a_record_changes_a_sum_by_its_own_contribution_exactly() -> None:
    rows = torch.randn(1000, 7, dtype=torch.float64) * torch.logspace(-6, 3, 1000).unsqueeze(1)
    clip = RecordClip(0.5)
    whole, order = clip.sum(rows).total, torch.randperm(1000)
    assert torch.equal(clip.sum(rows[order]).total, whole)
    for one in (0, 500, 999):
        rest = clip.sum(torch.cat([rows[:one], rows[one + 1 :]])).total
        assert torch.equal(whole - rest, clip.sum(rows[one : one + 1]).total)
        assert float((whole - rest).norm()) <= 0.5


@pytest.mark.parametrize("worst", [float("nan"), float("inf"), -3e38, 1e-45])
def test_whatever_a_gradient_is_the_clip_holds(worst: float) -> None:
    rows = torch.tensor([[worst, 1.0], [0.3, 0.4]])
    for clip, clipped in (
        (RecordClip(0.5), RecordClip(0.5).sum(rows)),
        (BatchClip(0.5), BatchClip(0.5).clip(rows)),
    ):
        assert bool(clipped.total.isfinite().all())
        assert float(clipped.total.norm()) <= clip.reach(2)


def test_the_tensors_of_a_mapping_have_one_joint_norm_and_come_back_in_their_form() -> None:
    gradients = {"w": torch.full((5, 2, 3), 2.0), "b": torch.full((5, 4), 2.0)}
    joint = torch.cat([g.flatten(1) for g in gradients.values()], dim=1)
    clip = RecordClip(0.5)
    clipped = clip.sum(gradients)
    assert torch.equal(clipped.total, clip.sum(joint).total)
    whole = BatchClip(0.5).clip({"w": torch.ones(2, 3), "b": torch.ones(4)})
    assert float(whole.total.norm()) == pytest.approx(0.5, rel=1e-5)
    for step in PLAN.steps(NoiseKey.reproducible(0)):
        step.sample(40)
        noised: Any = step.release(clipped)
        assert {name: tuple(t.shape) for name, t in noised.items()} == {"w": (2, 3), "b": (4,)}


def test_totals_of_disjoint_records_add_up() -> None:
    clip = PLAN.clip
    parts = [clip.sum(DATA[:10]), clip.sum(DATA[10:])]
    assert torch.equal(sum(parts).total, clip.sum(DATA).total)


def _loop(key: NoiseKey, **which: int) -> Any:
    return next(PLAN.steps(key, **which))


def _skipped(key: NoiseKey) -> None:
    steps = PLAN.steps(key)
    next(steps).sample(0)  # an empty sample, and a `continue`
    next(steps)


def _twice(key: NoiseKey) -> None:
    step = _loop(key)
    step.sample(40)
    step.release(PLAN.clip.sum(DATA[:1]))
    step.release(PLAN.clip.sum(DATA[:1]))


def _again(key: NoiseKey) -> None:
    played(key)
    _loop(key)


def _too_many(key: NoiseKey, plan: PrivacyPlan = PLAN, rows: int = 10) -> None:
    step = next(plan.steps(key))
    step.sample(8)
    half = plan.clip.sum(DATA[: rows // 2])
    step.release(half + plan.clip.sum(DATA[rows // 2 : rows]))


FIXED = replace(PLAN, capacity=10, nominal_records=40)
REFUSED: dict[str, tuple[Callable[[NoiseKey], object], str]] = {
    "an unclipped total": (lambda key: _loop(key).release(DATA), "only a Clipped.*RecordClip"),
    "another bound": (
        lambda key: _loop(key).release(RecordClip(0.6).sum(DATA)), "bound=0.6.*accounts for",
    ),
    "another clip": (lambda key: _loop(key).release(BatchClip(0.5).clip(DATA)), "accounts for"),
    "a round without its release": (_skipped, "round 1 was not released"),
    "a round released twice": (_twice, "round 1 was released"),
    "a second loop": (_again, r"has had 4 rounds.*after=0"),
    "a round that was never released": (lambda key: _loop(key, after=2), "has had 0 rounds"),
    "a second sample": (
        lambda key: [step := _loop(key), step.sample(40), step.sample(39)], "one sample",
    ),
    "no sample": (
        lambda key: _loop(key).release(PLAN.clip.sum(DATA[:0])),
        r"round 1 was released without step\.sample\(n\): the plan's ε",
    ),
    "the summed gradient of a batch": (
        _too_many, r"is of 10 gradients, and round 1 sampled \d records: .*summed \.grad",
    ),
    "more gradients than a capacity": (
        lambda key: _too_many(key, FIXED, 12), "is of 12 gradients",
    ),
    "a key that is none": (lambda key: PLAN.steps(3), r"NoiseKey\.secret\(\).*received 3"),
    "a folder that is missing": (
        lambda key: NoiseKey.kept("no/key"), r"the key no/key has no folder no: make it",
    ),
    "a copy": (copy.copy, "neither copied"),
    "a deep copy": (copy.deepcopy, "neither copied"),
    "a pickle": (pickle.dumps, "neither copied"),
    "a class schedule": (
        lambda key: replace(PLAN, schedule=ClassSchedule(10)).steps(key), "joint schedule",
    ),
    "a clip of critics": (
        lambda key: replace(PLAN, clip=CriticClip(0.5, 2)).steps(key), "CriticClip samples none",
    ),
    "a made Clipped": (lambda key: replace(PLAN.clip.sum(DATA), total=DATA), "made by a clip"),
    "a sum of two clips": (
        lambda key: PLAN.clip.sum(DATA) + RecordClip(1.0).sum(DATA), "one record clip",
    ),
    "a sum of batches": (
        lambda key: BatchClip(0.5).clip(DATA) + BatchClip(0.5).clip(DATA), "one record clip",
    ),
    "other shapes": (lambda key: PLAN.clip.sum(DATA) + PLAN.clip.sum(DATA[:, :2]), "same shapes"),
    "whole numbers": (lambda key: PLAN.clip.sum(DATA.long()), "float32 or float64"),
    "nothing": (lambda key: PLAN.clip.sum({}), "nothing to clip"),
    "a list": (lambda key: PLAN.clip.sum([*DATA]), "received list: stack those of the records"),
    "a number": (lambda key: PLAN.clip.sum(DATA[0, 0]), "received a single number"),
    "a mapping of lists": (lambda key: PLAN.clip.sum({"w": [1.0]}), "received list"),
    "tensors of other numbers": (
        lambda key: PLAN.clip.sum({"w": torch.ones(10, 64), "b": torch.ones(64)}),
        r"received 10 and 64 of them: is it the batch's summed \.grad",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_lose_the_guarantee_is_refused(case: str) -> None:
    play, words = REFUSED[case]
    with pytest.raises(PrivacyError, match=words):
        play(NoiseKey.reproducible(0))


def test_a_round_has_room_for_its_sample_or_for_its_capacity() -> None:
    _too_many(NoiseKey.secret(), FIXED)  # places without a record are filled with zeros
    _too_many(NoiseKey.secret(), replace(PLAN, rate=1.0), 8)
    whole = sum([PLAN.clip.sum(DATA[:10]), PLAN.clip.sum(DATA[10:])])
    assert isinstance(whole, Clipped)
    assert whole.records == 40
    assert (whole + PLAN.clip.vouch(whole.total)).records is None
    each = torch.tensor([3.0, 0.1, 0.2])
    assert torch.equal(PLAN.clip.sum({"scale": each}).total, PLAN.clip.sum(each.unsqueeze(1)).total)


@pytest.mark.parametrize(
    "play", [lambda c: c * 2, lambda c: 2 * c, lambda c: c - c, lambda c: c / 2, lambda c: DATA + c]
)
def test_a_clipped_takes_part_in_no_other_arithmetic(play: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        play(PLAN.clip.sum(DATA))


def test_a_key_that_is_kept_gives_no_round_twice(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = NoiseKey.kept(path)
    steps = PLAN.steps(key)
    first = next(steps)
    sampled = first.sample(40)
    noised = first.release(PLAN.clip.sum(DATA[sampled]))
    second = next(steps).sample(40)  # here the process ends
    with pytest.raises(PrivacyError, match="is open already: two loops would draw the same noise"):
        NoiseKey.kept(path)
    del key, steps, first
    key = NoiseKey.kept(path)
    with pytest.raises(PrivacyError, match="has had 1 rounds of this key"):
        PLAN.steps(key)
    assert key.last(0) == 1
    going_on = PLAN.steps(key, after=1)
    step = next(going_on)
    assert step.round == 2
    assert torch.equal(step.sample(40), second)  # which nobody has seen
    assert not torch.equal(step.release(PLAN.clip.sum(DATA[:0])), noised)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name("key.released").stat().st_mode & 0o777 == 0o600


class Scaled(RecordClip):
    name = "scaled"


OTHER_PLANS: dict[str, dict[str, Any]] = {
    "less noise": {"noise_multiplier": 20.0},
    "a larger rate": {"rate": 0.4},
    "more rounds": {"rounds": 5},
    "another bound": {"clip": RecordClip(0.6)},
    "another clip": {"clip": Scaled(0.5)},
    "another delta": {"delta": 1e-6},
    "another adjacency": {"adjacency": "replace-one"},
    "a capacity": {"capacity": 10, "nominal_records": 40},
}


@pytest.mark.parametrize("case", OTHER_PLANS)
def test_the_rounds_of_a_client_are_one_plans(tmp_path: Path, case: str) -> None:
    """Else the ε of those that were released would be in no plan."""
    other, total = replace(PLAN, **OTHER_PLANS[case]), PLAN.clip.sum(DATA[:1])
    for key in (NoiseKey.secret(), NoiseKey.kept(tmp_path / "key")):
        waiting = _loop(key)
        step = next(other.steps(key))
        step.sample(40)
        step.release(other.clip.sum(DATA[:0]))
        with pytest.raises(PrivacyError, match="has released 1 rounds of another plan for client"):
            PLAN.steps(key, after=1)
        waiting.sample(40)
        with pytest.raises(PrivacyError, match="ε would be missing from this plan's"):
            waiting.release(total)
        next(PLAN.steps(key, client=1))
        assert next(other.steps(key, after=1)).round == 2
    del key, step, waiting
    kept = NoiseKey.kept(tmp_path / "key")
    with pytest.raises(PrivacyError, match=r"the key .*/key has released 1 rounds of another"):
        PLAN.steps(kept, after=kept.last(0))
    assert next(other.steps(kept, after=1)).round == 2


def test_a_round_is_noted_before_its_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PrivacyPlan, "release", crash)
    key = NoiseKey.kept(tmp_path / "key")
    step = _loop(key)
    step.sample(40)
    with pytest.raises(KeyboardInterrupt):
        step.release(PLAN.clip.sum(DATA[:1]))
    assert key.last(0) == 1
    del key, step
    assert NoiseKey.kept(tmp_path / "key").last(0) == 1


@pytest.mark.parametrize(
    "damage", [None, b"", b"[]", b'{"0": "x"}', b'{"0": null}', b'{"0": 4}', b"\xff"]
)
def test_a_key_without_its_journal_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    path, journal = tmp_path / "key", tmp_path / "key.released"
    played(NoiseKey.kept(path))
    if damage is None:
        journal.unlink()
    else:
        journal.write_bytes(damage)
    with pytest.raises(PrivacyError, match=r"key\.released, .*is missing or damaged"):
        NoiseKey.kept(path)


def test_a_capacity_bounds_a_sample_and_nominal_records_a_client() -> None:
    plan = PrivacyPlan.solve(
        rate=0.9, clip=RecordClip(0.5), delta=1e-5, sigma=2.0, rounds=3, capacity=10,
        nominal_records=40,
    )  # fmt: skip
    for step in plan.steps(NoiseKey.reproducible(0)):
        with pytest.raises(PrivacyError, match="accounts for 40 records, received n=41"):
            step.sample(41)
        chosen = step.sample(40)
        assert len(chosen) == len(chosen.unique()) == 10
        step.release(plan.clip.sum(DATA[chosen]))
