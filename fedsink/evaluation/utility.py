"""Downstream utility: accuracy on real images of classifiers trained on synthetic ones."""

from __future__ import annotations

from fedsink.evaluation.classifiers.protocols import FAST
from fedsink.evaluation.labelled import Labelled, Report
from fedsink.evaluation.sets import HeldOut, Origin, TrainingSet, fit_classifiers
from fedsink.evaluation.threads import limit_threads


def accuracies(
    data: Labelled,
    test: Labelled,
    *,
    classes: int,
    seed: int,
    origin: Origin = "synthetic",
    size: int | None = None,
    threads: int | None = None,
    progress: Report | None = None,
) -> dict[str, float]:
    """Accuracy on the real test set of three classifiers trained on `data` only.

    All classifiers are finished before the test set is scored once, so it selects nothing: not the
    epoch, not a hyper-parameter, not a classifier (mathematics.md, section 5; DPImageBench).

    Args:
        data: images (N, C, H, W) in [0, 1] and labels (N,), N >= 10; the only training data.
        test: real images (M, C, H, W) and labels (M,).
        classes: number of classes.
        seed: of hold-outs, weights, batches and dropout; the same seed gives the same figures
            on one machine with one number of threads. The global generators are left alone.
        origin: of `data`. "real training" gives the column beside a result; it is not private and
            belongs to benchmarks on public data.
        size: train on this many images drawn without replacement, to compare like with like;
            None, or a size of at least N, uses all.
        threads: processor threads to use; None for the libraries' own choice.
        progress: receives a short line after each epoch.

    Returns:
        Accuracies in [0, 1] under the keys logreg, mlp and cnn.

    Raises:
        DataError: shapes, labels or sizes that do not fit, or test images among `data`.
        ModelError: images that are not finite.
        ValueError: threads below 1.
    """
    training = TrainingSet.of(data, classes=classes, origin=origin)
    if size is not None:
        training = training.cut(size, seed)
    held_out = HeldOut(test, classes=classes)
    held_out.refuse_overlap(training)
    with limit_threads(threads):
        finished = fit_classifiers(training, FAST, seed=seed, report=progress)
        return {name: held_out.score(classifier) for name, classifier in finished.items()}
