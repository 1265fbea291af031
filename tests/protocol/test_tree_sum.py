"""The sum has the same bits, whoever adds which part."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsink.protocol.tree_sum import TreeSum


def _sum(values: dict[int, torch.Tensor], lo: int = 0, hi: int | None = None) -> TreeSum:
    total = TreeSum(lo, hi)
    for block, value in values.items():
        total.add(block, value)
    return total


def _values(blocks: list[int]) -> dict[int, torch.Tensor]:
    """Sizes so different that every order of additions gives another sum."""
    random = torch.Generator().manual_seed(len(blocks))
    scale = 10.0 ** torch.randint(-6, 7, (len(blocks), 4), generator=random)
    numbers = torch.randn(len(blocks), 4, generator=random) * scale
    return dict(zip(blocks, numbers.to(torch.float32), strict=True))


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=60, unique=True).map(sorted),
    st.lists(st.integers(1, 200), max_size=6, unique=True).map(sorted),
)
def test_parts_of_any_ranges_make_the_same_bits(blocks: list[int], cuts: list[int]) -> None:
    values = _values(blocks)
    whole = _sum(values).total()
    together = TreeSum()
    for lo, hi in zip([0, *cuts], [*cuts, None], strict=True):
        mine = {k: v for k, v in values.items() if k >= lo and (hi is None or k < hi)}
        for block, part in _sum(mine, lo, hi).parts():
            together.add(block, part)
    assert torch.equal(together.total(), whole)
    exact = [math.fsum(float(v[i]) for v in values.values()) for i in range(4)]
    magnitude = [sum(abs(float(v[i])) for v in values.values()) for i in range(4)]
    for got, expected, size in zip(whole.tolist(), exact, magnitude, strict=True):
        assert abs(got - expected) <= 8 * 2.0**-53 * size


def test_the_order_of_additions_would_show() -> None:
    """Shows that the test above can fail."""
    values = _values(list(range(60)))
    sequential = torch.zeros(4, dtype=torch.float64)
    for value in values.values():
        sequential += value
    assert not torch.equal(_sum(values).total(), sequential)


def test_a_block_is_added_in_order() -> None:
    values = list(_values(list(range(9))).values())
    total, expected = TreeSum(), torch.zeros(4, dtype=torch.float64)
    for value in values:
        total.add(3, value)
        expected += value
    assert torch.equal(total.total(), expected)


def test_the_tree_is_that_of_the_blocks_numbers() -> None:
    values = _values([0, 1, 2, 5, 6])
    a, b, c, d, e = (value.double() for value in values.values())
    assert torch.equal(_sum(values).total(), ((a + b) + c) + (d + e))


def test_a_range_returns_few_parts() -> None:
    values = _values(list(range(1000)))
    assert len(_sum({k: values[k] for k in range(512)}, 0, 512).parts()) == 1
    assert len(_sum({k: values[k] for k in range(512, 1000)}, 512, None).parts()) == 1
    inner = _sum({k: values[k] for k in range(333, 667)}, 333, 667).parts()
    assert len(inner) <= 2 * 10


def test_values_are_added_in_double_precision_and_left_alone() -> None:
    small, large = torch.tensor([2.0**-30]), torch.tensor([1.0])
    total = _sum({0: large, 1: small}).total()
    assert total.dtype == torch.float64
    assert float(total) == 1.0 + 2.0**-30
    assert float(large) == 1.0
    assert float(small) == 2.0**-30


def test_what_cannot_be_added_is_refused() -> None:
    total = TreeSum(2, 8)
    for block in (1, 8):
        with pytest.raises(ValueError, match=f"Block {block} cannot be added"):
            total.add(block, torch.zeros(1))
    total.add(3, torch.zeros(1))
    with pytest.raises(ValueError, match="Block 2 cannot be added behind block 3"):
        total.add(2, torch.zeros(1))
    total.add(4, torch.zeros(1))
    with pytest.raises(ValueError, match="There are 2 partial sums"):
        total.total()  # block 1, elsewhere, comes in between
    with pytest.raises(ValueError, match="There are 0 partial sums"):
        TreeSum().total()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_block_says_whether_all_its_replies_are_finite(value: float) -> None:
    assert TreeSum().add_block(0, torch.full((8, 3), 3.4e38))  # no float32 holds their sum
    replies = torch.zeros(8, 3)
    replies[5, 2] = value
    assert not TreeSum().add_block(0, replies)


def test_blocks_are_added_up_in_float64_whoever_adds_them() -> None:
    replies = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    whole = TreeSum()
    for block, values in enumerate(replies.split(8)):
        whole.add_block(block, values)
    first, second, total = TreeSum(0, 3), TreeSum(3), TreeSum()
    for block, values in enumerate(replies.split(8)):
        (first if block < 3 else second).add_block(block, values)
    for block, part in [*first.parts(), *second.parts()]:
        total.add(block, part)
    assert whole.total().dtype == torch.float64
    assert torch.equal(whole.total(), total.total())


def test_a_block_is_added_once() -> None:
    total = TreeSum()
    total.add_block(1, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="already"):
        total.add_block(1, torch.zeros(2, 3))


def test_the_part_of_one_block_is_sent_as_it_was_added_up() -> None:
    """In float32, half the bytes; the total has the same bits, in float64."""
    replies = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    whole = TreeSum()
    whole.add_block(0, replies[:8])
    whole.add_block(1, replies[8:])
    together = TreeSum()
    for block in (0, 1):
        alone = TreeSum(block, block + 1)
        alone.add_block(block, replies[8 * block : 8 * block + 8])
        ((number, part),) = alone.parts()
        assert (number, part.dtype) == (block, torch.float32)
        together.add(number, part)
    assert together.total().dtype == torch.float64
    assert torch.equal(together.total(), whole.total())
