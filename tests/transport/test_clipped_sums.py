from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsink.transport import (
    ConvergedSolver,
    SquaredEuclidean,
    clipped_sums,
    potential,
    transport_gradient,
)
from fedsink.transport.clipped_sums import record_field, row_weights

from ..support.clouds import cloud
from ..support.exact import WIDE_BOUNDS, squared_distance
from ..support.oracles import clipped_record_field


def oblivious_record_field(x: Tensor, y: Tensor, f: Tensor, *rest: Any, **options: Any) -> Tensor:
    """`clipped_sums` of a single problem."""
    options["mask"] = options["mask"][None]
    return clipped_sums(x[None], y[None], f[None], *rest, **options)[0]


module = importlib.import_module("fedsink.transport.clipped_sums")  # not the function of its name
Operations = Callable[[Callable[[], object]], list[tuple[Any, ...]]]

# Values that break careless arithmetic: overflow, underflow, subnormal, cancellation, non-finite.
HOSTILE = [
    0.0, -0.0, 1.0, -1.0, 1.0 + 2**-52, 1e8, -1e8, 1e150, -1e150, 1e200, 1.7e308, -1.7e308,
    1e-8, 1e-150, 5e-324, -5e-324, 2.2e-308, math.inf, -math.inf, math.nan, 3.14159, 28.0,
]  # fmt: skip
numbers = st.one_of(st.sampled_from(HOSTILE), st.floats(-30.0, 30.0), st.floats())


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
        "bound": draw(st.sampled_from([1e-200, 1e-6, 0.5, 1.0, 8.0, 1e6])),
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


def only(mask: Tensor, place: int) -> Tensor:
    alone = torch.zeros_like(mask)
    alone[:, place] = mask[:, place]
    return alone


def whole(
    x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float, mask: Tensor | None = None
) -> Tensor:
    """The field of records of which none lies beyond the radius, in places without any class."""
    mask = torch.ones(len(x), len(y), dtype=torch.bool) if mask is None else mask
    radius = 1.01 * float(y.norm(dim=1).max())
    return oblivious_record_field(x, y, f, lam, bound, mask=mask, radius=radius)


def moved(
    x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float, places: Sequence[int] = ()
) -> float:
    """By how many Δ one of the records at these places moves the sum of all, at most."""
    everywhere = torch.ones(len(x), len(y), dtype=torch.bool)
    field = whole(x, y, f, lam, bound)
    rest = [whole(x, y, f, lam, bound, without(everywhere, j)) for j in places or range(len(y))]
    # Divided first, so that no square vanishes at a tiny bound.
    return float(torch.stack([((field - less) / bound).norm() for less in rest]).max())


def gap(x: Tensor, y: Tensor, f: Tensor, lam: float, bound: float) -> float:
    """By how many Δ the sum of all records differs from the sum of each by itself."""
    separate = torch.stack([whole(x, y[j : j + 1], f, lam, bound) for j in range(len(y))])
    return float(((whole(x, y, f, lam, bound) - separate.sum(0)) / bound).norm())


# Weights and fields as they are defined


def test_row_weights_are_a_softmax_over_rows() -> None:
    f, cost = cloud(5, seed=1), SquaredEuclidean()(cloud(5, 4), cloud(7, 4, seed=2))
    w = row_weights(f, cost, 0.6)
    expected = torch.exp((f[:, None] - cost) / 0.6)
    torch.testing.assert_close(w, expected / expected.sum(0))
    torch.testing.assert_close(row_weights(f + 5.0, cost, 0.6), w)
    for j in range(7):  # one record's weights do not depend on the others
        alone = row_weights(f, cost[:, j : j + 1], 0.6)
        torch.testing.assert_close(w[:, j], alone[:, 0], rtol=1e-14, atol=0)


def test_masked_row_weights_are_those_of_the_rows_left() -> None:
    f, cost = cloud(5, 1, seed=1)[:, 0], SquaredEuclidean()(cloud(5, 4), cloud(7, 4, seed=2))
    mask = torch.ones(5, 7, dtype=torch.bool)
    torch.testing.assert_close(row_weights(f, cost, 0.6, mask), row_weights(f, cost, 0.6))
    mask[[1, 3]] = False
    mask[:, 2] = False
    w = row_weights(f, cost, 0.6, mask)
    left = torch.tensor([0, 2, 4])
    columns = torch.tensor([0, 1, 3, 4, 5, 6])
    torch.testing.assert_close(
        w[left][:, columns], row_weights(f[left], cost[left][:, columns], 0.6)
    )
    assert float(w[~mask].abs().max()) == 0.0
    tiny = row_weights(f, cost, 1e-4, ~torch.zeros_like(mask))
    assert float(tiny.min()) == pytest.approx(math.exp(-300.0))  # raised, not underflowed
    assert bool((tiny.sum(0) == 1.0).all())


def test_field_is_half_the_gradient_of_the_semi_dual() -> None:
    x, y, lam = cloud(6, 4, seed=8).requires_grad_(), cloud(9, 4, seed=9), 1.5
    f = cloud(6, 1, seed=10)[:, 0]
    distances = (x.unsqueeze(1) - y).square().sum(-1)
    value = -lam * torch.logsumexp((f.unsqueeze(1) - distances) / lam, 0).sum()
    (gradient,) = torch.autograd.grad(value, x)
    with torch.no_grad():
        field = record_field(x, y, row_weights(f, SquaredEuclidean()(x, y), lam))
    torch.testing.assert_close(2.0 * field, gradient)


def test_with_the_optimal_potential_the_field_is_the_transport_gradient() -> None:
    # At the optimum of X against Y itself, P_ij = w_ij/m: ∂W/∂x = (2/m)·field.
    x, y, lam = cloud(6, 4, seed=11), cloud(9, 4, seed=12), 1.0
    solver = ConvergedSolver(max_iterations=9999, tolerance=1e-12)
    f = potential(x, y, lam, solver=solver)
    field = record_field(x, y, row_weights(f, SquaredEuclidean()(x, y), lam))
    expected = transport_gradient(x, y, SquaredEuclidean(), lam, solver=solver).gradient
    torch.testing.assert_close(2.0 / 9.0 * field, expected, rtol=1e-7, atol=1e-9)


# Clipped


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


@pytest.mark.medium
@settings(max_examples=400)
@given(problem=problems(), bound=WIDE_BOUNDS)
def test_each_place_contributes_at_most_the_bound(problem: dict[str, Any], bound: float) -> None:
    """Exactly, over the whole range of floats."""
    for place in range(len(problem["y"])):
        alone = {**problem, "bound": bound, "mask": only(problem["mask"], place)}
        field = oblivious_record_field(**alone)
        assert field.dtype == torch.float64
        assert squared_distance(field, torch.zeros_like(field)) <= Fraction(bound) ** 2


@pytest.mark.medium
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
    """And it is the sum of its places."""
    field = oblivious_record_field(**problem)
    assert field.isfinite().all()
    for j in range(len(problem["y"])):
        field = field - oblivious_record_field(**{**problem, "mask": only(problem["mask"], j)})
    assert float((field / problem["bound"]).norm()) <= 2.0**-15


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


@pytest.mark.medium
@pytest.mark.parametrize("lam", [1.0, 1e20])
@pytest.mark.parametrize("offset", [1e6, 1e8, 1e10, 1e14])
def test_nearly_equal_points_far_from_the_origin_keep_the_bound(offset: float, lam: float) -> None:
    # ‖x‖² + ‖y‖² − 2⟨x, y⟩ cancels here; a norm computed only from it could be 0. The large λ
    # removes the weights' sensitivity, so that only sums and norms are left to go wrong.
    for seed in range(20):
        x = offset + cloud(3, 5, seed=seed)
        y = offset + cloud(4, 5, seed=seed + 100)
        for bound in (0.3, 1e-4):
            for j in range(4):
                alone = whole(x[:1], y[j : j + 1], torch.zeros(1), lam, bound)
                assert 0.0 < float((alone / bound).norm()) <= 1.0
            assert moved(x, y, torch.zeros(3), lam, bound) <= 1.0


@pytest.mark.medium
@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([1e-3, 1.0, 1e3, 1e6, 1e9]),
    ratio=st.one_of(st.floats(0.3, 3.0), st.just(1e-5)),
)
def test_long_sums_near_the_bound_keep_it_exactly(seed: int, spread: float, ratio: float) -> None:
    """Some records are longer than Δ and some are not, and matmul adds them up."""
    x, y = spread * cloud(8, 40, seed=seed), spread * cloud(60, 40, seed=seed + 1)
    f, bound, lam = spread * cloud(8, seed=seed + 2), ratio * spread, 0.5 * spread**2
    field = whole(x, y, f, lam, bound)
    for j in (0, 17, 59):
        less = whole(x, y, f, lam, bound, without(torch.ones(8, 60, dtype=torch.bool), j))
        assert squared_distance(field, less) <= Fraction(bound) ** 2


def test_problems_near_the_switch_between_the_two_paths_keep_the_bound() -> None:
    """A record moved the others by 2.16 Δ here, once."""
    x = torch.full((1, 4), 1e4, dtype=torch.float64)
    y = 1e4 + 1e-4 * cloud(6, 4, seed=22)
    for scale in torch.logspace(-1, 1, 60, dtype=torch.float64).tolist():
        assert moved(x, y, torch.zeros(1), 4.4e20, scale * 1.5e-4, (0,)) <= 1.0


@pytest.mark.parametrize("seed", range(4))
def test_no_record_changes_anothers_choice_of_rows_that_rounding_tells_apart(seed: int) -> None:
    """Two rows on either side of the records, at a λ below the rounding of a matmul's distances."""
    y = 300.0 + 1e-10 * cloud(40, 40, seed=seed)
    x = torch.tensor([[300.75], [299.25]], dtype=torch.float64).expand(2, 40)
    f, lam, bound = torch.zeros(2), 1e-12, 5.0
    assert gap(x, y, f, lam, bound) <= 2.0**-15
    assert moved(x, y, f, lam, bound, (0, 39)) <= 1.0


def test_many_unclipped_records_far_from_the_origin_add_up_exactly() -> None:
    # No record is clipped, so the matmul's rounding is that of numbers 1e8 times the result.
    x, y = 1e8 + 1e-3 * cloud(4, 6, seed=20), 1e8 + 1e-3 * cloud(300, 6, seed=21)
    assert gap(x, y, torch.zeros(4), 1e20, 0.01) <= 2.0**-15


def test_a_record_beyond_the_bound_contributes_the_bound_itself() -> None:
    x, y = cloud(5, 4, seed=4), 50.0 * cloud(1, 4, seed=5)
    assert 0.5 * (1 - 2**-15) < float(whole(x, y, torch.zeros(5), 1.0, 0.5).norm()) <= 0.5
    tiny = torch.tensor([[3e-180, 4e-180]], dtype=torch.float64)  # the bound's square vanishes
    field = whole(torch.zeros(1, 2), tiny, torch.zeros(1), 1.0, 1e-200)
    assert float((field / 1e-200).norm()) == pytest.approx(1.0, rel=1e-4)


def test_hostile_potentials_and_rows_that_follow_a_record_gain_nothing() -> None:
    # The adversary puts one row beside each record and gives it all the weight.
    y = cloud(6, 10, seed=8)
    for distance in (1e-9, 1e-3, 1.0, 1e3):
        for f in (torch.zeros(6), torch.linspace(-1e6, 1e6, 6), 1e300 * torch.ones(6).double()):
            assert moved(y + distance, y, f, 1e-3, 0.1, (0,)) <= 1.0


@pytest.mark.parametrize(
    ("n", "m", "d", "lam", "bound"),
    [(10, 6, 170, 5.0, 1.0), (20, 40, 165, 5.0, 8.0), (50, 100, 794, 5.0, 0.5),
     (5, 20, 64, 1.0, 3.0), (60, 360, 165, 5.0, 8.0)],
)  # fmt: skip
def test_ordinary_settings_take_the_matmul_path(
    n: int, m: int, d: int, lam: float, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Images in [−1, 1]: if these fell to the slow path, a run would take many times longer.
    monkeypatch.delattr(module, "single_contribution")
    x, y = cloud(n, d, seed=12).clamp(-1, 1), cloud(m, d, seed=13).clamp(-1, 1)
    whole(x, y, cloud(n, seed=14), lam, bound)


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
    for k in (0, 2, 3, 4):
        torch.testing.assert_close(fields[k], clipped_record_field(X, y[k], F, LAM, BOUND))
    assert torch.equal(fields[1], together(y[1:2], radius=math.inf)[0])
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
