"""How good a finished generator is: classifiers trained on its images, distances between samples.

Works on tensors and knows no run folder. Nothing here is private: whoever calls it decides what may
be computed on real data and who may see the result.
"""

from __future__ import annotations

from fedsink.evaluation.fidelity import exact_w2, label_histogram, sliced_w2, subsample
from fedsink.evaluation.table import format_table
from fedsink.evaluation.utility import accuracies, real_reference

__all__ = [
    "accuracies",
    "exact_w2",
    "format_table",
    "label_histogram",
    "real_reference",
    "sliced_w2",
    "subsample",
]
