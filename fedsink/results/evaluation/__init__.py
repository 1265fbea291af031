"""Figures of a finished generator: classifiers trained on its images, distances between samples.

Works on tensors and knows no run folder. Nothing here is private: the caller decides which figures
may be computed on real data and who may see them. `evaluate` runs a whole suite
(docs/evaluation.md).
"""

from __future__ import annotations

from fedsink.results.evaluation.distances import exact_w2, label_histogram, sliced_w2
from fedsink.results.evaluation.downstream import accuracies
from fedsink.results.evaluation.neighbours import memorisation
from fedsink.results.evaluation.suites import Options, evaluate

__all__ = [
    "Options",
    "accuracies",
    "evaluate",
    "exact_w2",
    "label_histogram",
    "memorisation",
    "sliced_w2",
]
