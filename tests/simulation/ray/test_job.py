"""`ray job submit … -- fedsink simulate`, and the job for KubeRay."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedsink.conf.acting import compose_config

MANIFEST = Path(__file__).resolve().parents[3] / "deploy" / "ray" / "rayjob.yaml"
RAY = str(Path(sys.executable).with_name("ray"))


@pytest.mark.medium
def test_the_job_for_kuberay_is_a_run_that_exists() -> None:
    job = yaml.safe_load(MANIFEST.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    command, simulate, *keys = shlex.split(job["spec"]["entrypoint"])
    assert (command, simulate) == ("fedsink", "simulate")
    config = compose_config([key for key in keys if not key.startswith("hydra.")])
    assert config["engine"]["address"] == "auto"
    cluster = job["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    (place,) = [key.partition("=")[2] for key in keys if key.startswith("hydra.run.dir=")]
    assert place.startswith(head["volumeMounts"][0]["mountPath"])
    tested = (MANIFEST.parents[2] / "constraints.txt").read_text()
    assert f"ray>={cluster['rayVersion'].rpartition('.')[0]},<" in tested


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[str]:
    """Address of the job server of a cluster of one node."""
    port, dashboard = _free_port(), _free_port()
    session = tempfile.mkdtemp(prefix="ray-")  # short, for the sockets in it
    words = [
        RAY, "start", "--head", "--block", f"--port={port}", "--num-cpus=2",
        "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--temp-dir={session}",
    ]  # fmt: skip
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with (tmp_path / "head.log").open("wb") as log:
        head = subprocess.Popen(
            words, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", dashboard)) == 0:
                    break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(head.pid, number)
                head.wait(timeout=20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_submitted_job_is_the_run_of_one_process(jobs: str, tmp_path: Path) -> None:
    keys = ["clients=8", "rounds=6", "seed=0", "report.pictures=0", "report.html=false"]
    command = [sys.executable, "-m", "fedsink", "simulate", "mode=central", *keys]
    variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1"}
    submitted = subprocess.run(
        [
            RAY, "job", "submit", f"--address={jobs}",
            f"--runtime-env-json={json.dumps({'env_vars': variables})}", "--", *command,
            "engine.address=auto", "engine.actors=2", f"hydra.run.dir={tmp_path / 'job'}",
        ],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    said = submitted.stdout + submitted.stderr
    assert submitted.returncode == 0, said + (tmp_path / "head.log").read_text()
    assert str(tmp_path / "job") in said
    assert "succeeded" in said
    here = [*command, "engine=local", f"hydra.run.dir={tmp_path / 'here'}"]
    subprocess.run(here, check=True, capture_output=True, timeout=300)
    name = "generator.safetensors"
    assert (tmp_path / "job" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    failing = subprocess.run(
        [RAY, "job", "submit", f"--address={jobs}", "--", *command, "eps=0"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert failing.returncode != 0
    assert "eps must be a finite number > 0" in failing.stdout + failing.stderr
