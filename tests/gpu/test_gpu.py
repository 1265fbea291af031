"""Tests that need a GPU, and only PyTorch, NumPy, SciPy, safetensors and pytest: `make test-gpu`.

`FEDSINK_GPU=cpu` runs everything on the CPU instead, to see that it would run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from .problem import CASES, cohort, parameter_case, privatized, requests_of, totals

DEVICE = torch.device(os.environ.get("FEDSINK_GPU", "cuda"))
ON_CPU = DEVICE.type == "cpu"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not ON_CPU and not torch.cuda.is_available(),
        reason="torch finds no CUDA device here; FEDSINK_GPU=cpu runs these tests without one",
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_the_gpu_gives_what_the_cpu_gives(case: str) -> None:
    """Equal up to rounding, for the same draws; 1e-3 of the noise is hidden in any release."""
    requests = requests_of(6, **CASES[case])
    expected = totals(requests, cohort(6, torch.device("cpu")))
    result = totals(requests, cohort(6, DEVICE))
    assert result.device.type == DEVICE.type
    assert float(expected.abs().amax()) > 0.0
    atol = 1e-3 * requests[0].plan.noise_std
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_the_gpu_gives_the_cpus_gradient_of_weights(clip: str) -> None:
    expected = parameter_case(clip, torch.device("cpu"))
    result = parameter_case(clip, DEVICE)
    assert float(expected.abs().amax()) > 0.0
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-2, atol=1e-4)


def test_the_gpu_privatizes_what_the_cpu_privatizes() -> None:
    expected, result = privatized(torch.device("cpu")), privatized(DEVICE)
    torch.testing.assert_close(result[0].cpu(), expected[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(result[1].cpu(), expected[1])


def test_memory_per_client() -> None:
    """A client more costs its records and its share of a round, whatever their number."""
    if ON_CPU:
        pytest.skip("torch counts no memory on the CPU")
    used = {}
    for clients in (100, 1000):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        pool = cohort(clients, DEVICE)
        totals(requests_of(clients, capacity=12), pool)
        used[clients] = (torch.cuda.max_memory_allocated() - before) / clients
        del pool
    print("\nMiB per client:", {k: round(v / 2**20, 3) for k, v in used.items()})
    assert used[1000] < 1.5 * used[100]


@pytest.mark.parametrize("cohorts", [1, 2, 4])
@pytest.mark.parametrize("clients", [10, 100, 1000])
def test_rounds_per_second(clients: int, cohorts: int, tmp_path: Path) -> None:
    """Cohorts are processes that share the GPU, as Ray's actors are."""
    if ON_CPU and clients * cohorts > 20:
        pytest.skip("the machinery is seen at ten clients")
    begin = tmp_path / "begin"
    worker = [sys.executable, "-m", "tests.gpu.worker", str(DEVICE), str(begin)]
    shares = [len(range(place, clients, cohorts)) for place in range(cohorts)]
    workers = [
        subprocess.Popen(
            [*worker, str(share)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )
        for share in shares
    ]  # fmt: skip
    try:
        for process in workers:  # each says that it is warm; then all begin at once
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.strip() == "ready", process.communicate()[1]
        began = time.time()
        begin.touch()
        answers = [process.communicate(timeout=500) for process in workers]
    finally:
        for process in workers:
            process.kill()
            process.wait()
    results = [json.loads(out) for out, _ in answers]
    seconds = max(result["end"] for result in results) - began
    rounds = results[0]["rounds"]
    mebibytes = [round(result["bytes"] / 2**20, 1) for result in results]
    print(
        f"\n{clients} clients in {cohorts} cohorts: {rounds / seconds:.1f} rounds/s, "
        f"{mebibytes} MiB at most in each cohort"
    )
    assert all(result["finite"] for result in results)
