"""The server of a deployment, with real nodes under policies of their own, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedsink.clients.app import app as client
from fedsink.clients.node import close_nodes
from fedsink.errors import CheckpointError, ClientError, ConfigError, ModelError, PrivacyError
from fedsink.server.app import app as server
from fedsink.server.compose import stored_config
from fedsink.server.deployment import deployable, run_deployed
from fedsink.server.folder import RunFolder
from fedsink.simulation.grid import client_of, node_of
from fedsink.simulation.local import LocalGrid

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
            self._contexts[number] = Context(1, node_of(number), config, RecordDict(), {})

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


def submitted(folder: Path, *overrides: str, resume: bool = False) -> dict[str, Any]:
    return {"folder": str(folder), "overrides": json.dumps(overrides), "resume": resume}


def failure(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "failed.json").read_text())
    return read


@pytest.mark.parametrize("overrides", [CENTRAL, LOCAL], ids=["central", "ldp"])
def test_a_run_leaves_its_folder_on_the_servers_disk(
    tmp_path: Path, grid: Callable[..., Nodes], overrides: tuple[str, ...]
) -> None:
    """Through the module-level app that deploy/pyproject.toml names."""
    folder = RunFolder(tmp_path / "run")
    context = Context(1, 1, {}, RecordDict(), submitted(folder.path, *overrides))
    server(grid(), context)
    assert folder.finished
    assert not folder.failed.exists()
    assert not folder.partition.exists()  # no server knows it
    assert (folder.path / "generator.safetensors").is_file()
    assert json.loads(folder.privacy.read_text())["noise"] == "node"
    config = stored_config(folder)
    assert config["run"]["key_file"] is None
    assert config["data"]["root"] is None
    lines = [json.loads(line) for line in folder.metrics_lines.read_text().splitlines()]
    central = overrides is CENTRAL
    assert [line["round"] for line in lines] == ([10, 20, 25] if central else [1, 2, 3, 4, 5])
    for number in range(2):
        assert (tmp_path / f"node-{number}" / "state" / "ledger.sqlite").is_file()


def test_a_refusal_is_told_with_the_client_and_without_its_reason(
    tmp_path: Path, grid: Callable[..., Nodes]
) -> None:
    """Node 1 allows clip bounds up to 3."""
    folder = tmp_path / "run"
    with pytest.raises(ClientError):
        run_deployed(grid(), submitted(folder, *CENTRAL, "strategy.bound=6"))
    told = failure(folder)
    assert told["exit_code"] == 1
    assert "in rounds 1 to 10, client 1 refused the request" in told["message"]
    assert "bound" not in told["message"]


def test_a_stopped_run_goes_on_and_charges_nothing_twice(
    tmp_path: Path, grid: Callable[..., Nodes]
) -> None:
    """Node 1 is gone after the first message; with both back, the run ends as it would have."""
    folder = RunFolder(tmp_path / "run")
    nodes = grid()
    answer = nodes.execute

    def execute(messages: Sequence[Message]) -> list[Message]:
        second = messages[0].metadata.group_id == "2"
        return answer([m for m in messages if not second or client_of(m.metadata.dst_node_id) != 1])

    nodes.execute = execute  # type: ignore[method-assign]
    overrides = (*CENTRAL, "report.checkpoint_seconds=0")
    with pytest.raises(ClientError):
        run_deployed(nodes, submitted(folder.path, *overrides))
    assert "1 of 2 clients did not answer" in failure(folder.path)["message"]
    run_deployed(grid(), submitted(folder.path, resume=True))
    assert folder.finished
    assert not folder.failed.exists()
    rounds = [json.loads(line)["round"] for line in folder.metrics_lines.read_text().splitlines()]
    assert rounds == [10, 20, 25]


def test_missing_nodes_are_named(tmp_path: Path, grid: Callable[..., Nodes]) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ClientError):
        run_deployed(grid(1), submitted(folder, *CENTRAL, "engine.wait=0"))
    assert "1 of 2 nodes are connected after 0 s" in failure(folder)["message"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("eps=0",), "eps must be a finite number > 0, received 0"),
        (("seed=1",), "fedsink deploy takes no seed=1: every node draws noise of its own"),
        (("noise=secure",), "fedsink deploy takes no noise=secure: every node's policy says"),
        (
            ("noise.share=secure_aggregation",),
            "fedsink deploy takes no noise.share=secure_aggregation: nodes answer the server one",
        ),
        (("policy=x.toml",), "fedsink deploy takes no policy=x.toml"),
        (
            ("mode=central", "strategy.backend=keops"),
            "fedsink deploy takes no strategy.backend=keops: real nodes solve their problems with",
        ),
        (("resume=x",), "fedsink deploy takes no resume=x: say fedsink deploy resume=FOLDER"),
        (("data.root=x",), "takes no data.root=x: the server sees no data"),
        (
            ("data=femnist", "data.clients_file=x.csv"),
            "takes no data.clients_file=x.csv: every node's policy says which records are its own",
        ),
        (
            ("data.corrupt={kind: invert, share: 0.5}",),
            "takes no data.corrupt={'kind': 'invert', 'share': 0.5}: real nodes answer from their",
        ),
        (("study={name: debugging}",), "takes no study={'name': 'debugging'}: a study is several"),
        (("engine=local",), "fedsink deploy runs on real nodes: leave out engine=local"),
        (("engine.wait=-1",), "engine.wait must be a number of at least 0, not -1"),
        (("engine.timeout=0",), "engine.timeout must be null or a positive number"),
        (("generator.hidden=x",), "generator=dct_mlp cannot be built with the options"),
    ],
)
def test_a_bad_configuration_is_told_and_costs_no_message(
    tmp_path: Path, grid: Callable[..., Nodes], overrides: tuple[str, ...], message: str
) -> None:
    folder, nodes = tmp_path / "run", grid()
    with pytest.raises((ConfigError, PrivacyError, ModelError)):
        run_deployed(nodes, submitted(folder, *CENTRAL, *overrides))
    told = failure(folder)
    assert told["exit_code"] == 2
    assert message in told["message"]
    assert nodes.asked == []


def test_real_nodes_are_never_asked_for_the_published_form(
    tmp_path: Path, grid: Callable[..., Nodes]
) -> None:
    nodes, folder = grid(), tmp_path / "run"
    form = ("strategy=gs_wgan", "strategy.published=true", "strategy.critics=1", "clients=2")
    with pytest.raises(ConfigError, match=r"takes no strategy\.published=True: real"):
        run_deployed(nodes, submitted(folder, *form))
    assert "never answer the published form" in failure(folder)["message"]
    assert nodes.asked == []


def test_a_defect_is_told_too(tmp_path: Path, grid: Callable[..., Nodes]) -> None:
    nodes = grid()

    def broken(messages: Sequence[Message]) -> list[Message]:
        raise RuntimeError("the link is down")

    nodes.execute = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        run_deployed(nodes, submitted(tmp_path / "run", *CENTRAL))
    assert failure(tmp_path / "run") == {
        "message": "RuntimeError: the link is down.", "exit_code": 1,
    }  # fmt: skip


def test_a_folder_that_holds_a_run_is_not_overwritten_nor_one_without_resumed(
    tmp_path: Path, grid: Callable[..., Nodes]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match="is not an empty folder"):
        run_deployed(grid(), submitted(tmp_path / "run", *CENTRAL))
    with pytest.raises(CheckpointError, match=r"is not a run's configuration: 'run'"):
        run_deployed(grid(), submitted(tmp_path / "run", resume=True))
    with pytest.raises(CheckpointError, match="holds no fedsink run"):
        run_deployed(grid(), submitted(tmp_path / "other", resume=True))


def test_the_public_data_of_the_server_name_no_folder() -> None:
    config = deployable(["data=image_folder", "data.classes=[a,b]", "data.nominal_records=100"])
    assert config["data"]["root"] is None
    assert config["engine"]["name"] == "deploy"
