from __future__ import annotations

import math

import pytest
import torch

from fedsink.data.sources import DataSpec, load
from fedsink.data.sources.digits import TEST_RECORDS
from fedsink.errors import ConfigError, DataError

DIGITS = DataSpec("digits", (1, 8, 8), tuple("0123456789"), 1437)
HALF_CIRCLE = DataSpec("half_circle", (2,), ("arc",), 5000)


def test_digits_are_split_once_and_for_all() -> None:
    train, test = load(DIGITS, "train"), load(DIGITS, "test")
    assert (len(train), len(test)) == (1437, TEST_RECORDS)
    counts = torch.bincount(train.labels), torch.bincount(test.labels)
    whole = counts[0] + counts[1]
    assert (counts[1] - whole * TEST_RECORDS / 1797).abs().max() < 1
    # The split is public: a later version must not move records from test to train.
    assert test.labels[:12].tolist() == EXPECTED_TEST_LABELS


EXPECTED_TEST_LABELS = [5, 9, 2, 4, 6, 7, 9, 3, 4, 6, 8, 5]


def test_digits_are_the_original_ones_and_disjoint() -> None:
    from sklearn.datasets import load_digits

    original = torch.from_numpy(load_digits().images).float().flatten(1) / 16
    ours = torch.cat([load(DIGITS, split).values.flatten(1) for split in ("train", "test")])
    assert ours.dtype == torch.float32
    order = [sorted(rows.tolist()) for rows in (original, ours)]
    assert order[0] == order[1]


def test_half_circle_is_uniform_on_the_upper_arc() -> None:
    train, test = load(HALF_CIRCLE, "train"), load(HALF_CIRCLE, "test")
    assert train.values.shape == (5000, 2)
    assert train.labels.unique().tolist() == [0]
    torch.testing.assert_close(train.values.norm(dim=1), torch.ones(5000))
    angle = torch.atan2(train.values[:, 1], train.values[:, 0]).sort().values / math.pi
    expected = (torch.arange(5000) + 0.5) / 5000
    assert float((angle - expected).abs().max()) < 1.95 / math.sqrt(5000)  # KS, p = 0.001
    assert not torch.equal(train.values, test.values)
    assert torch.equal(load(HALF_CIRCLE).values, train.values)


def test_data_is_loaded_once_per_process() -> None:
    again = DataSpec("digits", (1, 8, 8), tuple("0123456789"), 1437)
    assert load(again, "train") is load(DIGITS, "train")


@pytest.mark.parametrize(
    ("spec", "split", "error", "message"),
    [
        (DataSpec("cifar", (1,), ("a",), 1), "train", ConfigError, "'cifar' is unknown; choose"),
        (DIGITS, "validation", ConfigError, "must be 'train' or 'test', got 'validation'"),
        (
            DataSpec("digits", (1, 8, 8), tuple("012345678"), 1437),
            "train",
            DataError,
            "label 9 is outside the 9 classes",
        ),
        (
            DataSpec("digits", (1, 28, 28), tuple("0123456789"), 1437),
            "train",
            DataError,
            r"shape \(1, 8, 8\), but data.shape says \(1, 28, 28\)",
        ),
    ],
)
def test_messages(spec: DataSpec, split: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(spec, split)
