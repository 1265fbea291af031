from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsink.data.labelled import Reading
from fedsink.data.sources import digits, load
from fedsink.data.sources.digits import TEST_RECORDS
from fedsink.data.spec import DataSpec
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


def test_digits_are_read_without_the_import_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = digits.read(DIGITS, "train")
    monkeypatch.setattr(digits, "find_spec", lambda name: None)  # its files lie elsewhere
    slow = digits.read(DIGITS, "train")
    assert torch.equal(quick.values, slow.values)
    assert torch.equal(quick.labels, slow.labels)


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
    more = load(replace(HALF_CIRCLE, nominal_records=20_000), "train").values
    assert more.shape == (20_000, 2)
    assert torch.equal(more[:5000], train.values)


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


X, Y = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])
RETURNED = [
    (X, r"the reader returned torch\.Tensor of torch\.float32 and shape \(4, 1, 2, 2\); expected"),
    (
        None,
        r"the reader returned NoneType; expected tensors \(values, labels\), \(values, labels, ",
    ),
    ({"x": X, "y": Y}, r"the reader returned dict; expected"),
    (iter((X, Y)), r"the reader returned tuple_iterator; expected"),
    ((), r"the reader returned tuple of 0 \(\); expected"),
    ((X,), r"the reader returned tuple of 1 \(torch\.Tensor of torch\.float32 and shape"),
    ((X, Y, None, None, None), r"the reader returned tuple of 5 \(torch"),
    ((X.numpy(), Y), r"returned numpy\.ndarray of float32 and shape \(4, 1, 2, 2\) for the values"),
    (
        (X, Y.numpy()),
        r"returned numpy\.ndarray of int64 and shape \(4,\) for the labels; expected a",
    ),
    ((X, Y.tolist()), r"returned list of 4 \(int, int, int, int\) for the labels"),
    ((X.tolist(), Y), r"returned list of 4 \(list of 1"),
    ((X, None), r"returned NoneType for the labels"),
    (("x", "y"), r"returned str for the values"),
    ((X, Y, Y.numpy()), r"returned numpy\.ndarray .* for the users"),
    ((X, Y, None, Y.tolist()), r"returned list of 4 .* for the slots"),
    (
        (X.to_sparse(), Y),
        r"returned torch\.Tensor of torch\.float32 .* for the values; expected a dense",
    ),
    ((torch.tensor(1.0), torch.tensor(1)), r"shape \(\) for the values"),
    ((X, torch.tensor(1)), r"shape \(\) for the labels"),
    (
        (X.to(torch.int64), Y),
        r"values must be uint8, from 0 to 255, or floating point, got torch\.Ten",
    ),
    ((X.to(torch.bool), Y), r"values must be uint8"),
    ((X.to(torch.complex64), Y), r"values must be uint8"),
    ((X, Y.to(torch.float32)), r"labels must be one whole number per record, got torch\.float32"),
    ((X, Y.to(torch.bool)), r"labels must be one whole number per record, got torch\.bool"),
    (
        (X, Y.to(torch.complex64)),
        r"labels must be one whole number per record, got torch\.complex64",
    ),
    ((X, Y.reshape(2, 2)), r"2 labels|labels must be one whole number"),
    ((X, Y[:3]), r"got 4 records and 3 labels"),
    ((X, Y, Y[:3]), r"users must be one int64 number per record"),
    ((X, Y, None, Y.to(torch.int32)), r"slots must be one int64 number per record"),
    ((X, -Y), r"label -1 is outside"),
    ((X - 1, Y), r"must lie in \[0, 1\]"),
    ((X / 0, Y), r"are not finite"),
]


@pytest.mark.parametrize(("returned", "message"), RETURNED)
def test_whatever_a_reader_returns_is_read_or_refused(
    returned: object, message: str, install_source: Callable[[Callable[..., Any]], None]
) -> None:
    install_source(lambda spec, split: returned)
    load.cache_clear()
    with pytest.raises(DataError, match=rf"^tiny: .*({message})"):
        load(DataSpec("tiny", (1, 2, 2), ("a", "b"), 4))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_may_be_of_any_whole_type(
    kind: torch.dtype, install_source: Callable[[Callable[..., Any]], None]
) -> None:
    install_source(lambda spec, split: [X, Y.to(kind)])
    load.cache_clear()
    assert load(DataSpec("tiny", (1, 2, 2), ("a", "b"), 4)).labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("returned", [(X, Y, None, Y + 7), Reading(X, Y, slots=Y + 7)])
def test_a_reader_may_name_what_it_returns(
    returned: object, install_source: Callable[[Callable[..., Any]], None]
) -> None:
    install_source(lambda spec, split: returned)
    load.cache_clear()
    data = load(DataSpec("tiny", (1, 2, 2), ("a", "b"), 4))
    assert data.users is None
    assert data.slots is not None
    assert data.slots.tolist() == [7, 8, 7, 8]
