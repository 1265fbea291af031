"""Tests of compiled code are skipped where there is no compiler, and fail where one fails."""

from __future__ import annotations

import os
import shutil

import pytest

CXX = os.environ.get("CXX") or "g++"  # compilers that PyTorch and KeOps look for

needs_compiler = pytest.mark.skipif(
    shutil.which(CXX) is None, reason=f"no C++ compiler {CXX}: install it, or name one in CXX"
)
