from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import sys
import fedsink.models, fedsink.data, fedsink.data.views, fedsink.data.maps
heavy = ("flwr", "ray", "hydra", "opacus", "sklearn", "torchvision", "matplotlib", "PIL")
private = ("fedsink.data.sources", "fedsink.data.partition")
print([m for m in heavy + private if m in sys.modules])
import fedsink.data.sources
print([m for m in heavy if m in sys.modules])
"""


@pytest.mark.slow
def test_importing_is_light_and_the_public_half_never_reads_records() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["[]", "[]"]
