"""Gain of noise that is correlated across rounds: `python benchmarks/correlated_noise.py`.

A banded factorisation releases G + C⁻¹Z instead of G + Z, with C lower triangular and Toeplitz,
b bands, columns of norm 1. Where the uses of a record are at least b rounds apart, each moves rows
of CG that no other moves, by at most the sensitivity: ε is that of independent noise
(Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization"). Training is disturbed by
the noise left in the weights' running mean: all lines give its standard deviation relative to
independent noise, for the best possible C.

free    The class schedule uses a record in every C-th round, so up to C bands cost nothing. Rounds
        in between are other classes'; f says how alike equal noise on two classes' rows moves the
        weights: tr(J_c J_c′ᵀ) over tr(J_c J_cᵀ). Needs --run, a finished run of the central mode.
bought  Bands over the visits of one class: its records take turns in b public parts, each sampled
        at rate bq, so that as many records as before are in a batch. σ follows from PLD.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from fedsink.configuration import Configuration
from fedsink.data.views import view_from_dict
from fedsink.models.weights import flat_weights, pullback
from fedsink.privacy import Stream
from fedsink.privacy.accounting.calibration import sigma_for
from fedsink.server.finished import FinishedRun, open_run
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings

VISITS, DELTA = 400, 1e-5  # 4000 rounds of ten classes
RECIPES = [(10.0, 0.2), (3.0, 0.5), (1.0, 0.5)]  # ε, q


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the free gain, if there is a run, and the bought gain."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", help="a finished run of mode=central, for f")
    options = parser.parse_args(arguments)
    if options.run:
        run = open_run(options.run)
        likeness = alikeness(run)
        classes = len(run.data.classes)
        print(
            f"free: {classes} bands over the classes, f = {likeness:.2f}: "
            f"{free(likeness, classes):.3f} of the deviation of independent noise"
        )
    for eps, rate in RECIPES:
        parts = [b for b in (1, 2, 5) if b * rate <= 1.0]
        found = ", ".join(f"b = {b}: {bought(eps, rate, b):.3f}" for b in parts)
        print(f"bought: eps = {eps:g}, q = {rate:g}, at best {found}")


def free(likeness: float, classes: int) -> float:
    """The least relative deviation with C bands over C classes: (√(1+(C−1)f) + (C−1)√(1−f)) / C.

    With S(ω) = 1/|Ĉ(ω)|² the spectrum of C⁻¹Z, the running mean's variance is
    f·S(0) + (1−f)·mean_j S(2πj/C), while the mean of |Ĉ(2πj/C)|² is the column's squared norm, 1.
    The optimum under that constraint, by Lagrange, is |Ĉ(0)|² ∝ √(1+(C−1)f), the others ∝ √(1−f).

    Args:
        likeness: f in [0, 1].
        classes: C ≥ 1.
    """
    others = classes - 1
    return (math.sqrt(1 + others * likeness) + others * math.sqrt(1 - likeness)) / classes


def bought(eps: float, rate: float, parts: int) -> float:
    """σ(bq, T/b) / (σ(q, T)·√b): a lower bound, as |Ĉ(0)|² ≤ b for b bands of norm 1."""
    return _sigma(eps, parts * rate, VISITS // parts) / _sigma(eps, rate, VISITS) / math.sqrt(parts)


@cache
def _sigma(eps: float, rate: float, uses: int) -> float:
    return sigma_for(eps, rate=rate, uses=uses, delta=DELTA)


def alikeness(run: FinishedRun, draws: int = 40) -> float:
    """f of the trained generator, each weight counted in units of its noise, as Adam steps.

    Args:
        run: its generator, view and rows per class, which have the same latents for all classes.
        draws: of the noise on the rows, to estimate the traces.
    """
    settings = DPSinkhornSettings.from_config(Configuration.read(run.config), "benchmark")
    generator, view, rows = run.generator.train(), view_from_dict(settings.view), settings.rows
    z = generator.latent(rows, Stream(b"correlated noise", "latents"))
    noise = [Stream(b"correlated noise", "noise", k).normal(rows, view.dimension)
             for k in range(draws)]  # fmt: skip
    weights = flat_weights(generator)

    def moved(label: int) -> Tensor:
        pull = pullback(generator, weights, z, torch.full((rows,), label), view)
        return torch.stack([pull(each) for each in noise])

    pulled = torch.stack([moved(label) for label in range(len(run.data.classes))])
    scaled = pulled / pulled.square().mean((0, 1)).sqrt().clamp(min=1e-12)
    gram = torch.einsum("ckp,dkp->cd", scaled, scaled)
    own = gram.diagonal()
    others = len(own) * (len(own) - 1)
    return float((gram.sum() - own.sum()) / others / own.mean())


if __name__ == "__main__":
    main()
