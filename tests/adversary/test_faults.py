"""Races, kills and broken disks: no charge is lost or made twice, and no second answer is given.

A new process answers every message, as in a deployment, and the faults are real:
SIGKILL, limits of the operating system, permissions, bytes of the files themselves.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fedsink.clients.answers.central import central_charge
from fedsink.clients.node import close_nodes
from fedsink.clients.owner.ledger.charge import Budget, Charge, Use
from fedsink.clients.owner.ledger.database import Database, problems
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.errors import BudgetError, LedgerError, ReleaseRefusedError
from fedsink.privacy import PrivacyPlan
from fedsink.protocol.failure_codes import FAILED, REFUSED

from . import owners_node
from .faults import AtStep, FullDisk, jumping_clock, kill_9, lose_privileges, mount_small_disk
from .owners_node import (
    CRITIC_PLAN,
    PLAN,
    Answer,
    OwnersNode,
    barrier,
    critic_request,
    in_processes,
    other,
    request,
)

MakeNode = Callable[..., OwnersNode]
TODAY = b"today".ljust(32)
BUDGET = Budget(1e6, 1e-3)
LAST_FIFTH = 0.8  # of the steps from charge to reply: it stores the reply and notes its release


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Makes nodes by name; imports and first computations are done before a process forks.

    Nodes with critics and fast noise have one noise key.
    """

    def make(
        name: str = "node", noise: str = "fast", epsilon: float = 1e6, plan: PrivacyPlan = PLAN
    ) -> OwnersNode:
        first = tmp_path / f"warm-up-{noise}-{plan.clip.name}"
        warm_up(noise, plan, first)
        node = OwnersNode(tmp_path / name, noise, epsilon, plan)
        if noise == "fast" and plan is CRITIC_PLAN:
            node.state.mkdir(mode=0o700)
            shutil.copy2(first / "state" / "noise.key", node.state)
        return node

    return make


@cache
def warm_up(noise: str, plan: PrivacyPlan, folder: Path) -> None:
    asked = critic_request(1) if plan is CRITIC_PLAN else request(1)
    owners_node.answer(OwnersNode(folder, noise, plan=plan).policy, asked)
    close_nodes()


def points(node: OwnersNode, count: int, seed: int) -> list[int]:
    """Steps at which a fault happens, drawn at random: half of them from the last fifth."""
    total = node.steps(request(1, run="steps"))
    random = Random(seed)
    last = int(LAST_FIFTH * total)
    chosen = random.sample(range(1, last), count // 2)
    return chosen + random.sample(range(last, total + 1), count - count // 2)


# Races


def claim_all(
    path: Path,
    charge: Charge,
    own: str,
    places: Sequence[tuple[str, int, bytes]],
    together: Barrier,
) -> tuple[list[tuple[str, int, bytes]], Counter[str]]:
    """Returns the claims a process won, and how often a place was won, repeated and refused."""
    ledger = Ledger(path)
    ledger.bind("ward", TODAY)
    held = {run: ledger.reserve("ward", run, charge, BUDGET) for run in (own, "shared")}
    won, outcomes = [], Counter[str]()
    for run, round, digest in places:
        together.wait()
        try:
            [claim] = ledger.claim(held[run], TODAY, [Use(round, None, digest)])
        except ReleaseRefusedError:
            outcomes["refused"] += 1
            continue
        outcomes["won" if claim.new else "repeated"] += 1
        if claim.new:
            won.append((run, round, digest))
        ledger.note_released(held[run], [round])
    return won, outcomes


@pytest.mark.slow
def test_two_processes_admit_a_thousand_uses_and_none_is_lost_or_doubled(tmp_path: Path) -> None:
    """400 places of one run that both ask for, and 300 of a separate run for each.

    In the shared run both bring the same message to every odd round, and different messages
    to every even one, at the same time.
    """
    path = tmp_path / "ledger.sqlite"
    charge = central_charge(replace(PLAN, rounds=400))
    price = charge.epsilon()
    together = barrier(2)
    calls = []
    for own in ("left", "right"):
        shared = [("shared", t, b"both" if t % 2 else own.encode()) for t in range(1, 401)]
        places = shared + [(own, t, b"alone") for t in range(1, 301)]
        calls.append(partial(claim_all, path, charge, own, places, together))
    won, outcomes = zip(*in_processes(*calls), strict=True)
    assert sum(outcomes, Counter()) == {"won": 1000, "repeated": 200, "refused": 200}

    with closing(Database(path, writable=False)) as database:
        assert problems(database) == []
        kept = database.rows("SELECT name, round, digest FROM claims JOIN runs ON run = id")
        assert sorted(kept) == sorted(won[0] + won[1])
        assert len({(run, round) for run, round, _ in kept}) == 1000
        assert database.rows("SELECT COUNT(*) FROM claims WHERE released") == [(1000,)]
        counts = database.rows("SELECT name, counts.uses FROM counts JOIN runs ON run = runs.id")
        assert sorted(counts) == [("left", 300), ("right", 300), ("shared", 400)]
        assert database.rows("SELECT epsilon FROM runs") == [(price,)] * 3


def admit_all(
    path: Path, budget: Budget, charge: Charge, runs: Sequence[str], together: Barrier
) -> list[str]:
    """Returns the runs of which a process was admitted one use."""
    ledger = Ledger(path)
    ledger.bind("ward", TODAY)
    admitted = []
    for run in runs:
        together.wait()
        try:
            held = ledger.reserve("ward", run, charge, budget)
            ledger.claim(held, TODAY, [Use(1, None, b"both")])
        except BudgetError:
            continue
        admitted.append(run)
    return admitted


def test_two_processes_fill_a_budget_to_the_brim_and_no_further(tmp_path: Path) -> None:
    """The budget has room for 25 of 60 runs; each process wants 40 of them."""
    path = tmp_path / "ledger.sqlite"
    charge = central_charge(replace(PLAN, rounds=1))
    budget = Budget(25.5 * charge.epsilon(), 1e-3)
    names = [f"run {number}" for number in range(60)]
    together = barrier(2)
    admitted = in_processes(
        partial(admit_all, path, budget, charge, names[:40], together),
        partial(admit_all, path, budget, charge, names[20:], together),
    )
    assert len(set(admitted[0]) | set(admitted[1])) == 25
    with closing(Database(path, writable=False)) as database:
        assert problems(database) == []
        kept = database.rows("SELECT name FROM claims JOIN runs ON run = id")
    assert {run for (run,) in kept} == set(admitted[0]) | set(admitted[1])
    assert len(kept) == 25


@pytest.mark.medium
@pytest.mark.quick("gradients-secure")
@pytest.mark.parametrize(
    ("kind", "noise"), [("gradients", "fast"), ("gradients", "secure"), ("critics", "secure")]
)
def test_two_processes_asked_the_same_at_once_give_the_same_bytes(
    make_node: MakeNode, kind: str, noise: str
) -> None:
    """From an empty folder on; under secure noise each of them computes other bytes."""
    node = make_node(noise=noise, plan=CRITIC_PLAN if kind == "critics" else PLAN)
    make = critic_request if kind == "critics" else request
    asked = [make(round) for round in range(1, 13)]
    left, right = node.ask_at_once(asked, asked)
    assert left == right
    assert all(answer.reply is not None for answer in left or [])
    assert node.claims() == {("run", round): True for round in range(1, 13)}
    assert len(node.stored()) == 12
    assert set(learned(node)) == ({"11.state", "12.state"} if kind == "critics" else set())
    assert node.leftovers() == set()


# kill -9


@pytest.mark.medium
@pytest.mark.quick("fast-10")
@pytest.mark.parametrize(
    ("noise", "kills"),
    [
        ("secure", 20),
        ("fast", 10),
        pytest.param("secure", 50, marks=pytest.mark.slow),
        pytest.param("fast", 50, marks=pytest.mark.slow),
    ],
)
def test_kills_lose_no_budget_and_give_no_second_answer(
    make_node: MakeNode, noise: str, kills: int
) -> None:
    """One run, killed in each round except the first between charge and reply.

    The budget is that run's price: a charge made twice would not fit, nor would another run.
    """
    steps = points(make_node("steps", noise), kills, seed=11)
    node = make_node(noise=noise, epsilon=PLAN.epsilon())
    assert node.ask(request(1)) is not None
    for round, step in enumerate(steps, start=2):
        asked = request(round)
        assert node.ask(asked, AtStep(step, kill_9)) is None
        assert ("run", round) in node.claims()
        node.recovers(asked)
    rounds = range(1, kills + 2)
    assert node.claims() == {("run", round): True for round in rounds}
    node.ask_at_once([request(round) for round in rounds])
    assert node.ask(request(1, run="another")) == Answer(None, REFUSED)


@pytest.mark.slow
@pytest.mark.timeout(2400)  # two processes for each of some hundred steps
def test_a_kill_at_any_step_loses_nothing(make_node: MakeNode) -> None:
    total = make_node("steps", "secure").steps(request(1))
    node = make_node(noise="secure")
    for step in range(1, total + 1):
        run, round = divmod(step, PLAN.rounds)
        asked = request(round + 1, run=f"run {run}")
        assert node.ask(asked, AtStep(step, kill_9)) is None
        node.recovers(asked)


@pytest.mark.medium
def test_a_kill_after_the_reply_has_left_changes_nothing(make_node: MakeNode) -> None:
    """Nothing was closed: only the write-ahead log holds the last charges."""
    node = make_node(noise="secure")
    for round in range(1, 4):
        node.ask(request(round), stop=False)
    for round in range(1, 4):
        node.recovers(request(round))


# A full disk


@pytest.mark.quick("34000-False", "50-True")
@pytest.mark.parametrize(
    ("size", "deadly"),
    [(0, False), (5_000, False), (34_000, False), (70_000, False), (50, True), (70_000, True)],
)
def test_a_node_that_starts_on_a_full_disk_releases_nothing(
    make_node: MakeNode, size: int, deadly: bool
) -> None:
    """Some sizes end the key file, some the ledger's first tables, some its first charge."""
    node = make_node()
    answer = node.ask(request(1), FullDisk(size, deadly=deadly))
    assert answer is None or answer.code is not None
    assert node.stored() == {}
    node.recovers(request(1))


@pytest.mark.slow
@pytest.mark.parametrize("deadly", [False, True])
def test_a_disk_that_fills_between_charge_and_reply_releases_nothing_unnoted(
    make_node: MakeNode, deadly: bool
) -> None:
    """The reply is not stored, stored by half, or not noted as released."""
    node = make_node()
    steps = [*points(node, 8, seed=12), node.steps(request(2, run="steps"))]
    seen = set()
    for round, step in enumerate(steps, start=1):
        asked = request(round)
        before = len(node.stored())
        answer = node.ask(asked, AtStep(step, FullDisk(100, deadly=deadly)))
        noted, stored = node.claims()["run", round], len(node.stored()) > before
        assert stored or not noted
        assert noted or answer == (None if deadly else Answer(None, FAILED))
        seen.add((stored, noted))
        node.recovers(asked)
    assert seen == {(False, False), (True, False), (True, True)}


@pytest.mark.medium
def test_a_disk_that_is_really_full_releases_nothing_unnoted(make_node: MakeNode) -> None:
    """A file system of half a megabyte, on which a file leaves that many pages free."""
    node = make_node()
    node.state.mkdir(mode=0o700)
    ballast = node.state / "ballast"

    def scenario() -> str:
        if not mount_small_disk(node.state, 1 << 19):
            return "not allowed"
        for round, pages in enumerate([0, 1, 4, 9, 10, 11, 12, 13, 14, 32], start=1):
            with ballast.open("wb", buffering=0) as file:
                fill(file)
                file.truncate(max(0, file.tell() - 4096 * pages))
            answer = node.ask(request(round))
            ballast.unlink()
            assert answer is not None
            node.recovers(request(round))
        return "survived"

    [outcome] = in_processes(scenario)
    if outcome == "not allowed":
        pytest.skip("this system lets no process mount a disk of its own")
    assert outcome == "survived"


def fill(file: Any) -> None:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass


# A read-only folder


def close_doors(state: Path, files: int, folders: int) -> None:
    for path in [*state.rglob("*"), state]:
        path.chmod(folders if path.is_dir() else files)


def open_doors(state: Path) -> None:
    state.chmod(0o700)
    for path in state.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.mark.medium
@pytest.mark.quick("384-True")
@pytest.mark.parametrize(("files", "stop"), [(0o600, True), (0o600, False), (0o400, True)])
def test_a_read_only_state_folder_releases_nothing_new(
    make_node: MakeNode, files: int, stop: bool
) -> None:
    """The superuser's process gives its privileges up, or no door would be closed to it."""
    node = make_node()
    node.ask(request(1), stop=stop)
    before = node.stored()
    close_doors(node.state, files, 0o500)
    assert node.ask(request(2), lose_privileges) == Answer(None, FAILED)
    node.ask(request(1), lose_privileges)  # its bytes, or an error
    assert node.stored() == before
    open_doors(node.state)
    node.recovers(request(2))
    node.recovers(request(1))


def test_a_state_folder_that_cannot_be_made_releases_nothing(make_node: MakeNode) -> None:
    node = make_node()
    node.policy.parent.chmod(0o500)
    answer = node.ask(request(1), lose_privileges)
    node.policy.parent.chmod(0o700)
    assert answer is not None
    assert answer.code is not None
    assert not node.state.exists()
    node.recovers(request(1))


# A clock that jumps


@pytest.mark.medium
def test_a_clock_that_jumps_changes_no_reply_and_no_charge(make_node: MakeNode) -> None:
    """The ledger notes only the day of a run, for its owner."""
    steady, jumping = make_node("steady"), make_node("jumping")
    steady.ask(request(1))
    jumping.state.mkdir(mode=0o700)
    shutil.copy2(steady.state / "noise.key", jumping.state)
    for round, date in enumerate([0, 4_100_000_000, 1_000_000_000], start=1):
        for path in [*jumping.state.rglob("*"), jumping.state]:
            os.utime(path, (date, date))
        jumping.ask_at_once([request(round), request(round)], fault=jumping_clock)
        steady.ask(request(round))
    assert jumping.left == steady.left
    assert jumping.stored() == steady.stored()
    without_days = partial(re.sub, r"'\d{4}-\d\d-\d\d'", "DAY")
    rows, expected = ([*map(without_days, dump(n.ledger))] for n in (jumping, steady))
    assert rows == expected
    assert sum("DAY" in row for row in rows) == 1
    jumping.recovers(request(1))


def dump(ledger: Path) -> list[str]:
    with closing(sqlite3.connect(ledger)) as connection:
        return list(connection.iterdump())


# Damage


@pytest.fixture
def used(make_node: MakeNode) -> OwnersNode:
    """A node that has answered four rounds, and one of another run; a third run is too much."""
    node = make_node(epsilon=2.5 * PLAN.epsilon())
    node.ask_at_once([*(request(round) for round in range(1, 5)), request(1, run="second")])
    with closing(sqlite3.connect(node.ledger)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return node


def is_named(ledger: Path) -> bool:
    """Tells whether a check of the ledger names damage."""
    try:
        database = Database(ledger, writable=False)
    except LedgerError:  # what `fedsink ledger check` says, then
        return True
    with closing(database):
        return problems(database) != []


UNASKED = [request(5), request(1, run="third"), *(other(request(round)) for round in range(1, 5))]
"""What a damaged ledger could let through: something new, too much, or a second answer."""


def pages(ledger: Path) -> dict[str, int]:
    """Offsets of the pages at which each table and index begins."""
    with closing(sqlite3.connect(ledger)) as connection:
        query = "SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0"  # a view has no page
        roots = connection.execute(query).fetchall()
        [(size,)] = connection.execute("PRAGMA page_size")
    return {"schema": 0} | {name: (root - 1) * size for name, root in roots}


@pytest.mark.medium
@pytest.mark.quick("0-64")
@pytest.mark.parametrize(("first", "last"), [(0, 64), (3900, 4096)])
def test_a_damaged_page_is_named_and_nothing_is_released(
    used: OwnersNode, first: int, last: int
) -> None:
    """The head of a page says where its rows are, its tail holds them."""
    found = pages(used.ledger)
    assert {"schema", "accounts", "contents", "runs", "claims", "seals"} < found.keys()
    restore = used.back_up()
    for name, page in found.items():
        if first > 0 and name == "refusals":
            continue  # nothing was written to it, so its tail holds no rows
        content = bytearray(used.ledger.read_bytes())
        content[page + first : page + last] = b"\xff" * (last - first)
        used.ledger.write_bytes(content)
        assert is_named(used.ledger)
        [answers] = used.ask_at_once([*UNASKED, request(2)])
        assert [answer.reply for answer in answers or [None]] == [None] * 7
        restore()
    used.recovers(request(5))
    used.recovers(request(2))


def flip(file: Path, position: int, bit: int = 1) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= bit
    file.write_bytes(content)


@pytest.mark.quick("accounts")
@pytest.mark.parametrize("table", ["accounts", "runs"])
def test_a_bit_that_hides_a_row_from_its_index_gives_no_new_budget(
    used: OwnersNode, table: str
) -> None:
    """SQLite reads on with such an index, and an account that is not found has all its budget."""
    page = pages(used.ledger)[f"sqlite_autoindex_{table}_1"]
    flip(used.ledger, page + 4096 - 12)
    assert is_named(used.ledger)
    [answers] = used.ask_at_once(UNASKED)
    assert [answer.reply for answer in answers or [None]] == [None] * 6


WAL_HEADER, WAL_FRAME = 32, 24 + 4096


@pytest.mark.slow
def test_a_damaged_log_gives_no_second_answer(make_node: MakeNode) -> None:
    """SQLite takes a damaged frame for the end of its log: the charges behind it are forgotten."""
    node = make_node(epsilon=2.5 * PLAN.epsilon())
    for round in range(1, 5):
        node.ask(request(round), stop=False)
    node.ask(request(1, run="second"), stop=False)
    log = node.ledger.with_name("ledger.sqlite-wal")
    frames = (log.stat().st_size - WAL_HEADER) // WAL_FRAME
    assert frames > 20
    restore = node.back_up()
    for frame in [*range(0, frames, 6), frames - 1]:
        flip(log, WAL_HEADER + WAL_FRAME * frame + 1000)
        node.ask_at_once(UNASKED)  # which would notice
        restore()
    node.recovers(request(5))


@pytest.mark.medium
@pytest.mark.parametrize("damage", ["deleted", "emptied", "restored from last week"])
def test_a_ledger_that_has_forgotten_its_replies_gives_no_second_answer(
    make_node: MakeNode, damage: str
) -> None:
    node = make_node(epsilon=2.5 * PLAN.epsilon())
    node.ask(request(1))
    old = node.ledger.read_bytes()
    node.ask(request(2))
    restore = node.back_up()
    if damage == "deleted":
        node.ledger.unlink()
    else:
        node.ledger.write_bytes(b"" if damage == "emptied" else old)
    answers = node.ask_at_once([other(request(2)), request(3), request(1, run="second")])
    assert [answer.reply for answer in answers[0] or [None]] == [None] * 3
    restore()
    node.recovers(request(3))


@pytest.mark.medium
@pytest.mark.parametrize("damage", ["flip", "half", "empty"])
def test_a_damaged_reply_is_refused_until_it_is_restored(used: OwnersNode, damage: str) -> None:
    restore = used.back_up()
    for path in used.state.glob("replies/*"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes({"flip": content, "half": content[:100], "empty": b""}[damage])
    asked = [request(round) for round in range(1, 5)]
    [answers] = used.ask_at_once([*asked, *map(other, asked)])
    assert answers == [Answer(None, REFUSED)] * 8
    restore()
    used.ask_at_once(asked)  # the same bytes as before
    used.recovers(request(5))


# Critics that learn: the node continues as if it had not been killed

CRITICS: dict[str, Any] = {"plan": CRITIC_PLAN}


def learned(node: OwnersNode) -> dict[str, bytes]:
    """Files of every state of the critics, by the round after which they hold."""
    return {path.name: path.read_bytes() for path in node.state.glob("states/*/[!.]*")}


def arrows(node: OwnersNode) -> list[int]:
    """Steps from charge to reply, among them those around each file that is written.

    The steps between two changes of the state folder are one arrow of the order: charge, state,
    reply, note of the release, answer. A kill at the first and the last of them, and between.
    """
    total = node.steps(critic_request(1, run="steps"))
    return sorted({1, total, *range(2, total, max(1, total // 24)), *range(total - 12, total)})


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["fast", "secure"])
def test_a_kill_at_any_arrow_changes_no_answer_and_no_critic(
    make_node: MakeNode, noise: str
) -> None:
    """One node is killed in every round except the first; a node of the same key never is.

    After every kill the same message is answered once. Under a key whose noise can be drawn
    again, replies and critics equal those of the node that was never killed.
    """
    killed, spared = make_node("killed", noise, **CRITICS), make_node("spared", noise, **CRITICS)
    steps = arrows(make_node("steps", noise, **CRITICS))[: CRITIC_PLAN.rounds - 2]
    assert killed.ask(critic_request(1)) is not None
    spared.ask(critic_request(1))
    unfinished = set()
    for round, step in enumerate(steps, start=2):
        asked = critic_request(round)
        stored, before = len(killed.stored()), learned(killed)
        assert killed.ask(asked, AtStep(step, kill_9)) is None
        unfinished.add((f"{round}.state" in learned(killed), len(killed.stored()) > stored))
        assert learned(killed)[f"{round - 1}.state"] == before[f"{round - 1}.state"]
        killed.recovers(asked)
        spared.ask(asked)
        assert set(learned(killed)) == {f"{round - 1}.state", f"{round}.state"}
        if noise == "fast":
            assert learned(killed) == learned(spared)
    assert unfinished == {(False, False), (True, False), (True, True)}
    if noise == "fast":
        assert killed.left == spared.left
    killed.ask_at_once([critic_request(round) for round in range(1, len(steps) + 2)])


@pytest.mark.medium
def test_a_repeat_gets_its_reply_and_teaches_nothing(make_node: MakeNode) -> None:
    node = make_node(**CRITICS)
    node.ask_at_once([critic_request(1), critic_request(2)])
    before = learned(node)
    node.ask_at_once([critic_request(2), critic_request(1), critic_request(2)])
    assert learned(node) == before
    refused = node.ask(other(critic_request(2)))
    assert refused == Answer(None, REFUSED)
    assert learned(node) == before


@pytest.mark.medium
def test_a_folder_of_critics_that_is_closed_releases_nothing_new(make_node: MakeNode) -> None:
    node = make_node(**CRITICS)
    node.ask(critic_request(1))
    folders = [node.state / "states", *node.state.glob("states/*")]
    for folder in folders:
        folder.chmod(0o500)
    answer = node.ask(critic_request(2), lose_privileges)
    for folder in folders:
        folder.chmod(0o700)
    assert answer is not None
    assert answer.reply is None
    node.recovers(critic_request(2))


def test_what_critics_learned_is_for_the_owner_alone(make_node: MakeNode) -> None:
    node = make_node(**CRITICS)
    node.ask(critic_request(1))
    folders = [node.state / "states", *node.state.glob("states/*")]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
    [file] = node.state.glob("states/*/*")
    assert file.stat().st_mode & 0o777 == 0o600
