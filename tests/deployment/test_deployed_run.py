"""The server of a deployment, with real nodes, each under its own policy, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedsink.clients.app import app as client
from fedsink.clients.node import close_nodes
from fedsink.clients.owner.ledger.account_report import report
from fedsink.clients.owner.ledger.database import Database
from fedsink.commands.ledger import run as owner_ledger
from fedsink.conf.acting import compose_config
from fedsink.deployment.deployed_run import app as server
from fedsink.deployment.deployed_run import deployable, run_deployed
from fedsink.deployment.results import Receiver
from fedsink.deployment.signing_grid import SigningGrid
from fedsink.errors import (
    CheckpointError,
    ClientError,
    ConfigError,
    ModelError,
    PrivacyError,
    TransferError,
)
from fedsink.files import write_atomic
from fedsink.protocol.signing import NodeIdentityKey
from fedsink.results.verification import SIGNED, verdict_on
from fedsink.server import checkpoint
from fedsink.server.folder import RunFolder, stored_config
from fedsink.simulation.grid import client_of, node_of
from fedsink.simulation.simulated_run import start
from fedsink.simulation.virtual_clients import LocalGrid

from ..support.policies import DIGITS, limits, policy

CENTRAL = ("clients=2", "rounds=25", "eps=5", "strategy.uses_per_message=10", "report.pictures=0")
LOCAL = ("mode=ldp", "clients=2", "rounds=5", "eps=20", "report.pictures=0")


def policy_of(number: int) -> str:
    """The policy of a node that holds a part of the digits."""
    return policy(
        budget={"add-remove": limits(10.0), "replace-one": limits(25.0)},
        data=DIGITS | {"lineage": f"ward-{number}"},
        allow={"maximum_clip_bound": 10.0 - 7.0 * number, "maximum_images": 1000},
    )


class Nodes(LocalGrid):
    """Two nodes, each with its own policy file, as `--node-config` would name it."""

    def __init__(self, folder: Path, connected: int = 2) -> None:
        super().__init__(client, connected)
        self.asked: list[str] = []
        for number in range(connected):
            path = folder / f"node-{number}" / "policy.toml"
            if not path.exists():
                path.parent.mkdir()
                path.write_text(policy_of(number))
            config: dict[str, Any] = {
                "policy": str(path), "partition-id": number, "num-partitions": 2,
            }  # fmt: skip
            self._cohort._contexts[number] = Context(1, node_of(number), config, RecordDict(), {})

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        self.asked += [message.metadata.message_type for message in messages]
        return super().execute(messages)


@pytest.fixture
def grid(tmp_path: Path) -> Callable[..., Nodes]:
    """Makes the nodes; each call is new processes over the same disks."""

    def make(connected: int = 2) -> Nodes:
        close_nodes()
        return Nodes(tmp_path, connected)

    return make


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSINK_STATE", str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Folder in which the server keeps the run "run"."""
    return RunFolder(tmp_path / "runs" / "run")


def submitted(*overrides: str, action: str = "run", name: str = "run") -> dict[str, Any]:
    config = deployable(overrides) if action == "run" else {}
    return {"name": name, "action": action, "config": json.dumps(config)}


class Submitter:
    """Reads the log of a run, and nothing of the server's disk."""

    def __init__(self) -> None:
        self._receiver = Receiver()

    def __call__(self, line: str) -> None:
        assert self._receiver.take(line)

    @property
    def files(self) -> dict[str, bytes]:
        files, failure = self._receiver.results()
        assert failure is None
        return files

    @property
    def failure(self) -> dict[str, Any]:
        files, failure = self._receiver.results()
        assert failure is not None
        assert files == {}
        return failure

    def unpack(self, folder: Path) -> None:
        for name, content in self.files.items():
            write_atomic(folder / name, content)


def failed(nodes: Nodes, config: dict[str, Any], *errors: type[Exception]) -> dict[str, Any]:
    """Runs what ends in one of these errors; returns what the submitter is told."""
    submitter = Submitter()
    with pytest.raises(errors):
        run_deployed(nodes, config, submitter)
    return submitter.failure


@pytest.mark.medium
@pytest.mark.parametrize("overrides", [CENTRAL, LOCAL], ids=["central", "ldp"])
def test_a_run_leaves_its_folder_at_the_server_and_its_results_in_the_log(
    tmp_path: Path, folder: RunFolder, grid: Callable[..., Nodes], overrides: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Through the module-level app that deploy/pyproject.toml names."""
    context = Context(1, 1, {}, RecordDict(), submitted(*overrides))
    server(grid(), context)
    submitter = Submitter()
    for line in capsys.readouterr().out.splitlines():
        submitter(line)
    submitter.unpack(tmp_path / "here")
    for path in (tmp_path / "here").rglob("*"):
        if path.is_file():
            assert (
                path.read_bytes()
                == (folder.path / path.relative_to(tmp_path / "here")).read_bytes()
            )
    of_submitter = RunFolder(tmp_path / "here")
    assert not of_submitter.checkpoint.exists()
    assert not folder.failed.exists()
    assert not folder.partition.exists()  # no server knows it
    for each in (folder, of_submitter):
        assert each.finished
        assert (each.path / "generator.safetensors").is_file()
        assert json.loads(each.privacy.read_text())["noise"] == "node"
        config = stored_config(each)
        assert config["run"]["key_file"] is None
        assert config["data"]["root"] is None
    lines = [json.loads(line) for line in folder.metrics_lines.read_text().splitlines()]
    central = overrides is CENTRAL
    assert [line["round"] for line in lines] == ([10, 20, 25] if central else [1, 2, 3, 4, 5])
    for number in range(2):
        assert (tmp_path / f"node-{number}" / "state" / "ledger.sqlite").is_file()
    keys = {
        NodeIdentityKey.at(tmp_path / f"node-{number}" / "state").shown: f"ward {number}"
        for number in range(2)
    }
    verdict = verdict_on(of_submitter.path, keys)
    assert (verdict.verdict, verdict.reasons) == (SIGNED, [])
    assert [node["name"] for node in verdict.nodes] == ["ward 0", "ward 1"]
    assert [node["epsilon"] for node in verdict.nodes] == [verdict.promise["epsilon"]] * 2
    assert [node["rounds"] for node in verdict.nodes] == [25 if central else 1] * 2
    assert verdict.promise["run"] == stored_config(folder)["run"]["name"]
    assert "ward" not in (of_submitter.path / "nodes.json").read_text()  # the owners' own names
    for number in range(2):  # what its owner prints is what the server got
        policy = tmp_path / f"node-{number}" / "policy.toml"
        run = f"run={verdict.promise['run']}"
        owner_ledger(["statement", f"policy={policy}", run, f"client={number}", "clients=2"])
        entry = json.loads(capsys.readouterr().out)
        assert entry == json.loads((of_submitter.path / "nodes.json").read_text())["nodes"][number]


def test_a_server_gets_no_statement_before_the_run(
    tmp_path: Path, folder: RunFolder, grid: Callable[..., Nodes]
) -> None:
    """It could show it afterwards for a node that was charged."""
    early = SigningGrid(grid(), tmp_path / "receipts.json", None)
    assert early.collect("run", everybody=True) == []
    assert list(early._statements.values()) == []
    assert (tmp_path / "receipts.json").is_file()  # the nodes have answered


@pytest.mark.medium
def test_a_run_starts_from_public_weights_that_lie_at_the_server(
    tmp_path: Path, folder: RunFolder, grid: Callable[..., Nodes]
) -> None:
    trained = start(
        compose_config([
            "public=true", "data.name=glyphs", "data.nominal_records=20000", "eps=inf", "rounds=2",
            "engine=local", "seed=0",
        ]),
        tmp_path / "trained",
    )  # fmt: skip
    (tmp_path / "starts").mkdir()
    trained.rename(tmp_path / "starts" / "glyphs-1")
    submitter = Submitter()
    run_deployed(grid(), submitted(*CENTRAL, "start=glyphs-1"), submitter)
    stated = json.loads(folder.privacy.read_text())["start"]
    of_start = json.loads((tmp_path / "starts" / "glyphs-1" / "privacy.json").read_text())
    assert stated.items() >= of_start["public"].items()
    assert (folder.path / "start" / "generator.safetensors").is_file()
    submitter.unpack(tmp_path / "here")
    verdict = verdict_on(tmp_path / "here")
    assert verdict.reasons == []


@pytest.mark.medium
def test_a_private_start_at_the_server_is_counted_and_nodes_add_both_up(
    tmp_path: Path, folder: RunFolder, grid: Callable[..., Nodes]
) -> None:
    run_deployed(grid(), submitted(*CENTRAL, "eps=2"), Submitter())
    (tmp_path / "starts").mkdir()
    folder.path.rename(tmp_path / "starts" / "first")
    submitter = Submitter()
    run_deployed(grid(), submitted(*CENTRAL, "start=first"), submitter)
    submitter.unpack(tmp_path / "here")
    stated = json.loads((tmp_path / "here" / "privacy.json").read_text())
    assert 4.98 < stated["epsilon"] <= 5.0
    first, second = stated["start"]["epsilons"]
    assert first == pytest.approx(2.0, abs=0.01)
    verdict = verdict_on(tmp_path / "here")
    assert (verdict.reasons, verdict.starts) == ([], ["the same records by dp_sinkhorn"])
    assert [node["epsilon"] for node in verdict.nodes] == [pytest.approx(second)] * 2
    for number in range(2):
        database = Database(tmp_path / f"node-{number}" / "state" / "ledger.sqlite", writable=False)
        [account] = report(database)
        assert account.spent_epsilon == pytest.approx(first + second)
        database.close()


@pytest.mark.medium
def test_a_log_stays_at_the_server(folder: RunFolder, grid: Callable[..., Nodes]) -> None:
    submitter = Submitter()
    run_deployed(grid(), submitted(*CENTRAL, "log=tensorboard"), submitter)
    assert list((folder.path / "tensorboard").iterdir())
    assert not [name for name in submitter.files if "tensorboard" in name]


@pytest.mark.medium
def test_a_logger_without_its_package_is_told_by_the_server_alone(
    folder: RunFolder, grid: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsink.reporting.loggers.find_spec", lambda name: None)
    nodes = grid()
    told = failed(nodes, submitted(*CENTRAL, "log=mlflow"), ConfigError)["message"]
    assert not folder.path.exists()
    assert nodes.asked == []
    assert "log=mlflow needs the package mlflow" in told
    assert "pip install mlflow" in told


@pytest.mark.medium
def test_a_refusal_is_told_with_the_client_and_without_its_reason(
    folder: RunFolder, grid: Callable[..., Nodes]
) -> None:
    """Node 1 allows clip bounds up to 3."""
    told = failed(grid(), submitted(*CENTRAL, "strategy.bound=6"), ClientError)
    assert told["exit_code"] == 1
    assert "in rounds 1 to 10, client 1 refused the request" in told["message"]
    assert "bound" not in told["message"]
    assert json.loads(folder.failed.read_text()) == told


@pytest.mark.medium
def test_a_stopped_run_goes_on_and_charges_nothing_twice(
    folder: RunFolder, grid: Callable[..., Nodes]
) -> None:
    """Node 1 is gone after the first message; with both back, the run ends as it would have."""
    nodes = grid()
    answer = nodes.execute

    def execute(messages: Sequence[Message]) -> list[Message]:
        second = messages[0].metadata.group_id == "2"
        return answer([m for m in messages if not second or client_of(m.metadata.dst_node_id) != 1])

    nodes.execute = execute  # type: ignore[method-assign]
    told = failed(nodes, submitted(*CENTRAL, "engine.timeout=0.5"), ClientError)["message"]
    assert checkpoint.load(folder.checkpoint)[1]["round"] == 10  # made when the round failed
    assert "1 of 2 clients did not answer" in told
    told = failed(grid(), submitted(action="fetch"), ClientError)["message"]
    assert "The run run has not ended (While computing gradients" in told
    assert told.endswith("fedsink deploy app=… superlink=… resume=run.")
    for action in ("resume", "fetch", "resume"):  # a finished run has its results to give again
        nodes, submitter = grid(), Submitter()
        run_deployed(nodes, submitted(action=action), submitter)
        assert "generator.safetensors" in submitter.files
    assert nodes.asked == []
    assert folder.finished
    assert not folder.failed.exists()
    signed = folder.nodes.read_bytes()
    folder.nodes.unlink()  # as a kill after the last round leaves it
    nodes = grid()
    run_deployed(nodes, submitted(action="resume"), Submitter())
    assert set(nodes.asked) == {"query.identity"}
    assert folder.nodes.read_bytes() == signed
    rounds = [json.loads(line)["round"] for line in folder.metrics_lines.read_text().splitlines()]
    assert rounds == [10, 20, 25]


@pytest.mark.medium
@pytest.mark.quick("central")
@pytest.mark.parametrize("overrides", [CENTRAL, LOCAL], ids=["central", "ldp"])
def test_a_run_with_a_quorum_ends_without_an_absent_node(
    tmp_path: Path, folder: RunFolder, grid: Callable[..., Nodes], overrides: tuple[str, ...]
) -> None:
    """ε of a node equals privacy.json's and its ledger's, whether or not it answered in time."""
    nodes = grid()
    answer = nodes.execute

    def execute(messages: Sequence[Message]) -> list[Message]:
        late = messages[0].metadata.group_id in ("0", "2")
        return [
            reply
            for reply in answer(messages)  # it is charged, and its reply is lost
            if not (late and client_of(reply.metadata.src_node_id) == 1)
        ]

    nodes.execute = execute  # type: ignore[method-assign]
    submitter = Submitter()
    more = ("strategy.quorum=0.5", "engine.round_timeout=0.3")
    run_deployed(nodes, submitted(*overrides, *more), submitter)
    files = submitter.files
    stated = json.loads(files["privacy.json"])
    central = overrides is CENTRAL
    assert stated["participation"]["missed"] == [{"client": 1, "messages": 1}]
    lines = [json.loads(line) for line in files["metrics.jsonl"].decode().splitlines()]
    absent = [line["round"] for line in lines if line.get("absent") == [1]]
    assert absent == ([20] if central else [1])
    assert [line["round"] for line in lines if "mean_noise_std" in line] == absent * central
    for number in range(2):
        database = Database(tmp_path / f"node-{number}" / "state" / "ledger.sqlite", writable=False)
        account = report(database)[0]
        assert account.adjacency == ("add-remove" if central else "replace-one")
        (charged,) = account.runs
        epsilon = stated["clients"][number]["epsilon"] if central else stated["epsilon"]
        assert charged.epsilon is not None
        assert account.epsilon is not None
        assert epsilon == pytest.approx(charged.epsilon, rel=1e-6)
        assert charged.epsilon <= account.epsilon
        assert charged.claimed == charged.rounds  # all of them were answered, in time or not
        database.close()


@pytest.mark.medium
def test_results_that_are_too_large_for_a_log_are_named(
    folder: RunFolder, grid: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsink.deployment.results.CHUNK", 10_000)
    monkeypatch.setattr("fedsink.deployment.results.MOST_FRAMES", 1)
    told = failed(grid(), submitted(*LOCAL), TransferError)["message"]
    assert "are more than the 10000 that one transfer may hold" in told
    assert folder.finished


@pytest.mark.medium
def test_missing_nodes_are_named(grid: Callable[..., Nodes]) -> None:
    told = failed(grid(1), submitted(*CENTRAL, "engine.wait=0"), ClientError)["message"]
    assert "1 of 2 clients are connected after 0 s" in told


def refused(folder: RunFolder, nodes: Nodes, overrides: Sequence[str], message: str) -> None:
    composed = compose_config(["engine=deploy", "data.root=null", *overrides])
    config = {"name": "run", "action": "run", "config": json.dumps(composed)}
    told = failed(nodes, config, ConfigError, PrivacyError, ModelError)
    assert told["exit_code"] == 2
    assert message in told["message"]
    assert nodes.asked == []
    assert not folder.path.exists()


@pytest.mark.medium
@pytest.mark.quick("overrides[0-4]-*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("eps=0",), "eps must be a finite number > 0, received 0"),
        (("seed=1",), "fedsink deploy takes no seed=1: every node draws its own noise"),
        (("noise=secure",), "fedsink deploy takes no noise=secure: every node's policy says"),
        (
            ("noise.share=secure_aggregation",),
            "needs two: say strategy.schedule=joint, or clients=20 or more (30 on real nodes)",
        ),
        (
            ("noise.share=secure_aggregation", "clients=29"),
            "of fewer than 3 clients, and clients=29 are asked in 10 parts: say strategy.schedule="
            "joint, or clients=30 or more",
        ),
        (("policy=x.toml",), "fedsink deploy takes no policy=x.toml"),
        (
            ("mode=central", "strategy.backend=keops"),
            "deploy takes no strategy.backend=keops: real nodes solve their problems only with",
        ),
        (("resume=x",), "fedsink deploy takes no resume=x: say fedsink deploy resume=NAME"),
        (("data.root=x",), "takes no data.root=x: the server sees no data"),
        (
            ("data=femnist", "data.clients_file=x.csv"),
            "takes no data.clients_file=x.csv: every node's policy says which records are its own",
        ),
        (("public=true",), "fedsink deploy takes no public=True: what nodes hold is not public"),
        (("start=../elsewhere",), "A run's name is 1 to 100 of A-Z a-z 0-9"),
        (("start=absent",), "starts/absent has no readable privacy.json"),
        (("engine=local",), "fedsink deploy runs on real nodes: leave out engine="),
        (("engine.ask_again=0",), "engine.ask_again must be a positive number, not 0"),
        (("engine.round_timeout=0",), "engine.round_timeout must be null or a positive number"),
        (("strategy.quorum=1.5",), "strategy.quorum is null (all), a whole number of at least 1"),
        (("strategy.quorum=3",), "strategy.quorum=3 is more than clients=2"),
        (("engine.wait=-1",), "engine.wait must be a number of at least 0, not -1"),
        (("engine.timeout=0",), "engine.timeout must be null or a positive number"),
        (("generator.hidden=x",), "dct_mlp needs whole sizes from 1 to"),
    ],
)
def test_a_bad_configuration_is_told_and_costs_no_message(
    folder: RunFolder, grid: Callable[..., Nodes], overrides: tuple[str, ...], message: str
) -> None:
    """The server trusts no submitter to have checked the configuration."""
    refused(folder, grid(), (*CENTRAL, *overrides), message)


@pytest.mark.medium
def test_real_nodes_are_never_asked_for_the_published_form(
    folder: RunFolder, grid: Callable[..., Nodes]
) -> None:
    form = ("strategy=gs_wgan", "strategy.published=true", "strategy.critics=1", "clients=2")
    why = "takes no strategy.published=True: real nodes never answer the published form"
    refused(folder, grid(), form, why)


@pytest.mark.medium
@pytest.mark.quick("changed[027]-*")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "../../tmp/run"}, "A run's name is 1 to 100 of"),
        ({"name": "/tmp/run"}, "A run's name is 1 to 100 of"),
        ({"action": "delete"}, "action is run, resume or fetch, not 'delete'"),
        ({"config": "{"}, "The submitted text is no configuration"),
        ({"config": "[]"}, "The submitted text is no configuration"),
        ({"config": '{"noise": 3}'}, "The submitted text is no configuration"),
        ({"config": '{"mode": "${oc.env:HOME}"}'}, "it holds no '${oc.env:HOME}'"),
        ({"action": "fetch"}, "The server holds no run run"),
        ({"action": "resume"}, "The server holds no run run"),
        ({"config": r'{"mode": "\u0024{oc.env:HOME}"}'}, "it holds no '${oc.env:HOME}'"),
        ({"config": r'{"a": [{"b": ["\u0024\u007boc.env:HOME}"]}]}'}, "it holds no '${oc.env:"),
        ({"config": r'{"a": {"\u0024{oc.env:HOME}": 1}}'}, "it holds no '${oc.env:HOME}'"),
    ],
)
def test_what_no_submitter_of_fedsink_sends_is_refused_and_leaves_nothing(
    tmp_path: Path, grid: Callable[..., Nodes], changed: dict[str, str], message: str
) -> None:
    nodes = grid()
    told = failed(nodes, submitted(*CENTRAL) | changed, ConfigError, CheckpointError)
    assert message in told["message"]
    assert nodes.asked == []
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert {name for name in left if "node-" not in name} <= {"runs", "locks", "locks/run"}


@pytest.mark.medium
def test_a_defect_is_told_too(folder: RunFolder, grid: Callable[..., Nodes]) -> None:
    nodes = grid()

    def broken(messages: Sequence[Message]) -> list[Message]:
        raise RuntimeError("the link is down")

    nodes.execute = broken  # type: ignore[method-assign]
    told = failed(nodes, submitted(*CENTRAL), RuntimeError)
    assert told == {"message": "RuntimeError: the link is down.", "exit_code": 1}


@pytest.mark.medium
def test_a_name_that_is_taken_is_not_overwritten(
    folder: RunFolder, grid: Callable[..., Nodes]
) -> None:
    folder.path.mkdir(parents=True)
    folder.path.parent.chmod(0o700)
    folder.config.write_text("a: 1\n")
    told = failed(grid(), submitted(*CENTRAL), ConfigError)["message"]
    assert "The server holds a run run already" in told
    told = failed(grid(), submitted(action="resume"), CheckpointError)["message"]
    assert "is not a run's configuration: 'run'" in told
    assert [path.name for path in folder.path.iterdir()] == ["config.yaml"]


@pytest.mark.medium
def test_the_public_data_of_the_server_name_no_folder() -> None:
    config = deployable(["data=image_folder", "data.classes=[a,b]", "data.nominal_records=100"])
    assert config["data"]["root"] is None
    assert config["engine"]["name"] == "deploy"


def test_a_simulations_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="runs on real nodes: leave out engine=local"):
        deployable(["engine=local"])
