from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsink.errors import PrivacyError
from fedsink.privacy import (
    BatchClip,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    RowClip,
    Stream,
    attack_clip,
    clips,
)
from fedsink.privacy.clips import (
    MOST_CRITICS,
    MOST_ROWS,
    ClipOfCritics,
    ClipOfRecords,
    clip_from_dict,
    clip_to_norm,
    simulated_here,
)
from fedsink.transport import clipped_sums

BOUNDS = st.floats(1e-3, 1e3)
SCALES = st.floats(1e-6, 1e6)


def gradient(seed: int, scale: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (scale * Stream(b"key", seed).normal(7, 3, 5)).to(dtype)


@given(BOUNDS, SCALES, st.integers(0, 50), st.sampled_from([torch.float32, torch.float64]))
def test_the_clipped_gradient_has_norm_at_most_the_bound(bound, scale, seed, dtype):
    clip = BatchClip(bound)
    clipped, other = clip.apply(gradient(seed, scale, dtype)), clip.apply(gradient(seed + 1, 1e6))
    assert float(clipped.double().norm()) <= bound
    assert float((clipped.double() - other.double()).norm()) <= clip.sensitivity
    assert clipped.dtype == dtype
    assert clipped.shape == (7, 3, 5)


def test_the_batch_sensitivity_is_twice_the_bound_and_is_reached():
    clip = BatchClip(0.5)
    far = gradient(0, 1e3)
    distance = float((clip.apply(far).double() - clip.apply(-far).double()).norm())
    assert clip.sensitivity == 1.0
    assert distance == pytest.approx(clip.sensitivity, rel=1e-5)


def test_a_gradient_within_the_bound_is_unchanged_and_directions_are_kept():
    small = gradient(0, 1e-3)
    assert torch.equal(BatchClip(10.0).apply(small), small)
    large = gradient(0, 1e3)
    clipped = BatchClip(10.0).apply(large)
    torch.testing.assert_close(clipped / clipped.norm(), large / large.norm())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_of_zeros_or_with_a_non_finite_entry_becomes_zero(bad):
    values = torch.zeros(7, 3, 5)
    assert torch.equal(BatchClip(1.0).apply(values), values)
    values = gradient(0, 1.0)
    values[2, 1, 0] = bad
    assert torch.equal(BatchClip(1.0).apply(values), torch.zeros(7, 3, 5))
    assert BatchClip(1.0).apply(values[:0]).shape == (0, 3, 5)


@pytest.mark.parametrize("value", [0.0, 0.25, -7.0, float("nan")])
def test_a_gradient_may_be_a_single_number(value):
    expected = torch.tensor(0.0 if math.isnan(value) else max(-0.5, min(0.5, value)))
    one = torch.tensor(value)
    torch.testing.assert_close(BatchClip(0.5).apply(one), expected, rtol=1e-4, atol=0)
    each = BatchClip(0.5).clip_each(torch.stack([one, one]))
    torch.testing.assert_close(each, expected.expand(2), rtol=1e-4, atol=0)


@pytest.mark.parametrize("scale", [1.0, 2.0**123, 3e-39])
@pytest.mark.parametrize("ratio", [0.51, 0.6, 0.75, 0.99, 1.51, 3.3])
def test_the_bound_is_kept_where_float32_loses_its_precision(scale, ratio):
    """A factor Δ/‖G‖ below 2⁻¹²⁶ rounds up by as much as two, and so does a tiny result."""
    for values in (torch.full((4,), scale), scale * Stream(b"key").normal(300)):
        values = values.to(torch.float32)
        norm = float(values.double().norm())
        for bound in (norm * ratio * 2.0**-149, 2 * ratio * 2.0**-149):
            clipped = BatchClip(bound).apply(values).tolist()
            assert sum(Fraction(value) ** 2 for value in clipped) <= Fraction(bound) ** 2


def test_the_record_sensitivity_is_the_bound_and_is_reached_by_the_sum():
    clip, records = RecordClip(2.0), 100 * Stream(b"key").normal(1, 5, 6)
    x, f, mask = torch.zeros(1, 1, 6), torch.zeros(1, 1), torch.ones(1, 1, 5, dtype=torch.bool)
    whole, without = (
        clipped_sums(x, y, f, 1.0, clip.bound, mask=mask[..., : y.shape[1]], radius=1e3)
        for y in (records, records[:, 1:])
    )
    distance = float((whole - without).norm())
    assert clip.sensitivity == 2.0
    assert distance <= clip.sensitivity
    assert distance == pytest.approx(clip.sensitivity, rel=1e-4)


@pytest.mark.parametrize("clip", [BatchClip, RecordClip, CriticClip, RowClip])
@pytest.mark.parametrize("bound", [0, -1.0, math.inf, math.nan, "1", None, True])
def test_a_bad_bound_is_refused(clip, bound):
    with pytest.raises(PrivacyError, match=r"bound must be a finite number > 0, received"):
        clip(bound)


# Sensitivity over the whole range of floats, against exact fractions

TYPES = st.sampled_from([torch.float32, torch.float64])
EDGES = [0.0, 5e-324, 1e-310, 2.0**-1022, 2.0**-149, 0.75 * 2.0**-126, 2.0**-126, 1e-30, 1.0, 1e18,
         2.0**127, 3.4028234663852886e38]  # fmt: skip
ENTRIES = st.one_of(
    st.sampled_from([sign * edge for edge in EDGES for sign in (1, -1)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
ANY_ENTRIES = st.one_of(ENTRIES, ENTRIES, ENTRIES, st.sampled_from([math.nan, math.inf, -math.inf]))
ALL_BOUNDS = st.one_of(
    st.floats(5e-324, 1e308, allow_subnormal=True),
    st.sampled_from([5e-324, 1.5e-323, 1e-310, 2.0**-1000, 2.0**-149, 2.0**-126, 1.0, 1e38, 1e308]),
)


def square(values: torch.Tensor) -> Fraction:
    """‖v‖², exactly."""
    return sum((Fraction(value) ** 2 for value in values.flatten().tolist()), Fraction(0))


@st.composite
def vectors(draw: st.DrawFn, entries: st.SearchStrategy[float] = ANY_ENTRIES) -> torch.Tensor:
    """Up to three vectors, (K, N), of either type."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    size = rows * columns
    values = draw(st.lists(entries, min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.float64).reshape(rows, columns).to(draw(TYPES))


@st.composite
def near(draw: st.DrawFn) -> tuple[torch.Tensor, float]:
    """Vectors and a bound close to the length of the first of them, or far below it."""
    values = draw(vectors(ENTRIES))
    longest = float(values[0].abs().double().amax())
    factor = draw(st.sampled_from([0.51, 0.99, 1.0 - 2.0**-21, 1.0, 1.0 + 2.0**-52, 1.51]))
    scale = draw(st.sampled_from([1.0, 1.0, 2.0**-24, 2.0**-126, 2.0**-149, 2.0**-300]))
    bound = longest * factor * scale
    return values, bound if 0.0 < bound < math.inf else draw(ALL_BOUNDS)


PROBLEMS = st.one_of(st.tuples(vectors(), ALL_BOUNDS), near())


@pytest.mark.medium
@settings(max_examples=600)
@given(problem=PROBLEMS)
def test_the_batch_clip_keeps_its_sensitivity_over_the_whole_range_of_floats(problem):
    values, bound = problem
    clip = BatchClip(bound)
    clipped = clip.clip_each(values)
    assert clipped.dtype == values.dtype
    assert bool(clipped.isfinite().all())
    for gradient, alone in zip(clipped, values, strict=True):
        assert square(gradient) <= Fraction(bound) ** 2
        assert torch.equal(gradient, clip.apply(alone))
    for one in clipped:
        for other in (-clipped[0], clipped[-1]):
            apart = [Fraction(a) - Fraction(b)
                     for a, b in zip(one.tolist(), other.tolist(), strict=True)]  # fmt: skip
            assert sum(x * x for x in apart) <= (2 * Fraction(bound)) ** 2


@pytest.mark.medium
@settings(max_examples=400)
@given(problem=PROBLEMS, slack=st.sampled_from([2.0**-20, 2.0**-16, 0.5]))
def test_shrunk_vectors_keep_the_bound_their_direction_and_what_is_short(problem, slack):
    values, bound = problem
    results = clip_to_norm(values, bound, slack=slack)
    assert results.dtype == torch.float64
    for vector, result in zip(values.double(), results, strict=True):
        assert square(result) <= Fraction(bound) ** 2
        if bound < 2.0**-1000 or not bool(vector.isfinite().all()):
            assert not bool(result.any())
            continue
        length = square(vector)
        if length <= (Fraction(bound) * Fraction(1 - 2 * slack)) ** 2:
            assert torch.equal(result, vector)
        elif bound > 1e-300 and length >= Fraction(bound) ** 2:
            # No longer than it may be, and hardly shorter: it costs no accuracy.
            assert square(result) >= (Fraction(bound) * Fraction((1 - slack) * (1 - 2.0**-40))) ** 2
            assert bool((result * vector.sign() >= 0).all())


# Sums of critics


def critics(values: torch.Tensor, count: int) -> torch.Tensor:
    """Gradients (1, M, 1, N) of `count` critics: the vectors, over and over."""
    rows = values[torch.arange(count) % len(values)]
    return rows.unsqueeze(0).unsqueeze(2)


@pytest.mark.medium
@settings(max_examples=300)
@given(problem=PROBLEMS, other=vectors(), count=st.integers(1, 50))
def test_totals_that_differ_in_one_critic_are_within_the_sensitivity(problem, other, count):
    """Exactly, rounding of the sums included, for any floats."""
    values, bound = problem
    bound = min(bound, 2.0**1000)
    clip = CriticClip(bound, critics=count)
    gradients = critics(values, count)
    changed = gradients.clone()
    filled = other.flatten().repeat(values.shape[1])[: values.shape[1]].to(values.dtype)
    changed[0, 0, 0] = filled
    one, two = clip.total(gradients), clip.total(changed)
    assert one.dtype == torch.float64
    assert bool(one.isfinite().all())
    pairs = zip(one.flatten().tolist(), two.flatten().tolist(), strict=True)
    apart = [Fraction(a) - Fraction(b) for a, b in pairs]
    assert sum(x * x for x in apart) <= Fraction(clip.sensitivity) ** 2


def test_the_roundings_of_the_longest_sum_fit_below_the_sensitivity():
    """2¹⁴ critics of one direction, among which one turns round."""
    clip = CriticClip(1.0)
    gradients = torch.full((1, MOST_CRITICS, 3, 4), 0.3)
    changed = gradients.clone()
    changed[0, 5] *= -1e30
    one, two = clip.total(gradients), clip.total(changed)
    distance = math.sqrt(square(one - two))
    assert clip.sensitivity * (1 - 2e-6) < distance <= clip.sensitivity


def test_a_total_is_the_sum_of_the_clipped_gradients_of_each_client():
    gradients = Stream(b"key").normal(3, 5, 2, 4)
    gradients[1, 2] *= 100.0
    gradients[2, 0, 1, 1] = math.nan
    total = CriticClip(2.0, 5).total(gradients)
    expected = sum(BatchClip(2.0).clip_each(gradients[:, m]) for m in range(5))
    torch.testing.assert_close(total, expected)
    assert bool(total.isfinite().all())


NARROW = r"float32 or float64, received torch\.float16"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BatchClip(1.0).apply(torch.zeros(2).half()), NARROW),
        (lambda: CriticClip(1.0).total(torch.zeros(1, 5, 2, 2).half()), NARROW),
        (lambda: RowClip(1.0).total(torch.zeros(1, 1, 2, 2).half()), NARROW),
        (lambda: CriticClip(1.0, 4).total(torch.zeros(1, 5, 2, 2)), "for 4 critics at a client, n"),
        (lambda: RowClip(1.0, 4).total(torch.zeros(1, 1, 5, 2)), "accounts for 4 rows, not for 5"),
        (
            lambda: RowClip(1.0, 4).total(torch.zeros(1, 2, 4, 2)),
            "the row clip accounts for one crit",
        ),
        *(
            (lambda clip=clip, n=n: clip(1.0, n), f"{what} must be an integer ≥ 1, received")
            for clip, what in ((CriticClip, "critics"), (RowClip, "rows"))
            for n in (0, 2.5, True)
        ),
        (
            lambda: CriticClip(1.0, MOST_CRITICS + 1),
            "critics must be at most 16384, received 16385",
        ),
        (lambda: RowClip(1.0, MOST_ROWS + 1), "rows must be at most 1048576, received 1048577"),
    ],
)
def test_types_shapes_and_numbers_without_a_guarantee_are_refused(call, message):
    with pytest.raises(PrivacyError, match=message):
        call()


# Rows of one critic


@pytest.mark.medium
@settings(max_examples=300)
@given(problem=PROBLEMS, other=vectors())
def test_clipped_rows_are_within_the_bound_and_two_gradients_within_the_sensitivity(problem, other):
    values, bound = problem
    bound = min(bound, 2.0**1000)
    clip = RowClip(bound, rows=len(values))
    changed = other.flatten().repeat(values.numel())[: values.numel()].to(values.dtype)
    one, two = (clip.total(rows.reshape(1, 1, *values.shape))[0] for rows in (values, changed))
    assert one.dtype == torch.float64
    for rows in (one, two):
        assert all(square(row) <= Fraction(bound) ** 2 for row in rows)
    pairs = zip(one.flatten().tolist(), two.flatten().tolist(), strict=True)
    apart = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)
    assert apart <= 4 * len(values) * Fraction(bound) ** 2  # the sensitivity's square, exactly


@pytest.mark.parametrize("n", [1, 32])
def test_the_rows_sensitivity_grows_with_their_root_and_is_reached(n):
    clip = RowClip(0.5, rows=n)
    far = 1e3 * Stream(b"key").normal(1, 1, n, 5)
    distance = math.sqrt(square(clip.total(far) - clip.total(-far)))
    assert clip.sensitivity == pytest.approx(2 * 0.5 * math.sqrt(n))
    assert clip.sensitivity * (1 - 2e-6) < distance <= clip.sensitivity


def test_a_row_is_scaled_where_it_is_longer_alone():
    gradient = Stream(b"key").normal(2, 1, 4, 3)
    gradient[0, 0, 1] *= 1e-3
    gradient[0, 0, 2] *= 1e3
    gradient[1, 0, 3, 0] = math.nan
    total = RowClip(2.0, 4).total(gradient)
    assert total.shape == (2, 4, 3)
    for client, row in ((0, 1), (0, 2), (1, 0), (1, 3)):
        expected = BatchClip(2.0).apply(gradient[client, 0, row])
        torch.testing.assert_close(total[client, row], expected)
    assert torch.equal(total[0, 1], gradient[0, 0, 1])
    assert not total[1, 3].any()


@pytest.mark.parametrize(
    ("name", "clip"),
    [("batch", BatchClip(0.1)), ("record", RecordClip(3.0)), ("critic", CriticClip(2.0, 40)),
     ("row", RowClip(2.0, 32))],
)  # fmt: skip
def test_a_clip_is_written_and_read_by_its_name(name, clip):
    assert clip.to_dict()["name"] == clip.name == name
    assert clip_from_dict(clip.to_dict()) == clip


def test_a_clip_of_critics_is_none_of_sampled_records():
    assert ClipOfRecords.expect(BatchClip(1.0)) == BatchClip(1.0)
    for clip in (CriticClip(1.0), RowClip(1.0)):
        assert ClipOfCritics.expect(clip) is clip
        with pytest.raises(PrivacyError, match=f"the {clip.name} clip samples no records: choose"):
            ClipOfRecords.expect(clip)
    with pytest.raises(PrivacyError, match="over critics needs the critic clip, not the batch"):
        ClipOfCritics.expect(BatchClip(1.0))


# Clips of one's own


class Normalised(RecordClip):
    name = "normalised"

    def transform(self, gradients):
        return self.bound * gradients / (0.01 + gradients.norm(dim=1, keepdim=True))


class Whole(BatchClip):
    name = "whole"
    transform = Normalised.transform


def broken(base, **members):
    return type("Broken", (base,), {"name": "broken", **members})(0.5)


@pytest.mark.parametrize("clip", [Normalised(0.5), Whole(0.5), RecordClip(0.5), BatchClip(2.0)])
def test_an_attack_finds_nothing_in_a_clip_that_keeps_its_promise(clip):
    attack_clip(clip)


@pytest.mark.parametrize("base", [RecordClip, BatchClip])
@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({"transform": lambda _, g: g / (1e-9 + g.norm())}, "depends on the"),
        ({"transform": lambda _, g: g - g.mean(0)}, "depends on the"),
        ({"transform": lambda _, g: g.cumsum(0)}, "depends on the"),
        ({"transform": lambda _, g: g / len(g)}, "depends on the others"),
        ({"transform": lambda _, g: g + torch.randn_like(g)}, "is another each time"),
        ({"transform": lambda _, g: g * math.nan}, "every one of 8 ordinary gradients.*NaN"),
        ({"transform": lambda _, g: g * torch.ones(4)}, r"failed on \(8, 5\): give size="),
    ],
)
def test_an_attack_finds_a_promise_that_is_not_kept(base, members, found):
    with pytest.raises(AssertionError, match=found):
        attack_clip(broken(base, **members))
    with pytest.raises(PrivacyError, match=r"Broken does not keep the promise.*size=5"):
        simulated_here(broken(base, **members), 5)


@pytest.mark.parametrize("wrong", [Normalised, lambda g: g, CriticClip(1.0)])
def test_only_a_clip_of_records_is_attacked(wrong):
    with pytest.raises(PrivacyError, match="takes a RecordClip, a BatchClip or one of your own"):
        attack_clip(wrong)


@pytest.mark.parametrize("base", [RecordClip, BatchClip])
def test_whatever_a_transform_gives_the_norm_is_clipped(base):
    wild = broken(base, transform=lambda _, g: g * 1e30)
    assert float(wild.clip_each(torch.ones(3, 4)).norm(dim=1).max()) <= 0.5
    for transform in (lambda _, g: g[:1], lambda _, g: g.half(), lambda _, g: None):
        with pytest.raises(PrivacyError, match=r"Broken\.transform must return \(3, 4\) of"):
            broken(base, transform=transform).clip_each(torch.ones(3, 4))


def test_a_transform_is_never_asked_about_nothing():
    rowwise = broken(RecordClip, transform=lambda _, g: torch.stack([r / r.norm() for r in g]))
    assert torch.equal(rowwise.sum(torch.zeros(0, 4)).total, torch.zeros(4, dtype=torch.float64))


def test_only_a_process_that_simulates_reads_a_clip_of_somebodys_own(monkeypatch):
    monkeypatch.setattr(clips, "_OWN", {})
    clip = Normalised(0.5)
    assert clip.own
    assert not RecordClip(0.5).own
    with pytest.raises(PrivacyError, match="the clip 'normalised' is none of record, batch"):
        clip_from_dict(clip.to_dict())
    simulated_here(clip, None)
    assert clip_from_dict(clip.to_dict()) == clip


@dataclass(frozen=True)
class Scaled(RecordClip):
    name = "scaled"
    factor: float = 1.0
    limits: tuple[float, ...] = ()

    def transform(self, gradients):
        return self.factor * gradients


@dataclass(frozen=True, eq=False)
class Blind(RecordClip):
    name = "blind"
    factor: float = 1.0


class Mixin:
    def sum(self, gradients):
        return self.vouch(gradients.sum(0))


@pytest.mark.parametrize("base", [RecordClip, BatchClip, Normalised])
@pytest.mark.parametrize(
    "name",
    [
        "clip_each", "sensitivity", "claimed_sensitivity", "vouch", "bound", "own", "to_dict",
        "reach", "of_client", "check_plan", "check_rate", "overflows", "per_record", "sampled",
        "published", "replacement", "check_own", "same_as",
    ],
)  # fmt: skip
def test_a_clip_of_ones_own_overrides_nothing_that_the_guarantee_rests_on(base, name):
    for member in (lambda *_: 0.01, property(lambda _: 0.01), 0.01):
        with pytest.raises(PrivacyError, match=f"Broken overrides `{name}` of"):
            broken(base, **{name: member})


def test_nor_by_another_way():
    with pytest.raises(PrivacyError, match="Mixed overrides `sum` of RecordClip"):
        type("Mixed", (Mixin, RecordClip), {"name": "mixed"})
    with pytest.raises(PrivacyError, match="Mixed overrides `apply` of BatchClip"):
        type("Mixed", (BatchClip,), {"name": "mixed", "apply": lambda _, g: g})
    late = broken(RecordClip)
    type(late).sum = Mixin.sum
    with pytest.raises(PrivacyError, match="Broken overrides `sum`"):
        planned(late)
    object.__setattr__(patched := Scaled(0.5), "sum", patched.vouch)
    with pytest.raises(PrivacyError, match="has no field 'sum'"):
        planned(patched)


@pytest.mark.parametrize(
    ("name", "base", "members", "why"),
    [
        ("Same", RecordClip, {}, 'has no name of its own: say `name = "same"`'),
        ("Critic", CriticClip, {"name": "mine"}, "Critic is neither: derive it from one"),
        ("Other", ClipOfRecords, {"name": "mine"}, "is a RecordClip or a BatchClip"),
    ],
)
def test_a_clip_of_ones_own_has_a_family_and_a_name(name, base, members, why):
    with pytest.raises(PrivacyError, match=why):
        type(name, (base,), members)


def planned(clip):
    return PrivacyPlan(0.1, 2.0, 10, clip, JointSchedule(), 1e-5)


class Hidden(RecordClip):
    name = "hidden"

    def __init__(self, bound, factor):
        super().__init__(bound)
        self.factor = factor


class MoreHidden(Normalised):
    name = "more-hidden"

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "factor", 2.0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Hidden(0.5, 2.0), "Hidden has no field 'factor'.*@dataclass"),
        (lambda: MoreHidden(0.5), "MoreHidden has no field 'factor'.*tell two of them apart"),
        (lambda: Scaled(0.5, torch.ones(2)), "the field 'factor' of Scaled is a Tensor"),
        (lambda: Scaled(0.5, 1.0, [1.0]), "the field 'limits' of Scaled is a list.*tuples"),
    ],
)
def test_all_that_tells_two_clips_apart_is_a_field(make, why):
    with pytest.raises(PrivacyError, match=why):
        planned(make())


def test_fields_of_ones_own_are_compared_and_written(monkeypatch):
    monkeypatch.setattr(clips, "_OWN", {})
    clip = Scaled(0.5, 2.0, (0.3, 0.4))
    simulated_here(clip, None)
    written = json.loads(json.dumps(planned(clip).to_dict()))
    assert PrivacyPlan.from_dict(written) == planned(clip)
    for one, other in ((clip, Scaled(0.5, 2.0)), (Blind(0.5, 1.0), Blind(0.5, 2.0))):
        total = other.sum(torch.ones(2, 3))
        with pytest.raises(PrivacyError, match="the plan accounts for"):
            planned(one).release(total, Stream(b"key"))
