"""The types that a checker finds for `import fedsink` in a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from pathlib import Path
import fedsink

run: fedsink.Run = fedsink.simulate({"strategy.rows": 20}, mode="central", eps=5, folder=Path("x"))
images, labels = run.sample(10, seed=1)
accuracy: float = run.evaluate().figures["accuracy"]["cnn"]
plan = fedsink.PrivacyPlan.solve(
    rate=0.1, clip=fedsink.RecordClip(1.0), rounds=10, eps=1.0, delta=1e-5
)
for step in plan.steps(fedsink.NoiseKey.secret()):
    step.release(generated := step.sample(10))
picture: Path = run.pictures[0]
weights = sum(p.numel() for p in run.generator.parameters())
number: int = run.folder
fedsink.simulat()
"""


@pytest.mark.slow
def test_a_script_is_checked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports",
            f"--cache-dir={tmp_path}", "--follow-imports=silent", str(script),
        ],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    wrong = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(wrong) == 3, done.stdout
    assert 'has incompatible type "Tensor"; expected "Clipped"' in wrong[0]
    assert 'expression has type "Path", variable has type "int"' in wrong[1]
    assert 'Module has no attribute "simulat"' in wrong[2]
