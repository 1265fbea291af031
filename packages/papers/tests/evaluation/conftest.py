from __future__ import annotations

from tests.results.evaluation.conftest import _one_thread, few_epochs  # noqa: F401
