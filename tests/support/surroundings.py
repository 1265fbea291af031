"""The environment that tests run in: nothing of the user's that a test could depend on."""

from __future__ import annotations

from collections.abc import MutableMapping

# What a program of ours or a library reads. PATH, TMPDIR, LD_LIBRARY_PATH and their like stay.
_FORGOTTEN = (
    "COMP_", "FEDSINK_", "FLWR_", "GIT_", "HYDRA_", "KEOPS_", "LC_", "MKL_", "MLFLOW_", "MPL",
    "OMP_", "OPENBLAS_", "PYTHON", "RAY_", "TORCH", "XDG_",
    "BASH_ENV", "COLUMNS", "FORCE_COLOR", "LANG", "LINES", "NO_COLOR", "SOURCE_DATE_EPOCH", "TZ",
)  # fmt: skip
# The tests' own settings, and where Python finds a copy of fedsink under test.
_KEPT = ("FEDSINK_GPU", "FEDSINK_TEST_", "PYTHONPATH")
_SET = {
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_LOG_LEVEL": "WARNING",
}


def clean(environment: MutableMapping[str, str]) -> None:
    """Forgets the user's settings and states the tests' own."""
    for name in list(environment):
        if name.startswith(_FORGOTTEN) and not name.startswith(_KEPT):
            del environment[name]
    environment.update(_SET)
