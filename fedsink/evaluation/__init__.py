"""Figures of a finished generator: classifiers trained on its images, distances between samples.

Works on tensors and knows no run folder. Nothing here is private: the caller decides what may
be computed on real data and who may see the result. `evaluate` runs a whole suite
(docs/evaluation.md); the other names are its figures.
"""

from __future__ import annotations

from fedsink.evaluation.figures.fidelity import exact_w2, label_histogram, sliced_w2, subsample
from fedsink.evaluation.figures.frechet import frechet_distance
from fedsink.evaluation.figures.inception_score import inception_score
from fedsink.evaluation.figures.memorisation import memorisation
from fedsink.evaluation.figures.prdc import prdc
from fedsink.evaluation.sets import HeldOut, TrainingSet, fit_classifiers
from fedsink.evaluation.suites import Evaluation, evaluate
from fedsink.evaluation.table import format_table
from fedsink.evaluation.utility import accuracies

__all__ = [
    "Evaluation",
    "HeldOut",
    "TrainingSet",
    "accuracies",
    "evaluate",
    "exact_w2",
    "fit_classifiers",
    "format_table",
    "frechet_distance",
    "inception_score",
    "label_histogram",
    "memorisation",
    "prdc",
    "sliced_w2",
    "subsample",
]
