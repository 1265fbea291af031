"""A local mechanism that a package installs: the owner's policy decides whether it may run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsink.clients.policy import Policy, PolicyRefusedError
from fedsink.clients.policy_file import read_policy
from fedsink.clients.privatize_once import PrivatizeOnceAnswer
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.protocol.packing import pack
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeRequest

from ..support.policies import limits, policy

Install = Callable[[dict[str, str], str], None]

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsink.privacy import LaplaceMechanism


@dataclass(frozen=True)
class Rounded(LaplaceMechanism):
    name: ClassVar[str] = "rounded"

    def privatize(self, values, stream):
        return torch.round(super().privatize(values, stream), decimals=2)
"""
POINT = "[fedsink.local_mechanisms]\nrounded = plugin:Rounded\n"


def _policy(folder: Path, *mechanisms: str) -> Policy:
    path = folder / "policy.toml"
    path.write_text(policy(budget={"replace-one": limits(35.0)}, mechanisms=mechanisms))
    return read_policy(path)


@pytest.fixture
def request_for_it(install_package: Install) -> PrivatizeRequest:
    """A message that asks for the installed mechanism."""
    install_package({"plugin.py": PLUGIN}, POINT)
    return PrivatizeRequest(LocalPlan("rounded", PointBall("l1"), 3.0), 0, 5)


def test_a_policy_that_does_not_name_it_refuses_it(
    request_for_it: PrivatizeRequest, tmp_path: Path
) -> None:
    policy = _policy(tmp_path, "laplace", "gaussian", "randomized-response")
    with pytest.raises(
        PolicyRefusedError, match=r"allow\.mechanisms: the message asks for rounded"
    ):
        PrivatizeOnceAnswer([request_for_it]).check_policy(policy)


def test_a_mechanism_that_the_policy_does_not_name_is_never_imported(
    install_package: Install, tmp_path: Path
) -> None:
    install_package({"plugin.py": PLUGIN}, POINT)
    known = LocalPlan("laplace", PointBall("l1"), 3.0).to_dict()
    asked = {"run": "run", "plan": known | {"mechanism": "rounded"}, "chunk": 0, "chunk_size": 5}
    with pytest.raises(PolicyRefusedError, match="the message asks for rounded"):
        PrivatizeOnceAnswer.read(pack(asked, {}), _policy(tmp_path, "laplace"))
    assert "plugin" not in sys.modules
    PrivatizeOnceAnswer.read(pack(asked, {}), _policy(tmp_path, "rounded"))
    assert "plugin" in sys.modules


def test_a_policy_that_names_it_allows_it(request_for_it: PrivatizeRequest, tmp_path: Path) -> None:
    policy = _policy(tmp_path, "rounded")
    PrivatizeOnceAnswer([request_for_it]).check_policy(policy)
    other = PrivatizeOnceAnswer(
        [PrivatizeRequest(LocalPlan("laplace", PointBall("l1"), 3.0), 0, 5)]
    )
    with pytest.raises(PolicyRefusedError, match="the message asks for laplace"):
        other.check_policy(policy)


def test_a_policy_cannot_name_what_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'rounded' is none of clipped-gaussian, .* laplace, gau"
    ):
        _policy(tmp_path, "rounded")


def test_no_package_can_take_a_name_that_a_policy_uses_for_something_else(
    install_package: Install, tmp_path: Path
) -> None:
    """An owner who allows the central mode's Gaussian thereby allows no other mechanism."""
    point = POINT.replace("rounded =", "clipped-gaussian =")
    install_package({"plugin.py": PLUGIN.replace('"rounded"', '"clipped-gaussian"')}, point)
    with pytest.raises(ConfigError, match="mechanism is called 'clipped-gaussian', which a policy"):
        _policy(tmp_path, "laplace")
