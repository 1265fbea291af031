"""One cohort in one process: `python -m tests.gpu.worker DEVICE BEGIN CLIENTS`.

The program plays some rounds to warm up, prints "ready", waits until the file BEGIN exists, plays
its rounds and prints their duration.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import tests.gpu.conftest  # noqa: F401  (before fedsink)
from tests.gpu.problem import cohort, requests_of, streams, totals


def main() -> None:
    device, begin, clients = torch.device(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    pool = cohort(clients, device)

    rounds = 20 if clients <= 250 else 5
    asked = [requests_of(clients, capacity=12, round=round) for round in range(1, rounds + 4)]

    def play(round: int) -> bool:
        requests = asked[round - 1]
        noise = streams(clients, "noise", round)
        plan = requests[0].own_plan
        replies = plan.release_each(plan.clip.vouch(totals(requests, pool)), noise).cpu()
        return bool(replies.isfinite().all())

    for round in range(1, 4):
        play(round)
    print("ready", flush=True)
    while not begin.exists():
        time.sleep(0.001)
    finite = [play(4 + round) for round in range(rounds)]
    held = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    print(json.dumps({"end": time.time(), "rounds": rounds, "bytes": held, "finite": all(finite)}))


if __name__ == "__main__":
    main()
