"""Kills of a node whose critics learn: the node continues as if it had not been killed.

A new process answers every message, as in a deployment, and the kills are SIGKILL.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from fedsink.clients.node import close_nodes
from fedsink.protocol.failure_codes import REFUSED

from . import owners_node
from .faults import AtStep, kill_9, lose_privileges
from .owners_node import CRITIC_PLAN, Answer, OwnersNode, critic_request, other

MakeNode = Callable[..., OwnersNode]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Nodes by name, of one noise key."""

    def make(name: str = "node", noise: str = "fast") -> OwnersNode:
        warm_up(noise, tmp_path / f"warm-up-{noise}")
        node = OwnersNode(tmp_path / name, noise, plan=CRITIC_PLAN)
        if noise == "fast":
            node.state.mkdir(mode=0o700)
            shutil.copy2(tmp_path / f"warm-up-{noise}" / "state" / "noise.key", node.state)
        return node

    return make


@cache
def warm_up(noise: str, folder: Path) -> None:
    owners_node.answer(OwnersNode(folder, noise, plan=CRITIC_PLAN).policy, critic_request(1))
    close_nodes()


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
    killed, spared = make_node("killed", noise), make_node("spared", noise)
    steps = arrows(make_node("steps", noise))[: CRITIC_PLAN.rounds - 2]
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
def test_a_repeat_gets_its_reply_and_teaches_nothing(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.ask_at_once([critic_request(1), critic_request(2)])
    before = learned(node)
    node.ask_at_once([critic_request(2), critic_request(1), critic_request(2)])
    assert learned(node) == before
    refused = node.ask(other(critic_request(2)))
    assert refused == Answer(None, REFUSED)
    assert learned(node) == before


@pytest.mark.medium
def test_two_processes_asked_the_same_at_once_give_the_same_bytes(
    make_node: MakeNode,
) -> None:
    node = make_node(noise="secure")
    asked = [critic_request(round) for round in range(1, 7)]
    left, right = node.ask_at_once(asked, asked)
    assert left == right
    assert all(answer.reply is not None for answer in left or [])
    assert set(learned(node)) == {"5.state", "6.state"}
    assert node.leftovers() == set()


def test_a_folder_of_critics_that_cannot_be_written_releases_nothing_new(
    make_node: MakeNode,
) -> None:
    node = make_node()
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


def test_what_critics_learned_is_for_the_owner_alone(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.ask(critic_request(1))
    folders = [node.state / "states", *node.state.glob("states/*")]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
    [file] = node.state.glob("states/*/*")
    assert file.stat().st_mode & 0o777 == 0o600
