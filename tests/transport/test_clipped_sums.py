from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsink.transport import clipped_sums

from ..support.clouds import cloud
from ..support.exact import WIDE_BOUNDS, squared_distance
from ..support.oracles import clipped_record_field


def oblivious_record_field(x: Tensor, y: Tensor, f: Tensor, *rest: Any, **options: Any) -> Tensor:
    """`clipped_sums` of a single problem."""
    options["mask"] = options["mask"][None]
    return clipped_sums(x[None], y[None], f[None], *rest, **options)[0]


module = importlib.import_module("fedsink.transport.clipped_sums")  # not the function of its name
Operations = Callable[[Callable[[], object]], list[tuple[Any, ...]]]

HOSTILE = [
    0.0, -0.0, 1.0, 1.0 + 2**-52, 1e8, -1e8, 1e150, 1e200, -1.7e308, 1e-8, 1e-150, 5e-324,
    math.inf, -math.inf, math.nan, 3.14159,
]  # fmt: skip
numbers = st.one_of(st.sampled_from(HOSTILE), st.floats(-30.0, 30.0))


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    n, m, d = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 3))

    def tensor(*shape: int) -> Tensor:
        size = math.prod(shape)
        values = draw(st.lists(numbers, min_size=size, max_size=size))
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    chosen = draw(st.lists(st.booleans(), min_size=n * m, max_size=n * m))
    return {
        "x": tensor(n, d),
        "y": tensor(m, d),
        "f": tensor(n),
        "lam": draw(st.sampled_from([1e-300, 1e-6, 0.05, 5.0, 1e6, 1e300])),
        "bound": draw(st.sampled_from([1e-200, 1e-6, 0.5, 8.0, 1e6])),
        "mask": torch.tensor(chosen).reshape(n, m),
        "radius": draw(st.sampled_from([1.0, 60.0, 1e9, 1e200, math.inf, math.nan])),
    }


def ordinary(n: int = 9, m: int = 14) -> dict[str, Any]:
    """Three classes of rows and records; every third place is empty."""
    rows, records = torch.arange(n) % 3, torch.arange(m) % 3
    present = torch.arange(m) % 4 != 1
    return {
        "x": cloud(n, 4, seed=1).clamp(-2, 2), "y": cloud(m, 4, seed=2).clamp(-2, 2),
        "f": cloud(n, seed=3).clamp(-2, 2), "lam": 2.0,
        "bound": 0.7, "mask": (rows[:, None] == records) & present, "radius": 4.0,
    }  # fmt: skip


def without(mask: Tensor, place: int) -> Tensor:
    emptied = mask.clone()
    emptied[:, place] = False
    return emptied


@pytest.mark.parametrize("bound", [0.05, 0.7, 100.0])
@pytest.mark.parametrize("radius", [4.0, math.inf])
def test_it_is_the_clipped_field_class_by_class(bound: float, radius: float) -> None:
    """A finite radius takes the matmul, an infinite one goes place by place."""
    p = {**ordinary(), "bound": bound, "radius": radius}
    expected = torch.zeros_like(p["x"])
    for c in range(3):
        rows = torch.arange(9) % 3 == c
        records = p["y"][p["mask"][c]]
        assert len(records) > 1
        expected[rows] = clipped_record_field(p["x"][rows], records, p["f"][rows], 2.0, bound)
    torch.testing.assert_close(oblivious_record_field(**p), expected, rtol=1e-10, atol=1e-12)


def test_what_stands_in_an_empty_place_leaves_no_trace() -> None:
    p = ordinary()
    before = oblivious_record_field(**p)
    for value in (7.0, 1e300, math.nan):
        p["y"][1] = value
        assert torch.equal(oblivious_record_field(**p), before)
    assert not p["mask"][:, 1].any()


@settings(max_examples=400)
@given(problem=problems(), bound=WIDE_BOUNDS)
def test_each_place_contributes_at_most_the_bound(problem: dict[str, Any], bound: float) -> None:
    """Exactly, over the whole range of floats."""
    for place in range(len(problem["y"])):
        alone = torch.zeros_like(problem["mask"])
        alone[:, place] = problem["mask"][:, place]
        field = oblivious_record_field(**{**problem, "bound": bound, "mask": alone})
        assert field.dtype == torch.float64
        assert squared_distance(field, torch.zeros_like(field)) <= Fraction(bound) ** 2


@settings(max_examples=400)
@given(problem=problems(), bound=WIDE_BOUNDS)
def test_no_place_changes_another_ones_contribution(problem: dict[str, Any], bound: float) -> None:
    """A place is emptied beside any others: exactly, over the whole range of floats."""
    problem = {**problem, "bound": bound}
    whole = oblivious_record_field(**problem)
    for place in range(len(problem["y"])):
        less = {**problem, "mask": without(problem["mask"], place)}
        assert squared_distance(whole, oblivious_record_field(**less)) <= Fraction(bound) ** 2


@pytest.mark.medium
@settings(max_examples=300)
@given(problem=problems())
def test_the_oblivious_field_is_finite(problem: dict[str, Any]) -> None:
    assert oblivious_record_field(**problem).isfinite().all()


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e10])
def test_ordinary_and_far_points_keep_the_bound(offset: float) -> None:
    """Long sums and cancellation, near the switch between the two paths."""
    for bound in (1e-4, 0.3):
        p = {**ordinary(12, 60), "bound": bound, "lam": 1e12, "radius": 2.0 * offset + 4.0}
        p["x"], p["y"] = p["x"] + offset, p["y"] + offset
        whole = oblivious_record_field(**p)
        for place in (0, 17, 59):
            less = {**p, "mask": without(p["mask"], place)}
            assert float((whole - oblivious_record_field(**less)).norm()) <= bound


@pytest.mark.parametrize("change", [{}, {"radius": math.inf}, {"lam": 1e-9}, {"bound": 1e-300}])
def test_the_operations_do_not_depend_on_records_or_mask(
    operations: Operations, change: dict[str, float]
) -> None:
    p = {**ordinary(), **change}
    hostile = p["y"].clone()
    hostile[:3] = torch.tensor([1e300, math.nan, math.inf]).double()[:, None]
    nobody, everybody = torch.zeros_like(p["mask"]), torch.ones_like(p["mask"])
    traces = [
        operations(lambda y=y, mask=mask: oblivious_record_field(**{**p, "y": y, "mask": mask}))
        for y in (p["y"], torch.zeros_like(p["y"]), hostile)
        for mask in (p["mask"], nobody, everybody)
    ]
    assert len(traces[0]) > 20
    assert all(trace == traces[0] for trace in traces)
    places = 14 if change else 1  # one matmul, or one step a place
    assert sum("vector_norm" in operation[0] for operation in traces[0]) == places * bool(change)


def test_a_record_beyond_the_radius_contributes_nothing() -> None:
    p = ordinary()
    p["y"][0] = 3.0  # norm 6, beyond 4
    assert p["mask"][:, 0].any()
    emptied = oblivious_record_field(**{**p, "mask": without(p["mask"], 0)})
    assert torch.equal(oblivious_record_field(**p), emptied)
    assert not torch.equal(oblivious_record_field(**{**p, "radius": 6.5}), emptied)


def test_rows_that_are_not_finite_take_no_part() -> None:
    p = ordinary()
    p["x"][1, 2], p["f"][3] = math.nan, math.inf
    good = torch.ones(9, dtype=torch.bool)
    good[[1, 3]] = False
    field = oblivious_record_field(**p)
    assert field[~good].abs().sum() == 0.0
    kept = {**p, "x": p["x"][good], "f": p["f"][good], "mask": p["mask"][good]}
    torch.testing.assert_close(field[good], oblivious_record_field(**kept))


def test_no_rows_or_no_places_give_zero() -> None:
    p = {**ordinary(), "y": torch.zeros(0, 4), "mask": torch.zeros(9, 0, dtype=torch.bool)}
    assert torch.equal(oblivious_record_field(**p), torch.zeros(9, 4).double())
    p = ordinary()
    p = {**p, "x": p["x"][:0], "f": p["f"][:0], "mask": p["mask"][:0]}
    assert oblivious_record_field(**p).shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lam": 0.0}, "λ must be a positive finite number, got 0.0"),
        ({"bound": math.inf}, "bound Δ must be a positive finite number, got inf"),
        (
            {"mask": torch.ones(9, 3, dtype=torch.bool)},
            r"mask must be boolean of shape \(1, 9, 14\), got torch.bool of shape \(1, 9, 3\)",
        ),
        ({"mask": torch.ones(9, 14)}, r"got torch.float32 of shape \(1, 9, 14\)"),
    ],
)
def test_invalid_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oblivious_record_field(**{**ordinary(), **change})


# Several problems at once

BOUND, LAM, RADIUS = 0.7, 2.0, 20.0


X, F = cloud(6, 4, seed=1), cloud(6, seed=2)
Y = cloud(5, 7, 4, seed=3)
PRESENT = torch.rand(5, 7, generator=torch.Generator().manual_seed(4)) < 0.6
PRESENT[2] = False


def together(
    y: Tensor, present: Tensor | None = None, radius: float = RADIUS, bound: float = BOUND
) -> Tensor:
    """The clipped sums of clients that share their rows."""
    everywhere = torch.ones(y.shape[:2], dtype=torch.bool) if present is None else present
    mask = everywhere.unsqueeze(-2).expand(-1, len(X), -1)
    x, f = X.expand(len(y), *X.shape), F.expand(len(y), -1)
    return clipped_sums(x, y, f, LAM, bound, mask=mask, radius=radius)


def test_a_cohort_equals_the_loop_over_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = torch.stack([clipped_record_field(X, y, F, LAM, BOUND) for y in Y])
    some = torch.stack(
        [clipped_record_field(X, y[p], F, LAM, BOUND) for y, p in zip(Y, PRESENT, strict=True)]
    )
    # Nothing but the matmul may answer here.
    monkeypatch.delattr(module, "single_contribution")
    torch.testing.assert_close(together(Y), alone)
    fields = together(Y, PRESENT)
    torch.testing.assert_close(fields, some)
    assert fields[2].abs().max() == 0.0


@pytest.mark.parametrize("value", [1e150, math.inf, math.nan])
def test_a_cohort_with_hostile_records_equals_the_loop(value: float) -> None:
    y = Y.clone()
    y[1, 3, 2] = value
    fields = together(y, radius=math.inf)
    for k in range(5):
        torch.testing.assert_close(fields[k], clipped_record_field(X, y[k], F, LAM, BOUND))
    assert fields.isfinite().all()


def test_a_problem_beyond_the_bounds_leaves_the_others_to_the_matmul() -> None:
    """The branch is public, because the rows are."""
    x = X.repeat(5, 1, 1)
    x[3] *= 1e12
    mask = PRESENT.unsqueeze(-2).expand(-1, len(X), -1)
    fields = clipped_sums(x, Y, F.expand(5, -1), LAM, BOUND, mask=mask, radius=RADIUS)
    usual = together(Y, PRESENT)
    for k in (0, 1, 2, 4):
        torch.testing.assert_close(fields[k], usual[k])
    expected = clipped_record_field(x[3], Y[3][PRESENT[3]], F, LAM, BOUND)
    torch.testing.assert_close(fields[3], expected)


def test_no_record_changes_another_clients_field() -> None:
    before = together(Y)
    for value in (3.0, 1e9, math.nan):
        y = Y.clone()
        y[0, 0] = value
        after = together(y)
        moved = (after - before).flatten(1).norm(dim=1)
        assert float(moved[1:].max()) <= 2.0**-16 * BOUND
        assert float(moved[0]) <= 2.0 * BOUND


def test_empty_cohorts() -> None:
    assert together(Y[:0]).shape == (0, 6, 4)
    assert together(Y[:, :0]).abs().sum() == 0.0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"records \(K, B, d\) and .* are needed, got shapes .*7, 4"
    ):
        clipped_sums(X[None], Y[0], F[None], LAM, BOUND, mask=PRESENT, radius=RADIUS)
    with pytest.raises(ValueError, match=r"boolean of shape \(5, 6, 7\), got torch.bool of shape"):
        clipped_sums(X.expand(5, 6, 4), Y, F.expand(5, 6), LAM, BOUND, mask=PRESENT, radius=RADIUS)
    with pytest.raises(ValueError, match=r"clip bound Δ must be a positive finite number, got 0"):
        together(Y, bound=0.0)


# Several clients, in exact arithmetic


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float, Tensor]:
    """Points, records of up to three clients, potentials, λ, and which places are filled."""
    n, k, m, d = (draw(st.integers(1, most)) for most in (3, 3, 4, 3))
    entries = st.one_of(
        st.floats(-30.0, 30.0),
        st.sampled_from([0.0, 1e8, -1e150, 1.7e308, 5e-324, 1e-150, math.inf, math.nan]),
    )

    def tensor(*shape: int) -> Tensor:
        size = math.prod(shape)
        values = draw(st.lists(entries, min_size=size, max_size=size))
        return torch.tensor(values, dtype=torch.float64).reshape(shape)

    lam = draw(st.sampled_from([1e-300, 1e-6, 0.5, 1e6, 1e300]))
    there = draw(st.lists(st.booleans(), min_size=k * m, max_size=k * m))
    return tensor(n, d), tensor(k, m, d), tensor(n), lam, torch.tensor(there).reshape(k, m)


@pytest.mark.medium
@settings(max_examples=300)
@given(
    cohort=cohorts(), bound=WIDE_BOUNDS, radius=st.sampled_from([1.0, 60.0, 1e9, 1e200, math.inf])
)
def test_each_clients_sum_keeps_the_bound_exactly(
    cohort: tuple[Tensor, Tensor, Tensor, float, Tensor], bound: float, radius: float
) -> None:
    """Removing a record moves the sum of its client by at most Δ."""
    x, y, f, lam, present = cohort

    def sums(there: Tensor) -> Tensor:
        mask = there.unsqueeze(-2).expand(-1, len(x), -1)
        points, potentials = x.expand(len(y), *x.shape), f.expand(len(y), -1)
        return clipped_sums(points, y, potentials, lam, bound, mask=mask, radius=radius)

    whole = sums(present)
    for place in range(y.shape[1]):
        alone, less = torch.zeros_like(present), present.clone()
        alone[:, place], less[:, place] = present[:, place], False
        single, rest = sums(alone), sums(less)
        for k in range(len(y)):
            assert squared_distance(single[k], torch.zeros_like(single[k])) <= Fraction(bound) ** 2
            assert squared_distance(whole[k], rest[k]) <= Fraction(bound) ** 2
