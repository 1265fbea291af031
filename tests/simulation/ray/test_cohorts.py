"""Questions that are repeated when actors are lost, on a fake Ray."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container
from types import SimpleNamespace
from typing import Any

import pytest

from fedsink.errors import ClientError
from fedsink.simulation.ray.ray_grid import Cohorts

Call = tuple[int, str, tuple[Any, ...]]
_ERRORS = (
    "RayActorError", "ObjectLostError", "GetTimeoutError", "RuntimeEnvSetupError", "RayTaskError",
)  # fmt: skip


class Played:
    """Fake of the parts of Ray that `Cohorts` uses; actors are numbered in order of creation."""

    def __init__(
        self,
        dying: Callable[[int], bool] = lambda number: False,  # of its first question
        stillborn: Container[int] = (),  # they die before it
        waiting: Container[int] = (),  # there is no room for them
    ) -> None:
        self.exceptions = SimpleNamespace(
            **{name: type(name, (Exception,), {}) for name in _ERRORS}
        )
        self._dying, self._stillborn, self._waiting = dying, stillborn, waiting
        self.made = 0
        self.killed: list[int] = []
        self.asked: list[Call] = []
        self.stored: list[bytes] = []

    def remote(self, actor: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._make))

    def _make(self, debug: bool) -> Any:
        number, self.made = self.made, self.made + 1

        def method(name: str) -> Any:
            return SimpleNamespace(remote=lambda *arguments: (number, name, arguments))

        methods = {name: method(name) for name in ("place", "host", "answer")}
        return SimpleNamespace(number=number, **methods)

    def put(self, said: bytes) -> bytes:
        self.stored.append(said)
        return said

    def wait(self, calls: list[Call], **_: Any) -> tuple[list[Call], list[Call]]:
        started = [call for call in calls if call[0] not in self._waiting][:1]
        return started, [call for call in calls if call not in started]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.number)

    def get(self, call: Call | list[Call], timeout: float | None) -> Any:
        if isinstance(call, list):
            return [self.get(each, timeout) for each in call]
        number, method, arguments = call
        if number in self._stillborn:
            raise self.exceptions.RayActorError
        if method != "answer":
            return "node"
        if self._dying(number):
            raise self.exceptions.RayActorError
        self.asked.append(call)
        said, work = arguments
        return [(number, pickle.loads(said), item) for item in work]


def cohorts(ray: Played, *, revivals: int = 3, inline: int = 1000) -> Cohorts:
    places: Any = SimpleNamespace(count=3, options=dict, shortage=lambda: "")
    return Cohorts(
        ray, places, lambda: pytest.fail("it is built elsewhere"), versions=None, records=None,
        secret=False, timeout=None, revive_seconds=60.0, revivals=revivals, inline=inline,
        debug=False,
    )  # fmt: skip


def test_actors_without_work_are_not_asked() -> None:
    ray = Played(lambda number: False)
    assert cohorts(ray).ask("answer", "all", [["a"], [], ["b", "c"]]) == [
        [(0, "all", "a")], [], [(2, "all", "b"), (2, "all", "c")],
    ]  # fmt: skip
    assert [number for number, *_ in ray.asked] == [0, 2]


def test_a_lost_actor_is_replaced_and_its_work_is_asked_again() -> None:
    """Only the lost actor's work: the answers of the others are kept."""
    ray = Played(lambda number: number == 1)
    of = cohorts(ray)
    assert of.ask("answer", "all", [["a"], ["b"], ["c"]]) == [
        [(0, "all", "a")], [(3, "all", "b")], [(2, "all", "c")],
    ]  # fmt: skip
    assert (ray.killed, ray.made) == ([1], 4)
    assert [actor.number for actor in of.actors] == [0, 3, 2]


@pytest.mark.medium
def test_an_actor_that_dies_at_its_start_is_replaced_while_others_wait() -> None:
    """Ray may have put it on a node that was going down."""
    ray = Played(stillborn=[1], waiting=[2, 3])
    with pytest.raises(ClientError, match=r"2 of 3 cohorts did not start within .*=60"):
        cohorts(ray).ask("answer", "all", [["a"], ["b"], ["c"]])
    assert (ray.killed, ray.made) == ([1], 4)
    ray = Played(stillborn=[0, 1])
    assert cohorts(ray).ask("answer", "all", [["a"], [], []]) == [[(3, "all", "a")], [], []]


@pytest.mark.parametrize("revivals", [0, 2])
def test_actors_that_die_every_time_end_the_run(revivals: int) -> None:
    ray = Played(lambda number: number not in (0, 2))
    with pytest.raises(ClientError, match="died again and again"):
        cohorts(ray, revivals=revivals).ask("answer", "all", [["a"], ["b"], []])
    assert ray.made == 3 + revivals


def test_a_large_question_goes_through_rays_memory_once() -> None:
    small = len(pickle.dumps("all", protocol=pickle.HIGHEST_PROTOCOL))
    for inline, stored in ((small, 0), (small - 1, 1)):
        ray = Played(lambda number: False)
        cohorts(ray, inline=inline).ask("answer", "all", [["a"], ["b"], ["c"]])
        assert len(ray.stored) == stored
