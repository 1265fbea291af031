"""One run name combined with everything else a message may hold, at nodes on neighbouring data.

Every message goes to the nodes of a `History`, which checks all answers after each. A failure
prints the seed and the sequence that reaches it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fedsink.clients import node
from fedsink.clients.owner.ledger import ledger
from fedsink.clients.owner.states import State
from fedsink.errors import RunTakenError
from fedsink.protocol.failure_codes import FAILED, MALFORMED, RUN_TAKEN

from .history import OWNERS, History
from .honest import SHAPES, Honest
from .messages import CRITICS_ASKED, ORDERS, PLANS_ASKED, Order, ordered

MESSAGES = 24  # of one history
HONEST = Honest(SHAPES["images"])
HELD_OUT = 27_000  # seeds that nothing was tried out with begin here


def carry_out(history: History, orders: list[Order], honest: Honest) -> None:
    """Carries out each order; a `History` checks everything after each message."""
    sent = []
    for order in orders:
        if order.how == "restart":
            history.restart()
        elif order.how == "data":
            history.change_data()
        elif order.how == "lose":
            history.lose_states()
        elif order.how == "damage":
            history.damage_states(order.bits)
        elif order.how == "swap":
            history.swap_states()
        else:
            message = ordered(order, honest)
            if order.how == "again" and sent:  # as a quorum's server asks clients without an answer
                message = sent[order.bits % len(sent)]
            sent.append(message)
            history.send(*message, order.signature)


def besiege(history: History, records: str, number: int, histories: int) -> None:
    """Plays that many histories from one seed."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

    @seed(number)
    @settings(max_examples=histories, suppress_health_check=checks, phases=[Phase.generate])
    @given(orders=st.lists(ORDERS, min_size=MESSAGES, max_size=MESSAGES))
    def attack(orders: list[Order]) -> None:
        history.begin()
        carry_out(history, orders, Honest(SHAPES[records]))
        for each in history.nodes:
            each.node.check_ledger()

    try:
        attack()
    except AssertionError as error:
        error.add_note(f"besiege(history, {records!r}, {number}, {histories})")
        raise


@pytest.mark.medium
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(
    ("number", "histories"), [(1, 1), pytest.param(HELD_OUT, 60, marks=pytest.mark.slow)]
)
def test_a_run_name_under_everything(
    owner: str, number: int, histories: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 4,000 messages of held-out seeds in all: only this test uses `HELD_OUT`."""
    records = "points" if owner == "files" else "images"
    history = History(tmp_path, monkeypatch, owner, records, named=owner != "signed")
    besiege(history, records, number + list(OWNERS).index(owner), histories)
    assert history.sent >= 1000 or histories == 1
    assert history.answered > history.sent / 10
    assert history.codes[MALFORMED] < history.sent / 2
    if histories > 1:
        assert min(history.compared.values()) > 0
        assert max(history.largest.values()) > 0.85


def asked(
    history: History, run: str, adjacency: str, rounds: list[int], critics: int = 0, plan: int = 0
) -> int:
    """The code of the first of some rounds that is refused; 0: they are all answered."""
    for round in rounds:
        order = Order("critic", run, round, adjacency, plan, critics, 0)
        reply = history.send(*ordered(order, HONEST))
        if reply.has_error():
            return reply.error.code
    return 0


@pytest.mark.medium
@pytest.mark.parametrize("adjacency", ["add-remove", "user", "client"])
def test_warmed_critics_that_are_asked_in_secret_are_charged_for_what_they_move(
    adjacency: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path, monkeypatch)
    history.begin()
    secret, warmed = (
        next(i for i, asked in enumerate(table) if key in str(asked))
        for table, key in ((PLANS_ASKED, "rate"), (CRITICS_ASKED, "warm_generator"))
    )
    assert asked(history, "run", adjacency, [1, 2, 3, 4], warmed, secret) == 0
    assert history.compared[adjacency] > 0
    assert 0.1 < history.largest[adjacency] <= 1.0


TWO_ACCOUNTS = pytest.mark.parametrize(
    ("first", "second"), [("add-remove", "user"), ("user", "replace-one")]
)


@pytest.mark.medium
@TWO_ACCOUNTS
@pytest.mark.parametrize("owner", ["whole", "files"])
def test_one_run_name_belongs_to_one_account(
    first: str, second: str, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another name gets answers, by critics that know nothing of those of the first one."""
    history = History(tmp_path, monkeypatch, owner)
    assert asked(history, "run", first, [1]) == 0
    assert asked(history, "run", second, [2]) == RUN_TAKEN
    assert asked(history, "other", second, [1, 2]) == 0
    assert 0.75 < history.largest[second] <= 1.0


@pytest.mark.medium
@pytest.mark.parametrize("named", [True, False])
def test_one_run_name_belongs_to_one_version_of_the_data(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path, monkeypatch, named=named)
    assert asked(history, "run", "replace-one", [1]) == 0
    history.change_data()
    assert asked(history, "run", "replace-one", [2]) == RUN_TAKEN
    assert asked(history, "run", "add-remove", [2]) == RUN_TAKEN
    assert asked(history, "other", "replace-one", [1, 2], critics=1) == 0
    history.change_data()
    assert asked(history, "run", "replace-one", [2]) == 0


def sharing(patch: pytest.MonkeyPatch) -> None:
    """States are found only by the run's name, and a name may be in several accounts."""
    patch.setattr(node, "reservation_name", lambda run, charge, fingerprint: run.encode())
    find = ledger._find

    def find_any(*which: Any) -> Any:
        try:
            return find(*which)
        except RunTakenError:
            return None

    patch.setattr(ledger, "_find", find_any)


@pytest.mark.medium
@TWO_ACCOUNTS
def test_states_that_accounts_share_are_found(
    first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former defect: a user's records moved a reply by almost four times its charge."""
    history = History(tmp_path, monkeypatch)
    sharing(monkeypatch)
    assert asked(history, "run", first, [1], critics=1) == 0
    with pytest.raises(AssertionError, match=f"times what was charged under {second}"):
        asked(history, "run", second, [2, 3, 4], critics=1)
    assert history.largest[second] > 1.0


@pytest.mark.medium
def test_states_that_versions_of_the_data_share_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record has another line in the other version, and so another critic."""
    history = History(tmp_path, monkeypatch, named=False)
    sharing(monkeypatch)
    assert asked(history, "run", "add-remove", [1], critics=1) == 0
    history.change_data()
    with pytest.raises(AssertionError, match="times what was charged under replace-one"):
        asked(history, "run", "replace-one", [*range(2, 10)], critics=1)


def test_a_charge_of_half_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the last round of the plan at the latest."""
    history = History(tmp_path, monkeypatch)
    admit = ledger.Ledger._admit

    def half(self: Any, lineage: str, run: str, charge: Any, epsilon: float, *rest: Any) -> Any:
        return admit(self, lineage, run, charge, epsilon / 2, *rest)

    monkeypatch.setattr(ledger.Ledger, "_admit", half)
    with pytest.raises(AssertionError, match=r"was charged, and δ is .* there and not"):
        asked(history, "run", "user", [1, 2, 3, 4, 5, 6], plan=2)


def lost_states(history: History, how: str, rounds: list[int]) -> None:
    """All rounds again, in every order of two, after states were lost in some way."""
    assert asked(history, "run", "add-remove", rounds[:2], critics=1) == 0
    history.swap_states()  # nothing was there before the first round
    assert asked(history, "run", "add-remove", rounds[:1], critics=1) == 0
    if how == "swap":
        history.swap_states()
    assert asked(history, "run", "add-remove", rounds[1:], critics=1) in (0, FAILED)
    for again in (rounds[::-1], rounds):
        {
            "restart": history.restart,
            "lose": history.lose_states,
            "damage": lambda: history.damage_states(4001),
            "swap": history.swap_states,
        }[how]()
        for round in again:
            asked(history, "run", "add-remove", [round], critics=1)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("owner", "how"),
    [
        ("keyed", "restart"),
        ("files", "lose"),
        ("files", "damage"),
        ("files", "swap"),
        ("whole", "lose"),
    ],
)
def test_no_noise_is_drawn_again_for_what_lost_states_would_give(
    owner: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyed node stores no reply: a repeated answer equals the earlier one, or is refused."""
    lost_states(History(tmp_path, monkeypatch, owner), how, [1, 2, 3, 4])


@pytest.mark.medium
@pytest.mark.parametrize("owner", ["keyed", "files"])
def test_noise_that_is_drawn_again_is_found(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former defect at nodes without a folder for states: they began anew and logged it."""
    monkeypatch.setattr(State, "lost", lambda state, what: None)
    with pytest.raises(AssertionError, match=r"one noise for two functions|two answers"):
        lost_states(History(tmp_path, monkeypatch, owner), "lose", [1, 2, 3, 4])
