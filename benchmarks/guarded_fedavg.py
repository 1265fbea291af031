"""What a guard costs FedAvg: accuracy and seconds a round, beside the same job without one.

The app is that of examples/guarded-fedavg (Flower's quickstart CNN on MNIST), its clients run one
after another in this process, and the strategy is Flower's own FedAvg. Jobs of records train by
Opacus. Jobs of updates train without noise, and the guard adds it: all of it at each client, or
under trusted aggregation each client's share. `LocalDpMod` of Flower adds as much as the former,
with the ε that its user would type for it.

    python benchmarks/guarded_fedavg.py DATA [job=records] [clients=10] [variant=guarded]

DATA is a folder with MNIST/raw, unpacked or to be filled by torchvision. One line of JSON for each
run. The guard's noise and Opacus' samples are secret: a second run differs in both.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg

from fedsink import PrivacyPlan, RecordClip, guard
from fedsink.clients.owner.ledger.account_report import report
from fedsink.clients.owner.ledger.database import Database
from fedsink.simulation.grid import SimulationGrid, client_context, client_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "guarded-fedavg"))
from guarded_fedavg.task import Net, loader_of, test, train

DELTA, CLIP, EPSILON, SEED = 1e-5, 1.0, 10.0, 0
JOBS = {  # by number of clients: rounds, steps of a round, expected batch, learning rate
    "records": {10: (5, 6, 256, 2.0), 100: (5, 4, 128, 1.0)},
    "update": {10: (10, 6, 256, 0.5), 100: (10, 9, 64, 0.5), 1000: (10, 1, 60, 0.5)},
}
VARIANTS = {
    "records": ("unguarded", "guarded"),
    "update": ("unguarded", "guarded", "trusted", "LocalDpMod"),
}


def plan_of(rounds: int) -> PrivacyPlan:
    """Returns the plan of an update job whose whole cost is ε = 10."""
    return PrivacyPlan.solve(
        rate=1.0, clip=RecordClip(CLIP), rounds=rounds, eps=EPSILON, delta=DELTA,
        adjacency="client", capacity=1,
    )  # fmt: skip


def policy(job: str, rounds: int, clients: int, trusted: bool) -> str:
    noise = f"clip_bound = {CLIP}\nnoise_multiplier = {plan_of(rounds).noise_multiplier!r}\n"
    if trusted:
        noise += f'secure_aggregation = "trusted"\nshare = {clients}\n'
    return f"""
[data]
nominal_records = {60_000 // clients}
lineage = "mnist"
[state]
folder = "state"
[noise]
backend = "fast"
[budget.{"client" if job == "update" else "add-remove"}]
epsilon = {EPSILON + 1e-6}
delta = {DELTA}
[app]
job = "{job}"
rounds = {rounds}
delta = {DELTA}
{noise if job == "update" else ""}
"""


class Clients(SimulationGrid):
    """Clients of one app, one after another."""

    def __init__(self, app: ClientApp, clients: int, config: dict[str, Any]) -> None:
        super().__init__(clients)
        self._app, self._config = app, config

    def execute(self, messages: Sequence[Message]) -> list[Message]:
        replies = []
        for message in messages:
            client = client_of(message.metadata.dst_node_id)
            context = client_context(client, self.clients, 1)
            context.run_config = dict(self._config)
            replies.append(self._app(message, context))
        return replies

    def keep(self, round: int) -> None:
        raise NotImplementedError


def app_of(variant: str, rounds: int) -> ClientApp:
    guarded = variant in ("guarded", "trusted")
    mods: list[Any] = [guard()] if guarded else []
    if variant == "LocalDpMod":
        mods = [LocalDpMod(CLIP, CLIP, believed(rounds), DELTA)]
    app = ClientApp(mods=mods)

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        config, node = context.run_config, context.node_config
        net = Net()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loader = loader_of(int(node["partition-id"]), int(node["num-partitions"]), config)
        if guarded and (noise := float(config["noise-multiplier"])):
            guard.reserve(1 / len(loader), noise, int(config["local-steps"]))
        loss = train(net, loader, config)
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
        return Message(
            RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    return app


def believed(rounds: int) -> float:
    """Returns the ε that LocalDpMod's formula has for the noise of the guard."""
    return math.sqrt(2 * math.log(1.25 / DELTA)) / plan_of(rounds).noise_multiplier


def run(job: str, clients: int, variant: str, data: str) -> dict[str, Any]:
    rounds, steps, batch, rate = JOBS[job][clients]
    config = {
        "data": data, "batch-size": batch, "local-steps": steps,
        "learning-rate": rate,
        "noise-multiplier": 1.0 if job == "records" else 0.0,
    }  # fmt: skip
    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.toml"
        path.write_text(policy(job, rounds, clients, variant == "trusted"))
        os.environ["FEDSINK_POLICY"] = str(path)
        grid = Clients(app_of(variant, rounds), clients, config)
        start = time.perf_counter()
        result = FedAvg(fraction_evaluate=0.0).start(
            grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds
        )
        seconds = (time.perf_counter() - start) / rounds
        epsilon = None
        if variant in ("guarded", "trusted"):
            database = Database(path.parent / "state/client-0/ledger.sqlite", writable=False)
            [account] = report(database)
            epsilon = account.spent_epsilon
            database.close()
    net = Net()
    net.load_state_dict(result.arrays.to_torch_state_dict())
    return {
        "job": job, "clients": clients, "variant": variant, "rounds": rounds, "steps": steps,
        "batch": batch, "seed": SEED, "accuracy": round(test(net, data), 4),
        "seconds_a_round": round(seconds, 2), "epsilon": epsilon and round(epsilon, 3),
        "believed": round(believed(rounds), 2) if variant == "LocalDpMod" else None,
        **({} if job == "records" else noise_of(rounds, clients, variant)),
    }  # fmt: skip


def noise_of(rounds: int, clients: int, variant: str) -> dict[str, float]:
    """Returns the noise of a round's mean over the clip, and from how many clients on it is 1.

    The norm of the mean's noise is σ·Δ·√(d/K), under trusted aggregation σ·Δ·√d/K, and that of the
    mean update at most Δ. Over T rounds the noise has √T times that norm, the updates at most T·Δ.
    """
    sigma, weights = plan_of(rounds).noise_multiplier, sum(p.numel() for p in Net().parameters())
    over, power = sigma * math.sqrt(weights), 1.0 if variant == "trusted" else 0.5
    return {
        "sigma": round(sigma, 3),
        "noise_over_clip": round(over / clients**power, 2),
        "clients_for_1_in_a_round": math.ceil(over ** (1 / power)),
        "clients_for_1_in_the_job": math.ceil((over / math.sqrt(rounds)) ** (1 / power)),
    }


def main() -> None:
    data, *words = sys.argv[1:]
    chosen = dict(word.split("=", 1) for word in words)
    torch.set_num_threads(1)
    for job, sizes in JOBS.items():
        for clients in sizes:
            for variant in VARIANTS[job]:
                asked = {"job": job, "clients": str(clients), "variant": variant}
                if all(asked[key] == value for key, value in chosen.items()):
                    print(json.dumps(run(job, clients, variant, data)), flush=True)


if __name__ == "__main__":
    main()
