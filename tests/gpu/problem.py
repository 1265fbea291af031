"""Clients with the shapes of the MNIST recipe, made of random pictures."""

from __future__ import annotations

import torch
from fedsink_papers.parameter_gradient.answer import parameter_total
from fedsink_papers.parameter_gradient.request import ParameterRequest, architecture_of
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import client_totals
from fedsink.clients.answers.privatize_once import privatize
from fedsink.clients.records.pool import Pool
from fedsink.clients.records.shard import Shard
from fedsink.data.maps import DctDirection
from fedsink.data.views import view_from_dict
from fedsink.models import build
from fedsink.models.weights import flat_weights
from fedsink.privacy import (
    BatchClip,
    ClassSchedule,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    ReproducibleKey,
    Stream,
)
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective
from fedsink.protocol.privatize_once import LocalPlan

SHAPE, CLASSES, ROWS, RECORDS, RATE = (1, 28, 28), 10, 50, 60, 0.1
VIEW = {"name": "dct", "shape": list(SHAPE), "radius": 8.0}

CASES = {
    "record, class by class": {},
    "record, capacity": {"capacity": 12},
    "record, all classes": {"by_class": False},
    "record, all classes, capacity": {"by_class": False, "capacity": 12},
    "batch": {"clip": "batch", "by_class": False},
    "batch, capacity": {"clip": "batch", "by_class": False, "capacity": 12},
}


def cohort(clients: int, device: torch.device) -> Pool:
    """Clients of 60 records each; every class is at every client."""
    random = torch.Generator().manual_seed(1)
    shards = []
    for _ in range(clients):
        images = torch.rand(RECORDS, *SHAPE, generator=random)
        labels = torch.arange(RECORDS) % CLASSES
        shards.append(Shard.checked(images, labels, CLASSES, device))
    return Pool(shards)


def requests_of(
    clients: int,
    *,
    clip: str = "record",
    by_class: bool = True,
    capacity: int | None = None,
    round: int = 1,
) -> list[GradientRequest]:
    """Requests of a round by client; clients with equal questions share a request."""
    schedule = ClassSchedule(CLASSES) if by_class else JointSchedule()
    plan = PrivacyPlan(
        RATE, 1.0, 1000, RecordClip(0.5) if clip == "record" else BatchClip(0.5), schedule, 1e-5,
        capacity=capacity, nominal_records=None if capacity is None else RECORDS,
    )  # fmt: skip
    objective = Objective(
        lam=10.0, classes=CLASSES, m=1.0 if clip == "batch" else 0.0, solver="annealed"
    )
    labels = [schedule.label(client, round) for client in range(clients)]
    asked = {label: _request(label, round, plan, objective) for label in set(labels)}
    return [asked[label] for label in labels]


def _request(
    label: int | None, round: int, plan: PrivacyPlan, objective: Objective
) -> GradientRequest:
    random = torch.Generator().manual_seed(100 * round + (CLASSES if label is None else label))
    rows = view_from_dict(VIEW)(torch.rand(ROWS, *SHAPE, generator=random))
    row_labels = torch.arange(ROWS) % CLASSES if label is None else torch.full((ROWS,), label)
    potentials = torch.randn(ROWS, generator=random)
    own = 0.01 * torch.randn(rows.shape, generator=random)
    request = GradientRequest(
        round=round, label=label, plan=plan, objective=objective, view=VIEW, rows=rows,
        row_labels=row_labels, potentials=potentials, self_gradient=own,
    )  # fmt: skip
    request.check()
    return request


def streams(clients: int, purpose: str, round: int = 1) -> list[Stream]:
    """Returns one stream for each client."""
    key = ReproducibleKey(7)
    return [key.stream(purpose, client=client, round=round) for client in range(clients)]


def totals(requests: list[GradientRequest], pool: Pool) -> Tensor:
    """The clients' clipped sums, on the pool's device."""
    clients = [torch.tensor([number]) for number in range(len(requests))]
    coins = streams(len(requests), "sample", requests[0].round)
    return client_totals(requests, pool, clients, coins)


def parameter_case(clip: str, device: torch.device) -> Tensor:
    """Returns one client's clipped gradient of a generator's weights."""
    (request,) = requests_of(1, clip=clip, capacity=12)
    model = build(
        "dct_mlp", SHAPE, CLASSES, generator=torch.Generator().manual_seed(2), hidden=[16]
    )
    latents = torch.rand(ROWS, model.latent_dim, generator=torch.Generator().manual_seed(3))
    whole = ParameterRequest(request, architecture_of(model), flat_weights(model).detach(), latents)
    whole.check()
    return parameter_total(whole, cohort(1, device).shard(0), Stream(b"k", "sample"))


def privatized(device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns one client's records after the Laplace mechanism and randomized response."""
    plan = LocalPlan("laplace", DctDirection(SHAPE, 7), 20.0, 0.0, 3.0, CLASSES)
    return privatize(cohort(1, device).shard(0), plan, lambda purpose: Stream(b"k", purpose))
