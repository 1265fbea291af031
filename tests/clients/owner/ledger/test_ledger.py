from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedsink.clients.owner.ledger import ledger as module
from fedsink.clients.owner.ledger.account_report import refusals, report
from fedsink.clients.owner.ledger.charge import WORDS, Budget, Charge, Reservation, Use
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.errors import BudgetError, ReleaseRefusedError, RunTakenError

Make = Callable[..., Charge]
TEN = Budget(10.0, 1e-5)
TODAY = b"today".ljust(32)


def reserved(ledger: Ledger, charge: Charge, budget: Budget | None = TEN, run: str = "r1",
             lineage: str = "ward", content: bytes = TODAY) -> Reservation:  # fmt: skip
    ledger.bind(lineage, content)
    return ledger.reserve(lineage, run, charge, budget)


def use(round: int, label: int | None = None, digest: bytes | None = None) -> Use:
    return Use(round, label, digest or f"digest {round}".encode())


class Priced:
    """ε that counts how often it was computed."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon, self.times = epsilon, 0

    def __call__(self) -> float:
        self.times += 1
        return self._epsilon


# Reservations


def test_a_statement_is_of_one_run_of_one_lineage(ledger: Ledger, make_charge: Make) -> None:
    for lineage, run in (("ward", "r1"), ("ward", "r2"), ("lab", "r1")):
        plan = {"of": f"{lineage} {run}", WORDS: {"secure_aggregation": "masked"}}
        reserved(ledger, make_charge(plan=plan), run=run, lineage=lineage, content=lineage.encode())
    for lineage, run in (("ward", "r1"), ("ward", "r2"), ("lab", "r1")):
        [charged], rule = ledger.charged(lineage, run)
        assert charged.plan == {"of": f"{lineage} {run}"}  # the owner's words are not stated
        assert rule == "masked"
    assert ledger.charged("lab", "r2") == ([], None)
    reserved(ledger, make_charge(), run="own noise", content=b"ward")
    assert ledger.charged("ward", "own noise")[1] is None


@pytest.mark.parametrize("budget", [Budget(10.0, 1e-5), Budget(1e3, 0.5)])
def test_a_run_whose_price_depends_on_a_changed_word_is_refused(
    ledger: Ledger, make_charge: Make, budget: Budget
) -> None:
    words = {"secure_aggregation": "masked", "tolerate_dropouts": 1}
    reserved(ledger, make_charge(plan={"p": 1, WORDS: words}), budget)
    for word, value, shown in (
        ("secure_aggregation", "trusted", "= 'masked', and the policy says 'trusted' now"),
        ("tolerate_dropouts", 2, "= 1, and the policy says 2 now"),
        ("tolerate_dropouts", None, "= 1, and the policy says None now"),
    ):
        changed = make_charge(plan={"p": 1, WORDS: words | {word: value}})
        with pytest.raises(RunTakenError, match=f"under {word} {shown}"):
            reserved(ledger, changed, budget)
        reserved(ledger, changed, budget, run=f"other {value}")
    reserved(ledger, make_charge(plan={"p": 1, WORDS: words}), budget)


def test_a_plan_is_priced_and_charged_once_and_found_again(
    ledger: Ledger, make_charge: Make
) -> None:
    """Every message of a deployment is a new process, and an accountant takes seconds."""
    priced = Priced(6.0)
    charge = replace(make_charge(), epsilon=priced)
    first = ledger.reserve("ward", "r1", charge, TEN)
    assert ledger.reserve("ward", "r1", charge, TEN) == first
    assert priced.times == 1
    ledger.reserve("ward", "r2", make_charge(4.0), TEN)  # so the first was charged once


def test_plans_are_summed_until_the_ceiling(ledger: Ledger, make_charge: Make) -> None:
    for number in range(10):
        ledger.reserve("ward", f"r{number}", make_charge(1.0), TEN)
    with pytest.raises(BudgetError, match=r"costs ε = 0.001, .* ward's budget ε = 0, "):
        ledger.reserve("ward", "more", make_charge(0.001, delta=0.0), TEN)


def test_delta_is_summed_too(ledger: Ledger, make_charge: Make) -> None:
    ledger.reserve("ward", "r1", make_charge(1.0, delta=6e-6), TEN)
    with pytest.raises(BudgetError, match=r"δ = 5e-06 .* δ = 4e-06 are left"):
        ledger.reserve("ward", "r2", make_charge(1.0, delta=5e-6), TEN)
    ledger.reserve("ward", "r2", make_charge(1.0, delta=4e-6), TEN)


@pytest.mark.parametrize("epsilon", [10.001, float("inf"), float("nan")])
def test_a_plan_beyond_the_ceiling_is_refused(
    ledger: Ledger, make_charge: Make, epsilon: float
) -> None:
    with pytest.raises(BudgetError):
        ledger.reserve("ward", "r1", make_charge(epsilon), TEN)
    ledger.reserve("ward", "r1", make_charge(10.0), TEN)  # the refusal has charged nothing


def test_a_run_has_one_plan(ledger: Ledger, make_charge: Make) -> None:
    ledger.reserve("ward", "r1", make_charge(1.0), TEN)
    with pytest.raises(RunTakenError, match="run r1 is reserved for another plan at ward"):
        ledger.reserve("ward", "r1", make_charge(0.5), TEN)


def test_a_run_is_in_one_account_of_a_lineage(ledger: Ledger, make_charge: Make) -> None:
    """Weights learned under one unit must not show in answers that another account pays."""
    records, users = make_charge(1.0), replace(make_charge(1.0), adjacency="user")
    ledger.reserve("ward", "r1", records, TEN)
    ledger.reserve("ward", "r2", users, TEN)
    for run, charge, other in (("r1", users, "add-remove"), ("r2", records, "user")):
        with pytest.raises(RunTakenError, match=f"{run} is charged for the adjacency {other} at"):
            ledger.reserve("ward", run, charge, TEN)
    ledger.reserve("other ward", "r1", users, TEN)
    ledger.reserve("ward", "r1", records, TEN)


def test_events_of_different_adjacency_are_never_summed(ledger: Ledger, make_charge: Make) -> None:
    ledger.reserve("ward", "r1", make_charge(10.0), TEN)
    ledger.reserve("ward", "r2", make_charge(10.0, adjacency="client"), TEN)
    for adjacency in ("add-remove", "client"):
        with pytest.raises(BudgetError):
            ledger.reserve("ward", "r3", make_charge(1.0, adjacency=adjacency), TEN)
    ledger.reserve("clinic", "r1", make_charge(10.0), TEN)  # a lineage has a budget of its own


def test_a_lowered_ceiling_counts_for_what_is_new(ledger: Ledger, make_charge: Make) -> None:
    held = ledger.reserve("ward", "r1", make_charge(6.0), TEN)
    lowered = Budget(5.0, 1e-5)
    assert ledger.reserve("ward", "r1", make_charge(6.0), lowered) == held
    with pytest.raises(BudgetError, match="ε = 0, "):
        ledger.reserve("ward", "r2", make_charge(0.1), lowered)


def test_without_a_ceiling_one_plan_is_admitted(ledger: Ledger, make_charge: Make) -> None:
    """A simulation's ledger: nothing is refused that the plan allows, and anything beyond is."""
    priced = Priced(1e6)
    ledger.reserve("ward", "r1", replace(make_charge(1e6), epsilon=priced), None)
    assert priced.times == 0
    for run, cost in (("r1", 2.0), ("r2", 1e6)):
        with pytest.raises(ReleaseRefusedError):
            ledger.reserve("ward", run, make_charge(cost), None)


def test_a_ceiling_neither_comes_nor_goes_under_charges(ledger: Ledger, make_charge: Make) -> None:
    """A simulation's charges have no price, and a node's have one."""
    ledger.reserve("ward", "r1", make_charge(1.0), TEN)
    ledger.reserve("clinic", "r1", make_charge(1.0), None)
    for lineage, budget, how in (("ward", None, "with"), ("clinic", TEN, "without")):
        for run in ("r1", "r2"):
            with pytest.raises(ReleaseRefusedError, match=f"charged {how} a ceiling so far"):
                ledger.reserve(lineage, run, make_charge(1.0), budget)


def test_a_plan_is_charged_whole_before_its_first_use_and_nothing_is_given_back(
    ledger: Ledger, path: Path, make_charge: Make
) -> None:
    for run in ("stopped early", "never used"):
        held = reserved(ledger, make_charge(4.0), run=run)
        assert (held.rounds, held.uses) == (10, 10)
    ledger.claim(held, TODAY, [use(1)])
    ledger.close()
    [account] = report(Database(path, writable=False))
    charged = [(run.epsilon, run.delta, run.claimed) for run in account.runs]
    assert charged == [(4.0, 1e-6, 0), (4.0, 1e-6, 1)]
    with pytest.raises(BudgetError, match=r"budget ε = 2, δ = 8e-06 are left"):
        Ledger(path).reserve("ward", "third", make_charge(2.1), TEN)


def test_a_plan_that_is_roughly_far_too_dear_is_refused_unpriced(
    ledger: Ledger, make_charge: Make
) -> None:
    """A server asks as often as it likes, and an accountant takes seconds."""
    seen, priced = list[float](), Priced(5.0)

    def rough(ceiling: float) -> float | None:
        seen.append(ceiling)
        return 40.0 if ceiling < 4.5 else None

    ledger.reserve("ward", "r0", make_charge(6.0), TEN)  # leaves 4
    charge = make_charge(plan={"far": 1}, rough_epsilon=rough)
    charge = replace(charge, epsilon=priced)
    with pytest.raises(BudgetError, match=r"costs about ε = 40, .* budget ε = 4, .* are left"):
        ledger.reserve("ward", "r1", charge, TEN)
    assert (seen, priced.times) == ([4.0], 0)
    ledger.reserve("ward", "r1", charge, Budget(20.0, 1e-5))  # the owner has raised it
    assert priced.times == 1


def test_refusals_are_counted_by_day_and_forgotten_after_it(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [20_000 * 86_400.0 + 43_200.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    for reason in ("BudgetError", "BadSignatureError", "BudgetError"):
        ledger.note_refused(reason)
    database = Database(path, writable=False)
    assert refusals(database) == {"BadSignatureError": 1, "BudgetError": 2}
    now[0] += 86_400.0
    assert refusals(database) == {}
    ledger.note_refused("BudgetError")
    assert database.rows("SELECT times FROM refusals") == [(1,)]


# Contents


def test_changed_data_inherit_every_charge(ledger: Ledger, make_charge: Make) -> None:
    """Pitfall 16: one record appended, then a backup restored."""
    reserved(ledger, make_charge(6.0), run="r1", content=b"before")
    reserved(ledger, make_charge(4.0), run="r2", content=b"one more record")
    ledger.bind("ward", b"before")
    with pytest.raises(BudgetError):
        ledger.reserve("ward", "r3", make_charge(1.0), TEN)


def test_changed_data_are_refused_where_the_owner_says_so(ledger: Ledger) -> None:
    """Pitfall 16: no budget is reset by changed data or a restored backup."""
    ledger.bind("ward", b"before", "refuse")
    ledger.bind("ward", b"before", "refuse")
    with pytest.raises(ReleaseRefusedError, match="data of 'ward' have changed"):
        ledger.bind("ward", b"after", "refuse")
    ledger.bind("clinic", b"after", "refuse")


def test_a_new_name_gives_no_new_budget(ledger: Ledger) -> None:
    ledger.bind("ward", b"scans")
    with pytest.raises(ReleaseRefusedError, match="These data are 'ward' in the ledger"):
        ledger.bind("ward-2", b"scans")


def test_a_run_answers_from_one_state_of_the_data(ledger: Ledger, make_charge: Make) -> None:
    """A record that changes its class in between would take part under both."""
    held = reserved(ledger, make_charge(), content=b"before")
    ledger.claim(held, b"before", [use(1)])
    ledger.bind("ward", b"after")
    with pytest.raises(ReleaseRefusedError, match="changed since the first answer to the run r1"):
        ledger.claim(held, b"after", [use(2)])
    ledger.claim(held, b"before", [use(2)])


# Claims


def test_a_place_is_answered_only_for_the_digest_that_claimed_it(
    ledger: Ledger, make_charge: Make
) -> None:
    held = reserved(ledger, make_charge())
    assert [c.new for c in ledger.claim(held, TODAY, [use(1), use(2)])] == [True, True]
    assert [c.new for c in ledger.claim(held, TODAY, [use(2), use(3)])] == [False, True]
    with pytest.raises(ReleaseRefusedError, match="answered another request in round 2 of the run"):
        ledger.claim(held, TODAY, [use(2, digest=b"other")])


def test_a_message_is_claimed_as_a_whole_or_not_at_all(ledger: Ledger, make_charge: Make) -> None:
    held = reserved(ledger, make_charge())
    ledger.claim(held, TODAY, [use(3)])
    with pytest.raises(ReleaseRefusedError):
        ledger.claim(held, TODAY, [use(1), use(2), use(3, digest=b"other")])
    claims = ledger.claim(held, TODAY, [use(1, digest=b"free"), use(2, digest=b"free")])
    assert all(claim.new for claim in claims)
    assert problems(ledger._database) == []
    # No seal is of a claim that was refused: the content, the run and three claims.
    assert ledger.head()[0] == 5


def test_the_same_round_of_another_run_is_another_place(ledger: Ledger, make_charge: Make) -> None:
    for run in ("r1", "r2"):
        held = reserved(ledger, make_charge(), run=run)
        assert ledger.claim(held, TODAY, [use(1, digest=run.encode())])[0].new


@pytest.mark.parametrize("round", [-1, 0, 11])
def test_a_round_outside_the_plan_is_refused(ledger: Ledger, make_charge: Make, round: int) -> None:
    """Pitfall 6: charges are of the whole plan, and outlive a process."""
    held = reserved(ledger, make_charge())
    with pytest.raises(ReleaseRefusedError, match=f"Round {round} is not in the plan's 1, ..., 10"):
        ledger.claim(held, TODAY, [use(round)])


def test_the_next_round_is_claimed_once_and_none_beyond_the_plan(
    ledger: Ledger, make_charge: Make
) -> None:
    reservation = ledger.reserve("ward", "a", make_charge(rounds=3, uses=3), TEN)
    numbers = [ledger.claim_next(reservation, bytes([n]) * 32) for n in range(3)]
    assert numbers == [1, 2, 3]
    with pytest.raises(BudgetError, match="ward has given all 3 answers that the run a was char"):
        ledger.claim_next(reservation, b"3" * 32)
    fewer = ledger.reserve("ward", "b", make_charge(plan={"b": 1}, rounds=3, uses=1), TEN)
    assert ledger.claim_next(fewer, b"4" * 32) == 1
    with pytest.raises(BudgetError):
        ledger.claim_next(fewer, b"5" * 32)


def test_uses_are_counted_per_label_and_the_maximum_is_enforced(
    ledger: Ledger, make_charge: Make
) -> None:
    """Pitfall 3: the plan was charged for two uses of a record, in ten rounds."""
    held = reserved(ledger, make_charge(uses=2))
    ledger.claim(held, TODAY, [use(round, round % 3) for round in range(1, 7)])
    with pytest.raises(BudgetError, match="charged for 2 uses of a record at ward"):
        ledger.claim(held, TODAY, [use(7, 1)])
    ledger.claim(held, TODAY, [use(7, 3)])
    with pytest.raises(BudgetError):
        ledger.claim(held, TODAY, [use(8, None)])  # all classes: also the three that are used up
    ledger.claim(held, TODAY, [use(1, 1)])  # a repeat costs nothing
    with pytest.raises(BudgetError):
        ledger.claim(held, TODAY, [use(1, 1), use(8, 1)])  # and pays for nothing beside it


def test_a_use_of_every_class_counts_for_each(ledger: Ledger, make_charge: Make) -> None:
    held = reserved(ledger, make_charge(uses=2))
    ledger.claim(held, TODAY, [use(1, None), use(2, 0), use(3, 1)])
    for label in (0, 1):
        with pytest.raises(BudgetError):
            ledger.claim(held, TODAY, [use(4, label)])


def test_released_is_remembered(path: Path, make_charge: Make) -> None:
    ledger = Ledger(path)
    held = reserved(ledger, make_charge())
    ledger.claim(held, TODAY, [use(1), use(2)])
    ledger.note_released(held, [2])
    ledger.close()
    again = Ledger(path)
    held = again.reserve("ward", "r1", make_charge(), TEN)
    claims = again.claim(held, TODAY, [use(1), use(2)])
    assert [(c.new, c.released) for c in claims] == [(False, False), (False, True)]
