from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedsink.errors import CheckpointError
from fedsink.server.checksums import FILE_NAME, note_sums, read_sums


def test_sums_are_those_of_coreutils_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text("{}")
    (tmp_path / "partition.json").write_text("never")
    note_sums(tmp_path)
    first = read_sums(tmp_path)
    assert list(first) == ["privacy.json"]
    (tmp_path / "report.html").write_text("page")
    (tmp_path / "privacy.json").write_text("changed")
    note_sums(tmp_path, ["report.html"])
    assert read_sums(tmp_path)["privacy.json"] == first["privacy.json"]
    check = ["sha256sum", "--check", FILE_NAME]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["privacy.json: FAILED", "report.html: OK"]


@pytest.mark.parametrize(
    "text",
    [
        "no sum",
        f"{'0' * 64}  ../privacy.json",
        f"{'0' * 64}  partition.json",
        f"{'0' * 64}  privacy.json\n{'1' * 64}  privacy.json",
        "\udcff",
    ],
)
def test_damaged_sums_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"is no SHA-256 of one of privacy\.json"):
        read_sums(tmp_path)
