"""Compose file, unit and image of deploy/, checked without Docker and systemd."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsink.clients.owner.policy_file import read_policy
from fedsink.commands.node import _read

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def test_the_nodes_may_write_nowhere_but_to_their_state(services: dict[str, Any]) -> None:
    for name in ("node-1", "node-2"):
        node = services[name]
        assert node["read_only"] is True
        assert node["user"] == "65532:65532"
        assert node["cap_drop"] == ["ALL"]
        assert node["security_opt"] == ["no-new-privileges:true"]
        writable = [v for v in node["volumes"] if not v.endswith(":ro")]
        assert writable == [f"./{name}/state:/state"]
        assert f"./{name}/data:/data:ro" in node["volumes"]
        assert "ports" not in node


def test_the_nodes_commands_are_those_of_fedsink_node(services: dict[str, Any]) -> None:
    read = [_read(services[name]["command"]) for name in ("node-1", "node-2")]
    assert [(keys["client"], keys["clients"]) for keys in read] == [(0, 2), (1, 2)]
    for name, keys in zip(("node-1", "node-2"), read, strict=True):
        mounted = {volume.split(":")[1] for volume in services[name]["volumes"]}
        assert {str(keys[key]) for key in ("policy", "certificate", "key")} <= mounted
        assert keys["superlink"] == ("proxy", 8443)


def test_the_superlink_is_reached_through_the_proxy_alone(services: dict[str, Any]) -> None:
    file = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    assert file["networks"]["inside"] == {"internal": True}
    inside = {name for name, service in services.items() if "inside" in service["networks"]}
    assert inside == {"superlink", "proxy"}
    assert "--enable-supernode-auth" in services["superlink"]["command"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./superlink/"):
                assert (DEPLOY / source).is_file()
        if "build" in service:
            assert (DEPLOY.parent / service["build"]["dockerfile"]).is_file()


def test_the_proxy_opens_the_fleet_and_closes_the_rest() -> None:
    text = (DEPLOY / "superlink" / "proxy.conf").read_text()
    locations = dict(re.findall(r"\n  location (\S+) \{(.*?)\n  \}", text, re.DOTALL))
    assert set(locations) == {"/v1/fleet/", "/v1/control/", "/"}
    assert locations["/"].strip() == "return 404;"
    assert "if ($ssl_client_verify != SUCCESS)" in locations["/v1/control/"]
    assert "proxy_ssl_verify on;" in text


def test_the_units_command_line_is_that_of_fedsink_node() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "node" / "fedsink-node.service")
    service = unit["Service"]
    words = service["ExecStart"]
    for name, value in {"SUPERLINK": "lab.example:8443", "CLIENT": "0", "CLIENTS": "2"}.items():
        words = words.replace(f"${{{name}}}", value)
    program, command, *keys = shlex.split(words)
    assert (Path(program).name, command) == ("fedsink", "node")
    assert _read(keys)["superlink"] == ("lab.example", 8443)
    assert service["Restart"] == "on-failure"
    assert service["User"] == "fedsink"
    assert service["ProtectSystem"] == "strict"


def test_the_image_is_the_nodes_distribution_without_root() -> None:
    lines = (DEPLOY / "node" / "Dockerfile").read_text().splitlines()
    assert "USER 65532:65532" in lines
    assert 'ENTRYPOINT ["/opt/fedsink/bin/fedsink", "node"]' in lines
    assert any('"./packages/core[node,secure]"' in line for line in lines)
    core = DEPLOY.parent / "packages" / "core" / "pyproject.toml"
    assert tomllib.loads(core.read_text())["project"]["scripts"] == {
        "fedsink": "fedsink.commands.cli:main"
    }


@pytest.mark.parametrize("image", ["node", "superlink"])
def test_the_user_of_an_image_owns_its_state(image: str) -> None:
    lines = (DEPLOY / image / "Dockerfile").read_text().splitlines()
    own = lines.index("RUN install -d -m 0700 -o 65532 -g 65532 /state")
    assert own < lines.index("USER 65532:65532") < lines.index("VOLUME /state")


def test_the_pages_volumes_are_folders_that_the_images_user_owns() -> None:
    page = (DEPLOY.parent / "docs" / "node.md").read_text()
    command = page.partition("docker run ")[2].partition("```")[0]
    words = shlex.split(command.replace("\\\n", " ").replace("$PWD", "/work"))
    options = [words[at + 1] for at, word in enumerate(words) if word == "-v"]
    mounted = {inside: outside for outside, inside, *_ in (v.split(":") for v in options)}
    assert set(mounted) == {"/etc/fedsink", "/data", "/state"}
    assert all(outside.startswith("/") for outside in mounted.values())  # else a volume's name
    owned = page.partition("sudo chown -R 65532:65532 ")[2].splitlines()[0].split()
    own = {f"{mounted['/etc/fedsink']}/node-key", mounted["/state"]}
    assert {f"/work/{path}" for path in owned} == own
    keys = _read(words[words.index("fedsink-node") + 1 :])
    assert keys["superlink"] == ("lab.example", 8443)


def test_the_example_policy_can_be_read() -> None:
    policy = read_policy(DEPLOY / "node" / "policy.toml")
    assert (str(policy.state), policy.data.root) == ("/state", "/data")
