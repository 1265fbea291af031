"""Plans that are charged as their rounds are asked for, and their events as text."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import stats
from scipy.signal import fftconvolve

from fedsink.clients.central import central_charge
from fedsink.clients.ledger.account_report import report
from fedsink.clients.ledger.budget import Budget
from fedsink.clients.ledger.charge import Charge, Reservation, Use, event_from_json, event_to_json
from fedsink.clients.ledger.check import problems
from fedsink.clients.ledger.database import Database
from fedsink.clients.ledger.ledger import Ledger
from fedsink.clients.privatize_once import local_charge
from fedsink.data.maps import PointBall
from fedsink.errors import BudgetError, LedgerError, PrivacyError, ReleaseRefusedError
from fedsink.privacy import (
    ClassSchedule,
    GaussianMechanism,
    JointSchedule,
    LaplaceMechanism,
    PrivacyPlan,
    ProductMechanism,
    RecordClip,
)
from fedsink.privacy import RandomizedResponse as Response
from fedsink.protocol.privatize_once import LocalPlan

Together = Callable[..., list[int | None]]
PLAN = PrivacyPlan(0.2, 2.0, 50, RecordClip(1.0), JointSchedule(), 1e-6)
CHARGE = central_charge(PLAN)
BUDGET = Budget(20.0, 1e-5, rounds_per_reservation=12)  # ends behind 12, 24, 36, 48 and 50
TODAY = b"today".ljust(32)
EVENTS = [
    dp.NoOpDpEvent(),
    dp.GaussianDpEvent(1.5),
    dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.25, dp.GaussianDpEvent(1.5)), 400),
    dp.ComposedDpEvent([dp.LaplaceDpEvent(2.0), dp.ComposedDpEvent([dp.GaussianDpEvent(3.0)])]),
    LaplaceMechanism(2.0, 3.0).event,
    GaussianMechanism(2.0, 3.0, 1e-5).event,
    ProductMechanism(LaplaceMechanism(2.0, 3.0), Response(10, 1.0)).event,
]


def independent(uses: int, delta: float) -> float:
    """ε of so many uses of (q, σ) = (0.2, 2), from another accountant's own composition."""
    use = dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(2.0))
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(use, uses).get_epsilon(delta))


def ask(
    ledger: Ledger, round: int, run: str = "r1", charge: Charge = CHARGE, budget: Budget = BUDGET
) -> Reservation:
    ledger.bind("ward", TODAY)
    return ledger.reserve("ward", run, charge, budget, round=round)


def spent(path: Path) -> tuple[float | None, float | None]:
    database = Database(path, writable=False)
    assert problems(database) == []
    [account] = report(database)
    return account.spent_epsilon, account.spent_delta


@pytest.mark.parametrize("round", [1, 12, 13, 24, 37, 48, 49, 50])
def test_the_ends_of_a_run_share_delta(ledger: Ledger, path: Path, round: int) -> None:
    """δ of all ends, each at the ε charged there, adds up to the δ charged."""
    held = ask(ledger, round)
    reached = min(50, -(-round // 12) * 12)
    assert (held.rounds, held.uses) == (reached, reached)
    whole = independent(50, 1e-6)
    expected = whole if reached == 50 else min(whole, independent(reached, 1e-6 / 4))
    epsilon, delta = spent(path)
    assert epsilon == pytest.approx(expected, rel=2e-3)
    assert epsilon <= PLAN.epsilon()
    assert delta == 2e-6 == pytest.approx(4 * (1e-6 / 4) + 1e-6)


def test_each_instalment_costs_what_it_adds_and_the_last_the_whole_plan(
    ledger: Ledger, path: Path
) -> None:
    costs = []
    for round in range(1, 51):
        held = ask(ledger, round)
        assert ledger.claim(held, TODAY, [Use(round, None, bytes([round]))])[0].new
        costs.append(spent(path)[0])
    assert [costs.index(cost) + 1 for cost in sorted(set(costs))] == [1, 13, 25, 37]
    assert costs[-1] == PLAN.epsilon()  # of 48 rounds at δ/4 and of 50 at δ: the lesser, 50's


def test_a_round_that_is_not_charged_yet_is_refused(ledger: Ledger) -> None:
    held = ask(ledger, 12)
    with pytest.raises(ReleaseRefusedError, match=r"Round 13 is not in the plan's 1, ..., 12"):
        ledger.claim(held, TODAY, [Use(13, None, b"13")])


def test_a_round_beyond_the_plan_charges_the_plan_at_most(ledger: Ledger, path: Path) -> None:
    held = ask(ledger, 10**9)
    assert (held.rounds, spent(path)[0]) == (50, PLAN.epsilon())


def test_runs_that_reserve_and_never_use_leave_room_for_others(ledger: Ledger) -> None:
    early = CHARGE.instalment(12, 1).early
    assert early is not None
    budget = Budget(PLAN.epsilon() + 3.2 * early.epsilon(), 1e-4, rounds_per_reservation=12)
    for number in range(3):
        ask(ledger, 1, f"idle {number}", budget=budget)
    ask(ledger, 50, "busy", budget=budget)
    with pytest.raises(BudgetError, match="are left"):
        ask(ledger, 13, "idle 0", budget=budget)
    assert ask(ledger, 12, "idle 0", budget=budget).rounds == 12  # what it has is its own


def test_an_instalment_beyond_the_ceiling_is_refused_and_charges_nothing(
    ledger: Ledger, path: Path
) -> None:
    early = CHARGE.instalment(12, 1).early
    assert early is not None
    budget = replace(BUDGET, epsilon=early.epsilon() * 1.01)
    ask(ledger, 1, budget=budget)
    before = spent(path)
    with pytest.raises(BudgetError):
        ask(ledger, 13, budget=budget)
    assert spent(path) == before


def test_a_ceiling_raised_during_a_run_holds_for_its_next_instalment(
    ledger: Ledger, path: Path
) -> None:
    early = CHARGE.instalment(12, 1).early
    assert early is not None
    ask(ledger, 1, budget=replace(BUDGET, epsilon=early.epsilon() * 1.01))
    ask(ledger, 13)
    ledger.close()
    Ledger(path, durable=False).close()  # it is sound
    [account] = report(Database(path, writable=False))
    assert account.epsilon == BUDGET.epsilon
    assert early.epsilon() < account.spent_epsilon < BUDGET.epsilon


def test_an_end_that_costs_nothing_is_charged_as_nothing(ledger: Ledger, path: Path) -> None:
    plan = replace(PLAN, rate=0.01, noise_multiplier=20.0, delta=1e-2)
    charge = central_charge(plan)
    assert charge.instalment(12, 1).early.epsilon() == 0.0
    ask(ledger, 1, charge=charge, budget=replace(BUDGET, delta=0.1))
    assert spent(path)[0] == 0.0


def test_both_deltas_must_fit(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="δ = 2e-06"):
        ask(ledger, 1, budget=replace(BUDGET, delta=1.5e-6))


def test_instalments_stay_as_the_run_began(ledger: Ledger, path: Path) -> None:
    """Otherwise the ends would differ from those that share δ."""
    ask(ledger, 1)
    for other in (replace(BUDGET, rounds_per_reservation=5), Budget(20.0, 1e-5)):
        held = ask(ledger, 13, budget=other)
        assert (held.rounds, held.step) == (24, 12)
    whole = ask(ledger, 1, "r2", budget=Budget(20.0, 1e-5))
    assert (ask(ledger, 1, "r2").rounds, whole.step) == (50, None)


def test_classes_are_held_to_the_uses_that_are_charged(ledger: Ledger) -> None:
    charge = central_charge(replace(PLAN, schedule=ClassSchedule(3)))
    held = ask(ledger, 12, charge=charge)
    assert held.uses == 4
    with pytest.raises(BudgetError, match="charged for 4 uses of a record"):
        ledger.claim(held, TODAY, [Use(round, 0, bytes([round])) for round in range(1, 6)])


def test_what_has_no_parts_is_charged_in_full(ledger: Ledger, path: Path) -> None:
    local = local_charge(LocalPlan("laplace", PointBall("l1", 1.0, 4), 3.0, 0.0, 1.0, 3))
    assert ask(ledger, 1, charge=local, budget=replace(BUDGET, delta=0.0)).step is None
    assert spent(path) == (4.0, 0.0)


def test_an_end_whose_delta_the_overflow_takes_costs_the_whole_plan(
    ledger: Ledger, path: Path
) -> None:
    plan = replace(PLAN, capacity=60, nominal_records=200)
    share = plan.overflow
    assert share > 0
    plan = replace(plan, delta=1.5 * share)
    ask(ledger, 40, charge=central_charge(plan), budget=replace(BUDGET, delta=0.5))
    assert spent(path) == (plan.epsilon(), 3 * share)


GRID = 2e-3  # of privacy losses
LOSSES = np.arange(-15_000, 15_001) * GRID


def law_of_loss(rate: float, sigma: float, rounds: int, *, removed: bool) -> np.ndarray:
    """The law of the privacy loss log p/p' of so many rounds under p, on the grid.

    Removed: p = (1 − q)·N(0, σ²) + q·N(1, σ²) and p' = N(0, σ²); else the other way round.
    """
    edges = np.append(LOSSES, LOSSES[-1] + GRID) - GRID / 2
    ratio = np.expm1(edges if removed else -edges) / rate + 1.0  # of N(1, σ²) to N(0, σ²)
    with np.errstate(divide="ignore"):
        x = sigma**2 * np.log(np.maximum(ratio, 0.0)) + 0.5
    below = stats.norm.cdf(x / sigma)
    if removed:
        below = (1 - rate) * below + rate * stats.norm.cdf((x - 1) / sigma)
    one = np.diff(below) if removed else -np.diff(below)
    law = one
    for _ in range(rounds - 1):
        law = np.maximum(fftconvolve(law, one, mode="same"), 0.0)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)
    return law


def reached_delta(plan: PrivacyPlan, step: int, charged: list[float]) -> float:
    """The largest δ that a stopping rule reaches against the ε that is charged at its end.

    Who asks sees the privacy loss L after every round and stops behind the end where that gains
    most: E[(1 − exp(e_k − L))₊] of the best rule, backwards from the last end.
    """
    ends = len(charged)
    worst = 0.0
    for removed in (True, False):
        steps = [min(step, plan.rounds - step * k) for k in range(ends)]
        laws = {
            n: law_of_loss(plan.rate, plan.noise_multiplier, n, removed=removed) for n in set(steps)
        }
        value = np.zeros_like(LOSSES)
        for k in reversed(range(ends)):
            stop = np.maximum(-np.expm1(np.minimum(charged[k] - LOSSES, 0.0)), 0.0)
            value = np.maximum(stop, value)
            law = laws[steps[k]]
            # The expectation of the value after the rounds before this end, by the loss before.
            padded = np.pad(value, len(LOSSES) // 2, mode="edge")
            value = fftconvolve(padded, law[::-1], mode="valid")
        worst = max(worst, float(value[len(LOSSES) // 2]))
    return worst


def plan_of(rate: float, sigma: float, rounds: int, delta: float) -> PrivacyPlan:
    return PrivacyPlan(rate, sigma, rounds, RecordClip(1.0), JointSchedule(), delta)


ADAPTIVE = [
    (plan_of(1.0, 4.0, 12, 1e-3), 6),
    (plan_of(1.0, 4.0, 12, 1e-3), 2),
    (plan_of(1.0, 2.0, 7, 1e-5), 3),
    (plan_of(1.0, 9.0, 40, 1e-4), 13),
    (plan_of(0.2, 2.0, 50, 1e-6), 12),
    pytest.param(plan_of(0.5, 1.5, 20, 1e-4), 5, marks=pytest.mark.slow),
    pytest.param(plan_of(0.05, 0.8, 60, 1e-5), 25, marks=pytest.mark.slow),
]


def charged_at_ends(plan: PrivacyPlan, step: int) -> list[float]:
    """Charges of a run by a new ledger, one for each end."""
    charge = central_charge(plan)
    budget = Budget(100.0, 0.1, rounds_per_reservation=step)
    costs = []
    for end in range(step, plan.rounds + step, step):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.sqlite"
            ledger = Ledger(path, durable=False)
            ask(ledger, min(end, plan.rounds), charge=charge, budget=budget)
            ledger.close()
            epsilon, delta = spent(path)
        assert epsilon is not None
        assert delta == 2 * plan.delta
        costs.append(epsilon)
    return costs


@pytest.mark.parametrize(("plan", "step"), ADAPTIVE)
def test_no_stopping_rule_reaches_more_than_is_charged(plan: PrivacyPlan, step: int) -> None:
    """An adversary sees every answer's privacy loss, and chooses the end by it as well as any."""
    charged = charged_at_ends(plan, step)
    whole = reached_delta(plan, plan.rounds, charged[-1:])
    assert whole == pytest.approx(plan.delta, rel=1e-3)  # so the adversary's δ is exact
    assert reached_delta(plan, step, charged) <= 2 * plan.delta


@pytest.mark.parametrize(("plan", "step"), ADAPTIVE)
def test_an_adversary_notices_a_charge_that_is_too_small(plan: PrivacyPlan, step: int) -> None:
    """Three faults: δ for 2δ; ε of half the rounds; ε at δ, without the other ends' share of δ."""
    charge, charged = central_charge(plan), charged_at_ends(plan, step)
    assert charge.part
    assert reached_delta(plan, step, charged) > 1.25 * plan.delta
    ends = range(step, plan.rounds, step)
    for rounds in ([end // 2 for end in ends], ends if len(ends) > 1 else ()):
        early = [charge.part(some, plan.delta).epsilon() for some in rounds]
        if early:
            assert reached_delta(plan, step, [*early, charged[-1]]) > 2 * plan.delta


def test_an_end_that_costs_the_whole_plan_may_need_all_of_its_delta() -> None:
    """The proof therefore counts all such ends once: each by itself has more than δ/(K − 1)."""
    plan, step = plan_of(1.0, 4.0, 12, 1e-3), 2
    charged = charged_at_ends(plan, step)
    assert charged[-2] == charged[-1] == plan.epsilon()
    never = [1e3] * 4  # nobody stops before
    alone = reached_delta(plan, step, [*never, charged[-2]])
    assert 1.5 * plan.delta / 5 < alone < plan.delta
    assert reached_delta(plan, step, [*never, *charged[-2:]]) == pytest.approx(plan.delta, rel=1e-3)


def test_values_that_are_no_instalments_are_refused() -> None:
    for wrong in (0, -1, 1.5):
        with pytest.raises(PrivacyError):
            Budget(1.0, 1e-5, rounds_per_reservation=wrong)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="charges use by use"):
        Budget(3.0, 1e-5, "rdp-filter", 8.0, 12)


def _killed(barrier: Any, path: Path, step: str) -> None:
    ledger = Ledger(path)
    held = ask(ledger, 13)
    if step == "claim":
        ledger.claim(held, TODAY, [Use(13, None, b"13")])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("step", ["extend", "claim"])
def test_an_instalment_survives_the_end_of_the_process(
    path: Path, in_processes: Together, step: str
) -> None:
    ledger = Ledger(path)
    ask(ledger, 1)
    ledger.close()
    assert in_processes(_killed, [(path, step)]) == [-signal.SIGKILL]
    before = spent(path)
    ledger = Ledger(path)
    held = ask(ledger, 24)
    assert (held.rounds, spent(path)) == (24, before)
    [claim] = ledger.claim(held, TODAY, [Use(13, None, b"13")])
    assert claim.new == (step == "extend")


def _extend(barrier: Any, path: Path, run: str, budget: Budget) -> None:
    ledger = Ledger(path)
    barrier.wait()
    try:
        ask(ledger, 50, run, budget=budget)
    except BudgetError:
        os._exit(3)
    os._exit(0)


def test_processes_that_extend_at_once_cannot_overspend(path: Path, in_processes: Together) -> None:
    early = CHARGE.instalment(12, 1).early
    assert early is not None
    budget = replace(BUDGET, epsilon=PLAN.epsilon() + 3.1 * early.epsilon())
    ledger = Ledger(path)
    runs = [f"r{number}" for number in range(4)]
    for run in runs:
        ask(ledger, 1, run, budget=budget)
    ledger.close()
    codes = in_processes(_extend, [(path, run, budget) for run in runs])
    assert sorted(map(str, codes)) == ["0", "3", "3", "3"]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_comes_back_equal(event: object) -> None:
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize("thing", [None, 1.0, "GaussianDpEvent"])
def test_what_is_no_event_is_not_stored(thing: object) -> None:
    with pytest.raises(PrivacyError, match="a ledger stores serialisable events, received"):
        event_to_json(thing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"noise_multiplier": 1.0}',
        '{"class": "GaussianDpEvent"}',
        '{"class": "GaussianDpEvent", "noise": 1.0}',
        '{"class": "Mapping"}',
        '{"class": "importlib"}',
        '{"class": "__class__", "name": "events"}',
        '{"class": 3}',
    ],
)
def test_a_file_names_events_and_nothing_else(text: str) -> None:
    """A ledger that somebody else wrote must not choose which code runs."""
    with pytest.raises(LedgerError, match=r"is damaged .* restore the ledger from a backup"):
        event_from_json(text)


def test_the_filter_is_for_add_remove_alone(ledger: Ledger) -> None:
    """Its divergences are; also where no policy file has refused the pair."""
    charge = central_charge(replace(PLAN, adjacency="replace-one"))
    with pytest.raises(BudgetError, match="known for add-remove only, not replace-one"):
        ledger.reserve("ward", "free", charge, Budget(10.0, 1e-5, "rdp-filter", 8.0))
