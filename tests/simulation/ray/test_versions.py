"""What a node of a cluster must run."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

import fedsink
from fedsink.errors import ClientError
from fedsink.protocol.packing import PROTOCOL_VERSION
from fedsink.simulation.ray.versions import refuse_others, versions


def test_the_versions_of_fedsink_its_protocol_and_torch_are_stated() -> None:
    stated = versions()
    assert stated["fedsink"] == fedsink.__version__
    assert stated["fedsink's protocol"] == str(PROTOCOL_VERSION)
    assert version("torch").startswith(stated["torch"])
    assert "+" not in stated["torch"]


def test_a_package_that_adds_to_what_clients_do_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, group in (("answering", "answers"), ("strategic", "strategies")):
        installed = tmp_path / f"{name}-1.5.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Name: {name}\nVersion: 1.5\n")
        (installed / "entry_points.txt").write_text(f"[fedsink.{group}]\nx = {name}:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stated = versions()
    assert stated["answering"] == "1.5"
    assert "strategic" not in stated  # it is the driver's alone


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"torch": "2.8.0", "p": "1"}, r"^N .* has torch 2\.8\.0, and the driver has 2\.9\.0"),
        ({"torch": "2.9.0"}, r"^N of the Ray cluster has p none, and the driver has 1: install"),
    ],
)
def test_another_version_or_none_is_refused(there: dict[str, str], told: str) -> None:
    here = {"torch": "2.9.0", "p": "1"}
    refuse_others("N", here, {**here, "more": "1"})
    with pytest.raises(ClientError, match=told):
        refuse_others("N", here, there)
