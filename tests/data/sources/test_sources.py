from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsink.data.labelled import Reading
from fedsink.data.sources import digits, forget, load
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


def test_another_source_or_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="'cifar' is unknown; choose"):
        load(DataSpec("cifar", (1,), ("a",), 1))
    with pytest.raises(ConfigError, match="must be 'train' or 'test', got 'validation'"):
        load(DIGITS, "validation")  # type: ignore[arg-type]


X, Y = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])
WHOLE = "labels must be one whole number per record, got "
RETURNED = [
    (X, r"the reader returned torch\.Tensor of torch\.float32 and shape \(4, 1, 2, 2\); expected"),
    (None, r"the reader returned NoneType; expected tensors \(values, labels\), \(values, lab"),
    ({"x": X, "y": Y}, r"the reader returned dict; expected"),
    (iter((X, Y)), r"the reader returned tuple_iterator; expected"),
    ((), r"the reader returned tuple of 0 \(\); expected"),
    ((X,), r"the reader returned tuple of 1 \(torch\.Tensor of torch\.float32 and shape"),
    ((X, Y, None, None, None), r"the reader returned tuple of 5 \(torch"),
    ((X.numpy(), Y), r"returned numpy\.ndarray of float32 and shape \(4, 1, 2, 2\) for the values"),
    ((X, Y.numpy()), r"returned numpy\.ndarray of int64 and shape \(4,\) for the labels; expected"),
    ((X, Y.tolist()), r"returned list of 4 \(int, int, int, int\) for the labels"),
    ((X.tolist(), Y), r"returned list of 4 \(list of 1"),
    ((X, None), r"returned NoneType for the labels"),
    (("x", "y"), r"returned str for the values"),
    ((X, Y, Y.numpy()), r"returned numpy\.ndarray .* for the users"),
    ((X, Y, None, Y.tolist()), r"returned list of 4 .* for the slots"),
    ((X.to_sparse(), Y), r"returned torch\.Tensor .* for the values; expected a dense"),
    ((torch.tensor(1.0), torch.tensor(1)), r"shape \(\) for the values"),
    ((X, torch.tensor(1)), r"shape \(\) for the labels"),
    ((X.to(torch.int64), Y), r"values must be uint8, from 0 to 255, or floating point, got torch"),
    ((X.to(torch.bool), Y), r"values must be uint8"),
    ((X.to(torch.complex64), Y), r"values must be uint8"),
    ((X, Y.to(torch.float32)), WHOLE + r"torch\.float32"),
    ((X, Y.to(torch.bool)), WHOLE + r"torch\.bool"),
    ((X, Y.to(torch.complex64)), WHOLE + r"torch\.complex64"),
    ((X, Y.reshape(4, 1)), WHOLE + r"torch\.int64 of shape \(4, 1\)"),
    ((X[:0], Y[:0]), r"got 0 records and 0 labels"),
    ((X, Y[:3]), r"got 4 records and 3 labels"),
    ((X[..., :1], Y), r"records have shape \(1, 2, 1\), but data\.shape says \(1, 2, 2\)"),
    *(
        ((X, Y, *more), rf"{name} must be one int64 number per record")
        for wrong in (Y[:3], Y.to(torch.int32), Y.to(torch.float32), Y.reshape(4, 1))
        for name, more in (("users", (wrong,)), ("slots", (None, wrong)))
    ),
    ((X, -Y), r"label -1 is outside the 2 classes .*0 to 1"),
    ((X, 2 * Y), r"label 2 is outside the 2 classes .*0 to 1"),
    ((X - 0.01, Y), r"must lie in \[0, 1\], got values from -0\.01"),
    ((X + 1.5, Y), r"must lie in \[0, 1\], got values from 1\.5"),
    ((X / 0, Y), r"16 values are not finite, the first is nan"),
    ((X + math.inf, Y), r"16 values are not finite, the first is inf"),
    ((X - math.inf, Y), r"16 values are not finite, the first is -inf"),
]


@pytest.mark.parametrize(("returned", "message"), RETURNED)
def test_whatever_a_reader_returns_is_read_or_refused(
    returned: object, message: str, install_source: Callable[[Callable[..., Any]], None]
) -> None:
    install_source(lambda spec, split: returned)
    forget()
    with pytest.raises(DataError, match=rf"^tiny: .*({message})"):
        load(DataSpec("tiny", (1, 2, 2), ("a", "b"), 4))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_may_be_of_any_whole_type(
    kind: torch.dtype, install_source: Callable[[Callable[..., Any]], None]
) -> None:
    install_source(lambda spec, split: [X, Y.to(kind)])
    forget()
    assert load(DataSpec("tiny", (1, 2, 2), ("a", "b"), 4)).labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("returned", [(X, Y, None, Y + 7), Reading(X, Y, slots=Y + 7)])
def test_a_reader_may_name_what_it_returns(
    returned: object, install_source: Callable[[Callable[..., Any]], None]
) -> None:
    install_source(lambda spec, split: returned)
    forget()
    data = load(DataSpec("tiny", (1, 2, 2), ("a", "b"), 4))
    assert data.users is None
    assert data.slots is not None
    assert data.slots.tolist() == [7, 8, 7, 8]
