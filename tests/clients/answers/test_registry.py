"""Answers, generators and local mechanisms of packages: the owner's policy says which may run."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fedsink_papers.parameter_gradient.request import ParameterRequest, architecture_of
from flwr.app import Context, Message, RecordDict

from fedsink.clients.answers.privatize_once import PrivatizeOnceAnswer
from fedsink.clients.answers.registry import ANSWERS
from fedsink.clients.app import client_app
from fedsink.clients.node import Node, close_nodes
from fedsink.clients.node_cohort import NodeCohort
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy import Policy, PolicyRefusedError
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.owner.replies import ReplyStore
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError, LedgerError
from fedsink.models import GENERATORS, build
from fedsink.models.weights import flat_weights
from fedsink.protocol.dp_sinkhorn import GradientRequest
from fedsink.protocol.exchange import Content
from fedsink.protocol.failure_codes import MALFORMED, REFUSED
from fedsink.protocol.packing import pack, unpack
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest

from ...support.policies import limits, policy
from ...support.tiny import CLASSES, RECORDS, SIZE

Install = Callable[[dict[str, str], str], None]

PLUGIN = '''
"""Noised counts of the records, one release a round; what it has released so far is its state."""

from dataclasses import dataclass

import torch

from fedsink.clients.answers.base import BatchedAnswer
from fedsink.models import Mlp
from fedsink.privacy import Laplace
from fedsink.clients.owner.ledger.charge import Charge
from fedsink.protocol.packing import pack, unpack

NOISE = Laplace.from_epsilon(2.0, 2.0, 0.0)  # in each of nine rounds


@dataclass(frozen=True)
class Request:
    run: str
    round: int
    bins: int
    noised: bool


class Counts(BatchedAnswer):
    name = "counts"
    limits = {"maximum_bins": None}
    adjacency = "replace-one"
    parts = ("counts",)

    def __init__(self, requests):
        [self.request] = requests
        self.run, self.rounds = self.request.run, [(self.request.round, None)]
        self.protected, self.values = self.request.noised, self.request.bins

    @classmethod
    def read(cls, record, policy):
        try:
            return cls([Request(**unpack(record)[0])])
        except TypeError as error:
            raise ValueError(f"Malformed request: {error}.") from error

    def check_policy(self, policy):
        policy.check_limit("maximum_bins", self.request.bins, "bins")
        policy.check_budget("replace-one", 0.0)

    def check_data(self, data):
        pass

    def charge(self, *, trusted):
        event = NOISE.event
        return Charge("replace-one", {"mode": "counts"}, event, 9, 9, 0.0, lambda: 18.0)

    def compute(self, task):
        round, state = self.request.round, task.state("counts")
        before = (state.before(round) or {}).get("rounds", torch.zeros(0))
        state.put(round, {"rounds": torch.cat([before, torch.tensor([float(round)])])})
        return [self.noised_counts(task)]

    def noised_counts(self, task):
        counts = torch.bincount(task.shard.labels, minlength=self.request.bins)
        stream = task.stream("noise", self.request.round)
        return NOISE.privatize(counts[: self.request.bins].double(), stream).to(torch.float32)

    def record(self, reply):
        return pack({}, dict(reply))

    def fits(self, other):
        return self.request.bins == other.request.bins

    @classmethod
    def compute_each(cls, asked, pool, *, summed):
        each = [(some.answer, task) for some in asked for task in some.tasks(pool)]
        return torch.stack([answer.noised_counts(task)[None] for answer, task in each])


class Tiny(Mlp):
    name = "tiny"
'''
POINTS = "[fedsink.answers]\ncounts = plugin:Counts\n[fedsink.generators]\ntiny = plugin:Tiny\n"


@pytest.fixture
def install(install_package: Install) -> Iterator[Install]:
    """Installs a package; its answers and generators are forgotten afterwards."""

    def forget() -> None:
        for registry in (ANSWERS, GENERATORS):
            vars(registry).pop("_installed", None)

    def installed(files: dict[str, str], points: str) -> None:
        install_package(files, points)
        forget()

    yield installed
    forget()


@pytest.fixture
def plugin(install: Install) -> None:
    """A package with an answer and a generator."""
    install({"plugin.py": PLUGIN}, POINTS)


def owned(policy_file: Callable[..., Path], *words: str, **allow: Any) -> NodeSettings:
    """Returns settings of a node whose policy names these words, and allows more."""
    path = policy_file(mechanisms=("laplace", *words), allow=allow)
    close_nodes()
    return NodeSettings.from_policy(read_policy(path), clients=3)


def question(round: int = 1, bins: int = 3, noised: bool = True) -> RecordDict:
    return pack({"run": "run", "round": round, "bins": bins, "noised": noised}, {})


def ask(settings: NodeSettings, content: RecordDict, kind: str = "train.counts") -> Message:
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    return client_app(settings)(Message(content, dst_node_id=1, message_type=kind), context)


def counts(reply: Message) -> torch.Tensor:
    return unpack(reply.content)[1]["counts"]


def test_an_installed_answer_that_the_policy_names_is_given_and_charged(
    plugin: None, policy_file: Callable[..., Path]
) -> None:
    settings = owned(policy_file, "counts", maximum_bins=3)
    first = counts(ask(settings, question()))
    assert bool((first != first.round()).all())
    assert float((first.sum() - RECORDS).abs()) < 50  # three draws of Laplace noise of scale 1
    close_nodes()  # another process
    assert torch.equal(counts(ask(settings, question())), first)
    assert ask(settings, question(bins=2)).error.code == REFUSED  # the round is taken
    assert not torch.equal(counts(ask(settings, question(round=2))), first)
    assert settings.ledger is not None
    with sqlite3.connect(settings.ledger) as database:
        assert database.execute("SELECT epsilon FROM runs").fetchall() == [(18.0,)]
        assert database.execute("SELECT COUNT(*) FROM claims").fetchone() == (2,)


def test_one_that_the_policy_does_not_name_is_refused_and_never_imported(
    plugin: None, policy_file: Callable[..., Path]
) -> None:
    settings = owned(policy_file, "clipped-gaussian")
    assert ask(settings, question()).error.code == REFUSED
    assert not NodeCohort(settings).handles("train.counts")
    assert "plugin" not in sys.modules
    assert ANSWERS["counts"].name == "counts"  # it was there to be imported


def test_its_limits_are_keys_of_the_policy_that_names_it(
    plugin: None, policy_file: Callable[..., Path]
) -> None:
    settings = owned(policy_file, "counts", maximum_bins=2)
    assert ask(settings, question(bins=3)).error.code == REFUSED
    assert not ask(settings, question(bins=2)).has_error()
    with pytest.raises(ConfigError, match="maximum_bins is missing"):
        owned(policy_file, "counts")
    with pytest.raises(ConfigError, match="unknown key 'maximum_bins'"):
        owned(policy_file, maximum_bins=2)


def test_an_answer_without_noise_is_given_where_the_owner_says_so_alone(
    plugin: None, policy_file: Callable[..., Path], settings: NodeSettings
) -> None:
    under = owned(policy_file, "counts", maximum_bins=3)
    for node in (under, settings):
        assert ask(node, question(noised=False)).error.code == REFUSED
        close_nodes()
    assert not ask(replace(settings, unprotected=True), question(noised=False)).has_error()


def test_its_state_lies_between_the_ledgers_commit_and_the_stored_reply(
    plugin: None, policy_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = owned(policy_file, "counts", maximum_bins=3)
    assert settings.ledger is not None
    folder, seen = settings.ledger.parent, []

    def states() -> list[str]:
        return sorted(path.name for path in folder.glob("states/*/*"))

    def full(self: ReplyStore, *arguments: object) -> None:
        with sqlite3.connect(settings.ledger or "") as database:
            seen.append(database.execute("SELECT COUNT(*) FROM claims").fetchone())
        assert not list((folder / "replies").glob("*"))
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ReplyStore, "put", full)
        assert ask(settings, question()).has_error()
    assert seen == [(1,)]
    assert states() == ["1.state"]
    [path] = folder.glob("states/*/*")
    whole = path.read_bytes()
    path.write_text("half-trained")
    close_nodes()
    first = counts(ask(settings, question()))  # nothing had left: computed again, same charge
    assert path.read_bytes() == whole
    assert not ask(settings, question(round=2)).has_error()
    assert states() == ["1.state", "2.state"]
    path.unlink()
    assert torch.equal(counts(ask(settings, question())), first)  # stored: nothing is computed
    assert states() == ["2.state"]


def test_a_simulated_client_keeps_its_state_in_memory(plugin: None, settings: NodeSettings) -> None:
    answer, node = ANSWERS["counts"], Node(settings, 1)
    for round in (1, 2):
        node.reply(answer.read(question(round), None), b"")
    remembered = [Node(settings, 2), node]
    asked = answer.read(question(3), None)
    states = [
        each.task(asked, each.admit(asked, b"")).state("counts").before(3) for each in remembered
    ]
    assert states[0] is None
    assert (states[1] or {})["rounds"].tolist() == [1.0, 2.0]


def test_a_cohort_computes_installed_batched_answers_at_once(
    plugin: None, settings: NodeSettings
) -> None:
    cohort = NodeCohort(settings)
    assert cohort.handles("train.counts")
    assert cohort.handles("train.dp_sinkhorn")
    assert not cohort.handles("train.privatize_once")
    assert not cohort.handles("train.nothing")
    content = Content(None, question)
    ((_, answers),) = cohort.answers("train.counts", [content], [range(3)])
    assert answers.failures == {}
    for client, reply in zip(answers.clients, answers.replies, strict=True):
        alone = Node(settings, client).reply(ANSWERS["counts"].read(question(), None), b"")
        assert torch.equal(reply, alone["counts"][None])
    bad = Content(None, lambda: pack({"bins": 3}, {}))
    ((_, answers),) = cohort.answers("train.counts", [bad], [range(3)])
    assert answers.failures == {0: MALFORMED}


@pytest.mark.parametrize(
    "points",
    [
        "[fedsink.answers]\nlaplace = plugin:Counts\n",
        "[fedsink.answers]\nclipped-gaussian = plugin:Counts\n",
        "[fedsink.local_mechanisms]\nclipped-gaussian = plugin:Counts\n",
    ],
)
def test_no_package_can_take_a_word_that_a_policy_uses_for_something_else(
    install: Install, policy_file: Callable[..., Path], points: str
) -> None:
    """An owner who allows the central mode's Gaussian thereby allows nothing else."""
    path, word = policy_file(), points.split()[1]
    install({"plugin.py": PLUGIN}, points)
    with pytest.raises(ConfigError, match=f"called '{word}', which a policy allows for something"):
        read_policy(path)
    assert "plugin" not in sys.modules


def test_what_is_no_answer_of_its_name_is_refused(
    install: Install, policy_file: Callable[..., Path]
) -> None:
    install({"plugin.py": PLUGIN}, "[fedsink.answers]\nnumbers = plugin:Counts\n")
    with pytest.raises(ConfigError, match=r"'numbers' was installed as <class 'plugin\.Counts'>"):
        owned(policy_file, "numbers")


# Generators that a message names


@pytest.fixture
def names_it(make_request: Callable[..., GradientRequest]) -> RecordDict:
    """A message that names the generator "tiny"."""
    mlp = build("mlp", (SIZE,), CLASSES, latent_dim=2, hidden=[6], output="linear")
    asked = make_request(clip="record")
    described = architecture_of(mlp) | {"name": "tiny"}
    z = torch.zeros(len(asked.rows), 2)
    return ParameterRequest(asked, described, flat_weights(mlp).detach(), z).to_record()


def test_an_installed_generator_that_the_policy_does_not_name_is_never_imported(
    plugin: None, policy_file: Callable[..., Path], names_it: RecordDict
) -> None:
    settings = owned(policy_file, "parameter_gradient")
    assert ask(settings, names_it, "train.parameter_gradient").error.code == REFUSED
    assert "plugin" not in sys.modules
    with pytest.raises(ConfigError, match=r"generators: 'tinny' is none of biggan, .*mlp, tiny"):
        owned(policy_file, "parameter_gradient", generators=["tinny"])
    assert "plugin" not in sys.modules


def test_an_installed_generator_that_the_policy_names_is_built(
    plugin: None, policy_file: Callable[..., Path], names_it: RecordDict
) -> None:
    settings = owned(policy_file, "parameter_gradient", generators=["tiny"])
    assert not ask(settings, names_it, "train.parameter_gradient").has_error()
    assert "plugin" in sys.modules


# Local mechanisms that a package installs


MECHANISM = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsink.privacy import Laplace


@dataclass(frozen=True)
class Rounded(Laplace):
    name: ClassVar[str] = "rounded"

    def privatize(self, values, stream):
        return torch.round(super().privatize(values, stream), decimals=2)
"""
MECHANISM_POINT = "[fedsink.local_mechanisms]\nrounded = plugin:Rounded\n"


def policy_of(folder: Path, *mechanisms: str) -> Policy:
    path = folder / "policy.toml"
    path.write_text(policy(budget={"replace-one": limits(35.0)}, mechanisms=mechanisms))
    return read_policy(path)


@pytest.fixture
def request_for_it(install_package: Install) -> PrivatizeRequest:
    """A message that asks for the installed mechanism."""
    install_package({"plugin.py": MECHANISM}, MECHANISM_POINT)
    return PrivatizeRequest(LocalPlan("rounded", PointBall("l1"), 3.0), 0, 5)


def test_a_mechanism_may_run_where_the_policy_names_it_alone(
    request_for_it: PrivatizeRequest, tmp_path: Path
) -> None:
    usual = PrivatizeRequest(LocalPlan("laplace", PointBall("l1"), 3.0), 0, 5)
    for words, allowed, other in (
        (("rounded",), request_for_it, usual),
        (("laplace", "gaussian", "randomized-response"), usual, request_for_it),
    ):
        policy = policy_of(tmp_path, *words)
        PrivatizeOnceAnswer([allowed]).check_policy(policy)
        told = rf"allow\.mechanisms: the message asks for {other.plan.mechanism}"
        with pytest.raises(PolicyRefusedError, match=told):
            PrivatizeOnceAnswer([other]).check_policy(policy)


def test_a_mechanism_that_the_policy_does_not_name_is_never_imported(
    install_package: Install, tmp_path: Path
) -> None:
    install_package({"plugin.py": MECHANISM}, MECHANISM_POINT)
    known = LocalPlan("laplace", PointBall("l1"), 3.0).to_dict()
    asked = {"run": "run", "plan": known | {"mechanism": "rounded"}, "chunk": 0, "chunk_size": 5}
    with pytest.raises(PolicyRefusedError, match="the message asks for rounded"):
        PrivatizeOnceAnswer.read(pack(asked, {}), policy_of(tmp_path, "laplace"))
    assert "plugin" not in sys.modules
    PrivatizeOnceAnswer.read(pack(asked, {}), policy_of(tmp_path, "rounded"))
    assert "plugin" in sys.modules


def test_a_policy_cannot_name_what_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'rounded' is none of clipped-gaussian, .* laplace"):
        policy_of(tmp_path, "rounded")
