"""Figures of the pictures themselves, with real pictures and class means beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from fedsink.errors import DataError, ModelError
from fedsink.results.evaluation.distances import frechet_distance, sliced_w2, subsample
from fedsink.results.evaluation.inception import (
    INCEPTION_FEATURES,
    inception_features,
    load_inception,
)
from fedsink.results.evaluation.neighbours import memorisation
from fedsink.results.evaluation.sets import HeldOut, Report, TrainingSet, class_mean_set, shuffled
from fedsink_papers.evaluation.classifiers import label_consistency, train_real_classifier
from fedsink_papers.evaluation.columns import Columns, Draw, Figure, Spread
from fedsink_papers.evaluation.inception_score import SPLITS, inception_score, score_of_splits
from fedsink_papers.evaluation.prdc import NEIGHBOURS, prdc

AT_MOST = 10_000
"""Pictures per side, the size of MNIST's test set; distances grow with its square."""

SMALLEST = max(SPLITS, NEIGHBOURS + 1)
"""Pictures per side, for a part of the Inception Score and for a neighbourhood."""

FRACTIONS = ("precision", "recall", "coverage", "label_consistency")


def quality_figures(
    synthetic: Draw,
    real: TrainingSet,
    held_out: HeldOut,
    *,
    seeds: Sequence[int],
    size: int,
    reference: bool = True,
    conditional: bool = True,
    inception: nn.Module | None = None,
    report: Report | None = None,
) -> tuple[dict[str, Figure], dict[str, str]]:
    """Measures the pictures against the real test images.

    One half of the real training images, drawn by the first seed, trains the classifier whose
    features and probabilities are used; the other half, which it never saw, is the real column.
    Both sides of a distance hold equally many images: m = min(size, M, N/2, 10,000).

    Args:
        synthetic: draws the synthetic images.
        real: all real training images (N); memorisation compares with all of them.
        held_out: the real test images (M), the reference.
        seeds: one per run.
        size: the most images to use.
        reference: also measure real images and class means.
        conditional: False if the synthetic labels mean nothing.
        inception: the network of FID; None: that of the weights in PyTorch's cache.
        report: receives lines of text.

    Returns:
        The figures by name, and the reason for each that was left out.

    Raises:
        DataError: too few images for a neighbourhood.
    """
    fitted, fresh = (real.at(half) for half in shuffled(len(real), seeds[0]).tensor_split(2))
    size = min(size, len(held_out), len(fresh), AT_MOST)
    if size < SMALLEST:
        raise DataError(
            f"suite=full needs at least {SMALLEST} images on each side; received {size}: draw "
            "more, or use a dataset with more test images."
        )
    columns = Columns(
        synthetic,
        fresh.cut if reference else None,
        (lambda size, seed: class_mean_set(real, size)) if reference else None,
    )
    classifier = train_real_classifier(fitted, seed=seeds[0], report=report)
    target = subsample(held_out.images, size, seed=seeds[0])
    target_features = classifier.features(target)

    def measure(data: TrainingSet, seed: int) -> dict[str, float]:
        features = classifier.features(data.images)
        probabilities = classifier.probabilities(features)
        mean, sd = score_of_splits(probabilities, seed=seed)
        figures = {
            "inception_score": inception_score(probabilities),
            "inception_score/ten_splits": mean,
            "inception_score/ten_splits_sd": sd,
            "classifier_frechet_distance": frechet_distance(features, target_features),
            **prdc(target_features, features),
            "sliced_w2": sliced_w2(data.images, target, seed=seed),
        }
        if conditional:
            figures["label_consistency"] = label_consistency(classifier, data)
            figures["within_class_variance"] = variance_ratio(data, fitted)
        return figures

    figures = columns.measure(measure, seeds=seeds, size=size, fractions=FRACTIONS, report=report)
    of_labels = () if conditional else ("label_consistency", "within_class_variance")
    left_out = dict.fromkeys(of_labels, "the generator draws no labels")
    figures |= _memorisation(columns, real.images, held_out.images, seeds, size, report)
    fid, reason = _fid(columns, target, seeds[:1], size, inception, report)
    return {**figures, **fid}, {**left_out, **reason}


def within_class_variance(data: TrainingSet) -> dict[int, float]:
    """Returns the variances `V_c = 1/(N_c − 1) Σ_{i: y_i = c} ‖x_i − x̄_c‖²` of classes, by class.

    Squared pixel units, summed over pixels: the trace of the class's covariance. Classes with
    fewer than two images are left out.
    """

    def total(images: Tensor) -> float:
        return float(images.flatten(1).double().var(dim=0).sum())

    members = {int(c): data.images[data.labels == c] for c in data.labels.unique()}
    return {c: total(images) for c, images in members.items() if len(images) > 1}


def variance_ratio(data: TrainingSet, real: TrainingSet) -> float:
    """Returns `Σ_c V_c(data) / Σ_c V_c(real)` over the classes that both hold.

    1 for equal variation, 0 for class prototypes, above 1 for noise on top.

    Raises:
        DataError: no class has two images on both sides, or the real images do not vary.
    """
    variances, reference = within_class_variance(data), within_class_variance(real)
    shared = sorted(variances.keys() & reference.keys())
    denominator = sum(reference[c] for c in shared)
    if not shared or denominator == 0:
        raise DataError(
            "The variance within classes needs a class with two images in both sets and real "
            f"images that differ; received {len(variances)} and {len(reference)} such classes: "
            "draw more."
        )
    return sum(variances[c] for c in shared) / denominator


def _memorisation(
    columns: Columns,
    train: Tensor,
    held_out: Tensor,
    seeds: Sequence[int],
    size: int,
    report: Report | None,
) -> dict[str, Figure]:
    """Measures memorisation; the real column is one half of the held-out images."""

    def against_all(data: TrainingSet, seed: int) -> dict[str, float]:
        return memorisation(data.images, train, held_out, seed=seed)

    def against_half(data: TrainingSet, seed: int) -> dict[str, float]:
        fresh, rest = shuffled(len(held_out), seed).tensor_split(2)
        return memorisation(held_out[fresh], train, held_out[rest], seed=seed)

    generated = Columns(columns.synthetic, class_means=columns.class_means)
    figures = generated.measure(against_all, seeds=seeds, size=size, report=report)
    if columns.real is not None:
        half = (len(held_out) + 1) // 2
        null = Columns(columns.real).measure(against_half, seeds=seeds, size=half, report=report)
        figures = {
            name: replace(figure, real=Spread(null[name].synthetic.values, half))
            for name, figure in figures.items()
        }
    return {f"memorisation/{name}": figure for name, figure in figures.items()}


def _fid(
    columns: Columns,
    target: Tensor,
    seeds: Sequence[int],
    size: int,
    inception: nn.Module | None,
    report: Report | None,
) -> tuple[dict[str, Figure], dict[str, str]]:
    """Returns FID of one run, or the reason why there is none."""
    if size <= INCEPTION_FEATURES:
        return {}, {
            "fid": f"{size} images do not determine a covariance of {INCEPTION_FEATURES} features"
        }
    try:
        network = load_inception() if inception is None else inception
        features = inception_features(network, target)
    except ModelError as error:
        return {}, {"fid": str(error)}

    def measure(data: TrainingSet, seed: int) -> dict[str, float]:
        return {"fid": frechet_distance(inception_features(network, data.images), features)}

    return columns.measure(measure, seeds=seeds, size=size, report=report), {}
