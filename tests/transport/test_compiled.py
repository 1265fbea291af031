from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedsink.errors import ConfigError
from fedsink.transport import L1, AnnealedSolver, Mixed, compiled, costs, transport_gradient
from fedsink.transport.compiled import Kernel, fits

from ..support.clouds import cloud
from ..support.compiler import needs_compiler


def double(x: Tensor) -> Tensor:
    return 2.0 * x


def test_zero_never_compiles_one_at_once_and_auto_after_the_work_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDSINK_COMPILE", "0")
    assert not Kernel(double).wanted(1e9)
    monkeypatch.setenv("FEDSINK_COMPILE", "1")
    assert Kernel(double).wanted(0.0)
    monkeypatch.delenv("FEDSINK_COMPILE")
    kernel = Kernel(double)
    calls = [kernel.wanted(compiled._WORTH_SECONDS / 4) for _ in range(6)]
    assert calls == [False] * 4 + [True] * 2


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSINK_COMPILE", "yes")
    with pytest.raises(ConfigError, match='FEDSINK_COMPILE must be 0, 1 or auto, got "yes"'):
        L1()(cloud(3, 2, dtype=torch.float32), cloud(4, 2, dtype=torch.float32))


@pytest.mark.medium
def test_a_kernel_that_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSINK_COMPILE", "1")

    def broken(x: Tensor) -> Tensor:
        raise RuntimeError(f"not for {x.shape}")

    kernel = Kernel(broken)
    assert kernel.run(cloud(2, 2, dtype=torch.float32)) is None
    assert not kernel.wanted(1e9)


def test_what_fits() -> None:
    x = cloud(3, 2, dtype=torch.float32)
    assert fits(x)
    assert not fits(x, cloud(1, 2, dtype=torch.float32))
    assert not fits(x, cloud(0, 2, dtype=torch.float32))
    assert not fits(x.clone().requires_grad_())
    with torch.no_grad():
        assert fits(x.clone().requires_grad_())


# Everything that has a compiled twin; run in a fresh process, with a compiler or without.
PROGRAM = """
import sys, torch
from fedsink.transport import *
from fedsink.transport import annealed, costs
g = torch.Generator().manual_seed(0)
out = []
for dtype in (torch.float32, torch.float64):
    for n, m in ((7, 9), (8, 8), (5, 11)):
        x, y = (torch.randn(k, 6, generator=g, dtype=dtype) for k in (n, m))
        batch = torch.randn(3, m, 6, generator=g, dtype=dtype)
        plan = torch.rand(n, m, generator=g, dtype=dtype)
        out += [L1()(x, y), Mixed(0.3)(x, batch), L1().gradient(x, y, plan)]
        wide = Mixed(1.0)(x, y.expand(2, m, 6))
        assert wide.shape == (2, n, m)
        for solver in (AnnealedSolver(), fixed_solver("annealed", largest_cost=1e3, diameter=9.0)):
            for target in (y, batch):
                log_b = torch.full((m,), -torch.tensor(m - 1.0).log(), dtype=dtype)
                log_b[2] = -torch.inf
                result = transport_gradient(x, target, Mixed(1.0), 0.1, log_b=log_b, solver=solver)
                out += [result.value, result.gradient, result.solution.f_before]
huge = torch.full((3, 6), torch.finfo(torch.float32).max / 4)
out += [L1()(huge, -huge), Mixed(1.0)(huge, -huge)]
failed = [k._failed for k in (costs._l1, costs._mixed, costs._signs, annealed._update)]
torch.save((out, failed), sys.argv[1])
"""


def results(folder: Path, **environment: str) -> tuple[list[Tensor], list[bool]]:
    target = folder / "results.pt"
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    subprocess.run([sys.executable, "-c", PROGRAM, str(target)], env=env, check=True, timeout=500)
    loaded: tuple[list[Tensor], list[bool]] = torch.load(target)
    return loaded


def agree(ours: list[Tensor], expected: list[Tensor]) -> None:
    for found, wanted in zip(ours, expected, strict=True):
        tight = {"rtol": 1e-9, "atol": 1e-9} if found.dtype == torch.float64 else {}
        torch.testing.assert_close(found, wanted, **(tight or {"rtol": 2e-4, "atol": 2e-4}))


@pytest.mark.slow
def test_without_a_compiler_the_results_are_the_eager_ones(tmp_path: Path) -> None:
    expected, _ = results(tmp_path, FEDSINK_COMPILE="0")
    ours, failed = results(
        tmp_path, FEDSINK_COMPILE="1", PATH="", CXX="/nonexistent/c++",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "empty"),
    )  # fmt: skip
    assert all(failed)
    for found, wanted in zip(ours, expected, strict=True):
        assert torch.equal(found, wanted)


@needs_compiler
@pytest.mark.slow
def test_compiled_results_are_the_eager_ones(tmp_path: Path) -> None:
    expected, _ = results(tmp_path, FEDSINK_COMPILE="0")
    ours, failed = results(tmp_path, FEDSINK_COMPILE="1")
    assert not any(failed)
    agree(ours, expected)


def test_switching_does_not_look_at_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSINK_COMPILE", raising=False)

    def counted(y: Tensor) -> float:
        before = costs._mixed._seconds
        transport_gradient(
            cloud(4, 3, dtype=torch.float32), y, Mixed(1.0), 0.5, solver=AnnealedSolver()
        )
        return costs._mixed._seconds - before

    assert counted(cloud(6, 3, seed=1, dtype=torch.float32)) == pytest.approx(
        counted(100.0 * cloud(6, 3, seed=2, dtype=torch.float32))
    )
