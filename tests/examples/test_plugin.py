"""The example package: its method's contracts, and runs of it as a third party installs it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsink.audit.plays import audit
from fedsink.clients.app import client_app
from fedsink.clients.node import close_nodes
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy_file import read_policy
from fedsink.clients.records.shard import Shard
from fedsink.commands.audit import run as run_audit
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError
from fedsink.flower_internals import become
from fedsink.privacy import JointSchedule, PrivacyPlan, RecordClip, ReproducibleKey, Stream
from fedsink.protocol.failure_codes import MALFORMED, REFUSED
from fedsink.protocol.requests import unpack_replies

from ..support.policies import limits, policy

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"
sys.path.append(str(PLUGIN))

from fedsink_plugin.answer import (  # noqa: E402
    EmbeddingRequest,
    MeanEmbeddingAnswer,
    features,
)

POINTS = """[fedsink.answers]
mean_embedding = fedsink_plugin.answer:MeanEmbeddingAnswer
[fedsink.data_sources]
rings = fedsink_plugin.rings:read
"""
VIEW = {"name": "pixel", "shape": [2]}
RINGS = {
    "name": "rings", "shape": [2], "classes": ["inner", "outer"], "nominal_records": 2000,
}  # fmt: skip
ALLOWED = {"maximum_clip_bound": 1.0, "maximum_images": 0}
SMALL = ("clients=2", "report.pictures=0", "data=rings", "strategy=mean_embedding")

Fedsink = Callable[..., subprocess.CompletedProcess[str]]


def plan_of(**values: Any) -> PrivacyPlan:
    options = {"rate": 0.5, "noise_multiplier": 2.0, "rounds": 3, "delta": 1e-5, **values}
    return PrivacyPlan(clip=RecordClip(1.0), schedule=JointSchedule(), **options)


def request_of(
    plan: PrivacyPlan | None = None, frequencies: int = 8, classes: int = 2
) -> EmbeddingRequest:
    drawn = torch.linspace(-3.0, 3.0, 2 * frequencies).reshape(frequencies, 2)
    return EmbeddingRequest(
        round=1, plan=plan or plan_of(), view=VIEW, classes=classes, frequencies=drawn, run="run"
    )


def own_policy(folder: Path, *words: str, **allow: Any) -> Path:
    """Writes the policy of a node that holds the rings."""
    path = folder / "policy.toml"
    path.write_text(
        policy(
            budget={"add-remove": limits(100.0, 1e-4)},
            mechanisms=("clipped-gaussian", *words),
            data={**RINGS, "lineage": "rings"},
            allow={**ALLOWED, **allow},
        )
    )
    return path


# The method


@pytest.mark.medium
@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(0, 1)),
        min_size=1,
        max_size=12,
    )
)
def test_one_record_moves_the_total_by_at_most_the_sensitivity(
    records: list[tuple[float, float, int]],
) -> None:
    request = request_of()
    values, labels = torch.tensor(records)[:, :2], torch.tensor(records)[:, 2].long()
    answer = MeanEmbeddingAnswer([request])
    more, fewer = (
        answer.total(request, Shard(values[kept:], labels[kept:])).total for kept in (0, 1)
    )
    assert float((more - fewer).norm()) <= request.plan.sensitivity


def test_features_estimate_the_gaussian_kernel() -> None:
    frequencies = Stream(b"key").normal(4000, 2) / 0.5
    x, y = features(torch.tensor([[0.1, 0.2], [0.5, 0.0]]).double(), frequencies)
    assert float(x @ y) == pytest.approx(float(torch.tensor(-(0.16 + 0.04) / 0.5).exp()), abs=0.05)
    assert float(x @ x) == pytest.approx(1.0)


def test_a_reply_is_the_total_with_the_plans_noise() -> None:
    """Power: two thirds and three halves of the noise are both rejected."""
    plan = plan_of(noise_multiplier=1.7)
    request = request_of(plan, frequencies=500)
    values = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    shard = Shard(values, torch.arange(40) % 2)

    class Keyed:
        def __init__(self, shard: Shard) -> None:
            self.shard = shard

        def stream(self, purpose: str, round: int, use: int) -> Stream:
            return Stream(b"key", purpose, round)

    task: Any = Keyed(shard)
    answer = MeanEmbeddingAnswer([request])
    [released] = answer.compute(task)
    sample = shard.part(plan.sampler.draw(40, task.stream("sample", 1, 0)))
    assert 10 < len(sample) < 30
    alone = request.release(answer.total(request, sample), task.stream("noise", 1, 0))
    assert torch.equal(released, alone)
    noise = (released - answer.total(request, sample).total).flatten()
    for factor, accepted in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        pvalue = stats.kstest(noise.numpy(), "norm", args=(0.0, 1.7 * factor)).pvalue
        assert pvalue > 1e-3 if accepted else pvalue < 1e-9
    empty: Any = Keyed(Shard(values[:0], torch.zeros(0, dtype=torch.int64)))
    assert MeanEmbeddingAnswer([request]).compute(empty)[0].shape == released.shape


def test_a_sample_of_all_records_serves_no_plan_of_classes() -> None:
    """A record of another class is charged for fewer rounds than it would take part in."""
    answer, data = MeanEmbeddingAnswer([request_of()]), DataSpec(**{**RINGS, "shape": (2,)})
    answer.check_data(data)
    object.__setattr__(answer.requests[0], "label", 1)
    with pytest.raises(ValueError, match="samples all records"):
        answer.check_data(data)


class Quieter(MeanEmbeddingAnswer):
    """Adds a third of the noise that its plan states."""

    def __init__(self, requests: Sequence[EmbeddingRequest]) -> None:
        super().__init__(requests)
        self.requests = [replace(use, plan=use.plan.with_noise(1 / 9)) for use in requests]


@pytest.mark.medium
def test_the_audit_proves_much_of_its_claim_and_finds_a_third_of_the_noise() -> None:
    plan = plan_of(rate=1.0, noise_multiplier=1.5)
    [_, trade_off], leaks = audit(MeanEmbeddingAnswer, plan, ReproducibleKey(0), trials=400)
    assert 0.5 * plan.epsilon() < trade_off.bound <= trade_off.claim == plan.epsilon()
    assert leaks == ()
    [_, trade_off], _ = audit(Quieter, plan, ReproducibleKey(0), trials=400)
    assert trade_off.violated
    assert trade_off.claim == plan.epsilon()


def test_the_command_audits_an_installed_answer(
    install_package: Callable[[dict[str, str], str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install_package({}, POINTS)
    keys = ["rate=1", "rounds=2", "trials=40"]
    assert run_audit(["mode=central", "answer=mean_embedding", *keys]) == 0
    assert "80 plays of one record, q = 1 " in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"refuses its canary: .*clip=record"):
        run_audit(["mode=central", "answer=mean_embedding", "clip=batch", *keys])


# A node


@pytest.fixture
def node(
    tmp_path: Path, install_package: Callable[[dict[str, str], str], None]
) -> Iterator[Callable[..., tuple[NodeSettings, Callable[[RecordDict], Message]]]]:
    """Returns settings of a node under a policy that names these words, and how to ask it."""
    install_package({}, POINTS)
    become(1, 1)

    def started(*words: str, **allow: Any) -> tuple[NodeSettings, Callable[[RecordDict], Message]]:
        close_nodes()
        settings = NodeSettings.from_policy(
            read_policy(own_policy(tmp_path, *words, **allow)), clients=1
        )
        context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})

        def ask(content: RecordDict) -> Message:
            message = Message(content, dst_node_id=1, message_type="train.mean_embedding")
            return client_app(settings)(message, context)

        return settings, ask

    yield started
    close_nodes()


@pytest.mark.medium
def test_a_node_whose_policy_names_it_answers_and_charges_the_whole_plan(
    node: Callable[..., Any],
) -> None:
    settings, ask = node("mean_embedding")
    request = request_of()
    reply = unpack_replies(ask(request.to_record()).content)[0]
    assert reply.shape == (2, 16)
    assert torch.equal(
        unpack_replies(ask(request.to_record()).content)[0], reply
    )  # the stored reply
    with sqlite3.connect(settings.ledger) as database:
        [(charged,)] = database.execute("SELECT epsilon FROM runs").fetchall()
        assert charged == pytest.approx(request.plan.epsilon())
        assert database.execute("SELECT COUNT(*) FROM claims").fetchone() == (1,)


@pytest.mark.parametrize(
    ("words", "allow"),
    [
        ((), {}),
        (("mean_embedding",), {"maximum_frequencies": 7}),
        (("mean_embedding",), {"minimum_noise_multiplier": 3.0}),
    ],
)
def test_a_node_refuses_what_its_policy_does_not_allow(
    node: Callable[..., Any], words: tuple[str, ...], allow: dict[str, Any]
) -> None:
    _, ask = node(*words, **allow)
    assert ask(request_of().to_record()).error.code == REFUSED


@pytest.mark.medium
def test_a_request_that_does_not_fit_is_malformed(node: Callable[..., Any]) -> None:
    _, ask = node("mean_embedding")
    endless = request_of()
    endless.frequencies[0] = torch.inf
    assert ask(endless.to_record()).error.code == MALFORMED
    capped = request_of(plan_of(capacity=9, nominal_records=2000))
    assert ask(capped.to_record()).error.code == MALFORMED
    assert ask(request_of(classes=3).to_record()).error.code == MALFORMED
    wide = replace(request_of(), frequencies=torch.ones(8, 3))
    assert ask(wide.to_record()).error.code == MALFORMED


# The installed package, in new processes


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of installed packages that holds only the example."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *options, str(PLUGIN)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def fedsink(site: Path, tmp_path: Path) -> Fedsink:
    """Runs `fedsink simulate` in an empty folder, with the example installed unless told."""

    def run(*arguments: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
        paths = [str(site)] * installed + [os.environ.get("PYTHONPATH", "")]
        return subprocess.run(
            [sys.executable, "-m", "fedsink", "simulate", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def finished(fedsink: Fedsink) -> Callable[..., Path]:
    """Returns the folder of a run on the rings."""

    def run(*overrides: str) -> Path:
        done = fedsink(*SMALL, *overrides)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.splitlines()[-1])

    return run


def weights(folder: Path) -> bytes:
    return (folder / "generator.safetensors").read_bytes()


@pytest.mark.slow
def test_it_learns_the_rings_at_the_stated_epsilon(finished: Callable[..., Path]) -> None:
    from fedsink.models import load, sample

    folder = finished("seed=0", "eps=10")
    stated = json.loads((folder / "privacy.json").read_text())
    assert 9.5 < stated["epsilon"] <= 10
    assert "random features" in stated["mechanism"]
    for label, radius in enumerate((0.4, 1.0)):
        points = sample(load(folder), 500, torch.full((500,), label), Stream(b"key"))
        assert float(points.norm(dim=1).median()) == pytest.approx(radius, abs=0.1)


@pytest.mark.slow
def test_clients_under_a_policy_answer_it_and_are_charged(
    finished: Callable[..., Path], fedsink: Fedsink, tmp_path: Path
) -> None:
    path = own_policy(tmp_path, "mean_embedding", maximum_frequencies=32)
    folder = finished(f"policy={path}", "rounds=6")
    stated = json.loads((folder / "privacy.json").read_text())
    [ledger] = tmp_path.rglob("*.sqlite")
    with sqlite3.connect(ledger) as database:
        charged = database.execute("SELECT epsilon FROM runs").fetchall()
    assert [epsilon for (epsilon,) in charged] == pytest.approx([stated["epsilon"]] * 2)

    refused = fedsink(*SMALL, f"policy={own_policy(tmp_path)}")
    assert refused.returncode == 1
    assert "refused" in refused.stderr, refused.stderr


@pytest.mark.slow
def test_every_engine_gives_the_same_generator(finished: Callable[..., Path]) -> None:
    six = ("seed=0", "rounds=6")
    ray, local = finished(*six, "engine=ray", "engine.actors=2"), finished(*six)
    assert weights(ray) == weights(local)


@pytest.mark.slow
def test_it_is_offered_where_names_are_listed(fedsink: Fedsink) -> None:
    groups = fedsink("--help").stdout
    assert "mean_embedding" in groups
    assert "rings" in groups
    assert "half_circle, image_folder, mnist, npz, rings, shapes." in fedsink("data=ringz").stderr
    near = fedsink(*SMALL, "data.name=ring").stderr
    assert near.endswith("Did you mean rings?\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("strategy.scale=0", "strategy.scale must be a positive number, not 0."),
        ("clip=batch", "strategy=mean_embedding has no clip=batch: leave it out."),
        ("eps=inf", "strategy=mean_embedding needs a finite eps."),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(
    fedsink: Fedsink, override: str, message: str
) -> None:
    done = fedsink(*SMALL, override)
    assert done.stderr == f"fedsink: {message}\n"
    assert done.returncode == 2


@pytest.mark.slow
def test_without_it_both_names_are_unknown(fedsink: Fedsink) -> None:
    for group, name in (("data", "rings"), ("strategy", "mean_embedding")):
        done = fedsink(f"{group}={name}", installed=False)
        assert f"There is no {group}={name}: choose one of " in done.stderr
        assert done.returncode == 2
