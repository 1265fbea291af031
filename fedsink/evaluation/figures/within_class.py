"""How much the pictures of one class differ, relative to real ones."""

from __future__ import annotations

from torch import Tensor

from fedsink.errors import DataError
from fedsink.evaluation.sets import TrainingSet


def within_class_variance(data: TrainingSet) -> dict[int, float]:
    """Total variance `V_c = 1/(N_c − 1) Σ_{i: y_i = c} ‖x_i − x̄_c‖²` of every class, by class.

    Squared pixel units, summed over pixels: the trace of the class's covariance. Classes with
    fewer than two images are left out.
    """

    def total(images: Tensor) -> float:
        return float(images.flatten(1).double().var(dim=0).sum())

    members = {int(c): data.images[data.labels == c] for c in data.labels.unique()}
    return {c: total(images) for c, images in members.items() if len(images) > 1}


def variance_ratio(data: TrainingSet, real: TrainingSet) -> float:
    """Return `Σ_c V_c(data) / Σ_c V_c(real)` over the classes that both hold.

    1 for equal variation, 0 for class prototypes, above 1 for noise on top.

    Raises:
        DataError: no class has two images on both sides, or the real images do not vary.
    """
    ours, theirs = within_class_variance(data), within_class_variance(real)
    shared = sorted(ours.keys() & theirs.keys())
    below = sum(theirs[c] for c in shared)
    if not shared or below == 0:
        raise DataError(
            "The variance within classes needs a class with two images in both sets and real "
            f"images that differ; received {len(ours)} and {len(theirs)} such classes: draw more."
        )
    return sum(ours[c] for c in shared) / below
