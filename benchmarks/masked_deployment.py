"""Time of a masked message against a plain one, with real nodes, TLS and node keys on loopback.

One SuperLink and nodes in processes of their own, as `make deploy-demo` starts them. Plain runs, in
which every client adds noise of its own, and masked ones, in which all share it, take turns. Rounds
of the first message are left out: nodes load their pictures in it.

    python benchmarks/masked_deployment.py [--nodes 8] [--messages 10] [--uses 20] [--turns 2]
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import tempfile
from pathlib import Path

DEMO = Path(__file__).resolve().parents[1] / "deploy" / "demo.py"


def seconds_a_message(folder: Path, uses: int) -> float:
    """Wall time of a message at the server, without the first one."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ends = [line["seconds"] for line in lines if line["round"] % uses == 0]
    return float(ends[-1] - ends[0]) / (len(ends) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("nodes", 8), ("messages", 10), ("uses", 20), ("turns", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    keys = [
        "mode=central", "eps=1", f"rounds={arguments.messages * arguments.uses}", "capacity=auto",
        f"strategy.uses_per_message={arguments.uses}", "strategy.schedule=joint",
        "report.html=false", "report.pictures=0",
    ]  # fmt: skip
    kinds = {"plain": [], "masked": ["noise.share=secure_aggregation"]}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="fedsink-masked-") as name:
        lab = runpy.run_path(str(DEMO))["Lab"](Path(name), (10.0,) * arguments.nodes)
        try:
            lab.prepare("fast")
            lab.exchange_identities()
            lab.start()
            for turn in range(arguments.turns):
                for kind, more in kinds.items():
                    code, out, last = lab.deploy(f"{kind}-{turn}", *keys, *more)
                    if code != 0:
                        sys.exit(f"The {kind} run failed: {last}")
                    times[kind].append(seconds_a_message(Path(out), arguments.uses))
        finally:
            lab.stop()
    plain, masked = (statistics.median(times[kind]) for kind in kinds)
    print(
        f"{arguments.nodes} nodes, {arguments.uses} uses a message: plain {plain:.2f} s, "
        f"masked {masked:.2f} s, masked/plain {masked / plain:.2f}"
    )


if __name__ == "__main__":
    main()
