"""Central iterations of `pfl`: federated averaging of a linear model, a record a user.

`growth.py` runs it in an environment that has pfl. The records are random numbers of MNIST's
shape; a user's dataset is a view of one, made when the user is sampled.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

PIXELS, CLASSES, RECORDS = 784, 10, 60_000


class Softmax(torch.nn.Linear):
    """7,850 weights."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """Processor time of each iteration."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since = time.process_time()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        now = time.process_time()
        self.seconds.append(now - self._since)
        self._since = now
        return False, Metrics()


def main(users: int, cohort: int, rounds: int) -> None:
    """Prints the seconds of each iteration. The first one also evaluates, as pfl always does."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    random = torch.Generator().manual_seed(0)
    x = torch.rand(RECORDS, PIXELS, generator=random)
    y = torch.arange(RECORDS) % CLASSES

    def dataset(user: int) -> PyTorchTensorDataset:
        at = user % RECORDS
        return PyTorchTensorDataset((x[at : at + 1], y[at : at + 1]))

    data = FederatedDataset(dataset, get_user_sampler("random", range(users)))
    network = Softmax(PIXELS, CLASSES)
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    print(json.dumps(clock.seconds))
