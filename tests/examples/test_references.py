"""The examples run; the two references train a generator as the framework trains it.

"As" is to float rounding: the weights of the two differ by at most 2e-7, where a step moves them by
1e-2. The mistakes are tried over two rounds, since Adam's first step forgets the gradient's length.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import fedsink as fs
from fedsink.data.maps import PointBall
from fedsink.data.partition import partition
from fedsink.models import load
from fedsink.privacy import Stream
from fedsink.strategies.losses import LOSSES, LabelStrata, Matched
from fedsink.transport import ConvergedSolver

from ..support.models import weights
from ..support.scripts import script

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.medium
SEED, SERVER = 7, b"server|7"  # `seed=` keys the clients' noise, and the server's latents
ADAM = {"lr": 1e-2, "betas": (0.9, 0.999), "warmup": 0, "schedule": "constant", "ema": 0.0}
QUIET: Any = {"seed": SEED, "report": {"pictures": 0, "html": False}}


def changed(name: str, folder: Path, old: str, new: str) -> ModuleType:
    """Returns an example with a defect."""
    text = (EXAMPLES / name).read_text()
    assert text.count(old) == 1
    (folder / name).write_text(text.replace(old, new))
    return script(folder / name)


def generator(*shape: int, classes: int, **options: Any) -> fs.Mlp:
    random = torch.Generator().manual_seed(SEED)
    # Adam would make steps of the rounding in the gradient that is 0 before a BatchNorm.
    return fs.Mlp(
        shape, classes, latent_dim=4, hidden=(16,), batch_norm=False, generator=random, **options
    )


def dealt(values: Tensor, labels: Tensor, clients: int) -> list[tuple[Tensor, Tensor]]:
    shards = partition(labels, clients, {"name": "iid"}, 0)
    return [(values[held], labels[held]) for held in shards]


@pytest.fixture(scope="module", params=[(1, 0.0), (2, 0.0), (2, 0.4)], ids=str)
def central(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """A plan, what the example is called with, and the weights that `fs.DPSinkhorn` finds."""
    rounds, p = request.param
    images = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(60) % 3
    plan = fs.PrivacyPlan.solve(
        rate=0.3, clip=fs.BatchClip(1.0), delta=1e-5, sigma=0.5, rounds=rounds
    )
    method = fs.DPSinkhorn(
        generator(1, 4, 4, classes=3), plan, lam=0.5, rows=2, m=0.3, solver="annealed",
        self_term="semi_debiased", p=p, view={"name": "pixel"}, optimizer=ADAM,
    )  # fmt: skip
    federation = fs.Federation(images, labels, clients=3, classes=3, nominal_records=60)
    run = federation.fit(method, tmp_path_factory.mktemp("central") / "run", **QUIET)
    shards = dealt(2 * images.flatten(1) - 1, labels, 3)
    more = {"n": 2, "lam": 0.5, "m": 0.3, "p": p, "lr": ADAM["lr"]}
    return plan, shards, more, weights(load(run.folder))


def by_example(example: ModuleType, central: tuple[Any, ...]) -> Tensor:
    plan, shards, more, _ = central
    G, key = generator(1, 4, 4, classes=3), fs.NoiseKey.reproducible(SEED)
    example.dp_sinkhorn(G, shards, plan, key, SERVER, **more)
    return weights(G)


def test_dp_sinkhorn_is_the_frameworks(central: tuple[Any, ...]) -> None:
    found = by_example(script(EXAMPLES / "dp_sinkhorn.py"), central)
    before = weights(generator(1, 4, 4, classes=3))
    assert torch.allclose(found, central[-1], rtol=0, atol=1e-6)
    assert float((found - before).abs().max()) > 5e-3


@pytest.mark.parametrize("central", [(2, 0.4)], indirect=True)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lam=lam, debias", "lam=1.2 * lam, debias"),
        ("Mixed(m), lam", "Mixed(0.0), lam"),
        ("own[:n]\n", "torch.zeros_like(own[:n])\n"),
        ("grad(2 * W(", "grad(1 * W("),
        ("client=k)", "client=k + 1)"),
        ("step.sample(len(records))", "step.sample(len(records))[1:]"),
        ("(x, labels, G.classes, alpha_c)", "(x, labels, G.classes, 0.0)"),
        ("plan.clip.apply(own[n:])", "torch.zeros_like(own[n:])"),
        (".mean(0)", ".sum(0)"),
    ],
)  # fmt: skip
def test_dp_sinkhorn_with_a_mistake_is_not(
    central: tuple[Any, ...], tmp_path: Path, old: str, new: str
) -> None:
    found = by_example(changed("dp_sinkhorn.py", tmp_path, old, new), central)
    assert not torch.allclose(found, central[-1], rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=[1, 2])
def local(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The number of steps, the clients, f, and the weights that `fs.EntropicLDP` finds."""
    steps, f = request.param, PointBall("l1", radius=2.0)
    points = torch.rand(60, 2, generator=torch.Generator().manual_seed(1))
    solver = ConvergedSolver()
    method = fs.EntropicLDP(
        generator(2, classes=1, output="linear"), 12.0, map=f, rounds=steps,
        batch=20, finite_batch_factor=1.0, max_iterations=solver.max_iterations,
        tolerance=solver.tolerance, optimizer=ADAM,
    )  # fmt: skip
    federation = fs.Federation(points, clients=3, nominal_records=60)
    run = federation.fit(method, tmp_path_factory.mktemp("local") / "run", **QUIET)
    clients = [held for held, _ in dealt(points, torch.zeros(60, dtype=torch.int64), 3)]
    return steps, clients, f, weights(load(run.folder))


def by_local_example(example: ModuleType, local: tuple[Any, ...]) -> Tensor:
    steps, clients, f, _ = local
    G = generator(2, classes=1, output="linear")
    noise = fs.Laplace(f.sensitivity, 12.0)
    Y = example.privatize(clients, f, noise, fs.NoiseKey.reproducible(SEED))
    strata, draws = LabelStrata(torch.zeros(60, dtype=torch.int64), torch.ones(1), None), []
    for step in range(1, steps + 1):
        stream = Stream(SERVER, "train", step)
        places, _ = strata.draw(20, stream)
        draws.append((places[0], G.latent(20, stream)))
    example.train(G, f, fs.SinkhornLoss.matched_to(noise), Y, draws, ADAM["lr"], ADAM["betas"])
    return weights(G)


def test_entropic_ldp_is_the_frameworks(local: tuple[Any, ...]) -> None:
    found = by_local_example(script(EXAMPLES / "entropic_ldp.py"), local)
    before = weights(generator(2, classes=1, output="linear"))
    assert torch.allclose(found, local[-1], rtol=0, atol=1e-6)
    assert float((found - before).abs().max()) > 5e-3


@pytest.mark.parametrize("local", [2], indirect=True)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mechanism.privatize(f(records)", "mechanism.privatize(0.9 * f(records)"),
        ('"image", client=k', '"image", client=k + 1'),
        ("permutation(len(Y))]", "permutation(len(Y)).sort().values]"),
        ("X = f(G(", "X = 0.9 * f(G("),
        ("W(X, Y[places])", "W(X, Y[places[1:]])"),
    ],
)
def test_entropic_ldp_with_a_mistake_is_not(
    local: tuple[Any, ...], tmp_path: Path, old: str, new: str
) -> None:
    found = by_local_example(changed("entropic_ldp.py", tmp_path, old, new), local)
    assert not torch.allclose(found, local[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["dp_sinkhorn", "entropic_ldp"])
def test_a_reference_draws_a_picture(name: str, tmp_path: Path) -> None:
    script(EXAMPLES / f"{name}.py").main(tmp_path / "picture.png", 2)
    assert (tmp_path / "picture.png").stat().st_size > 1000


@pytest.mark.slow
def test_own_tensors_are_fitted_and_measured(tmp_path: Path) -> None:
    script(EXAMPLES / "own_tensors.py").main(tmp_path / "run", rounds=2)
    privacy, evaluation = (
        json.loads((tmp_path / "run" / name).read_text())
        for name in ("privacy.json", "evaluation.json")
    )
    assert "assumed_public" not in privacy
    assert 0 <= evaluation["accuracy"]["cnn"] <= 1
    assert (tmp_path / "run" / "pictures.png").is_file()


def test_a_clip_of_ones_own_is_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsink.privacy.clips._OWN", {})
    script(EXAMPLES / "own_clip.py").main(tmp_path / "run", rounds=2)
    privacy = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert privacy["clip"] == "automatic"


def test_a_loss_of_ones_own_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "means", Matched)  # so that it is gone afterwards
    script(EXAMPLES / "own_loss.py").main(tmp_path / "run", rounds=3)
    training = json.loads((tmp_path / "run" / "privacy.json").read_text())["training"]
    assert (training["loss"], training["matched"], training["lam"]) == ("means", False, 0.0)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert len(losses) == 3
