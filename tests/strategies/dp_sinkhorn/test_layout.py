from __future__ import annotations

import pytest
import torch

from fedsink.privacy import ClassSchedule, JointSchedule
from fedsink.strategies.dp_sinkhorn.layout import Layout

LAYOUTS = {
    "by class": Layout(5, 3, ClassSchedule(3), False, 4, 0.5),
    "fewer clients than classes": Layout(2, 3, ClassSchedule(3), False, 4, 0.0),
    "all classes at once": Layout(5, 3, JointSchedule(), False, 4, 0.0),
    "mixed": Layout(5, 3, JointSchedule(), True, 4, 0.3),
    "unconditional": Layout(5, 1, JointSchedule(), True, 4, 0.0),
}
EACH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))


@EACH
@pytest.mark.parametrize("round", [1, 2, 6])
def test_every_client_is_asked_about_rows_of_the_class_that_the_schedule_names(
    layout: Layout, round: int
) -> None:
    kinds = layout.group_labels(round)
    blocks = layout.in_blocks(layout.row_labels(kinds))
    assert blocks.shape == (layout.blocks, layout.block_rows)
    for client, block in enumerate(layout.positions(round).tolist()):
        label = layout.schedule.label(client, round)
        expected = set(range(layout.classes)) if label is None else {label}
        assert set(blocks[block].tolist()) == expected
        seen = layout.row_labels(kinds[layout.groups_of(block)])[:, : layout.group_rows]
        assert torch.equal(seen.flatten(), blocks[block])
    assert sorted(layout.positions(round).unique().tolist()) == list(range(layout.blocks))


@EACH
def test_sizes_fit(layout: Layout) -> None:
    kinds = layout.group_labels(1)
    assert len(kinds) == layout.groups
    assert layout.row_labels(kinds).numel() == layout.rows
    assert layout.row_labels(kinds).shape[1] == layout.group_rows + layout.extra
    assert int(kinds.amax()) < layout.kinds
    assert layout.blocks * layout.block_rows == layout.groups * layout.group_rows


def test_extra_rows_of_a_mixed_group_have_the_first_ones_labels() -> None:
    (labels,) = LAYOUTS["mixed"].row_labels(torch.tensor([0]))
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0]


@EACH
def test_the_gradient_is_each_blocks_mean_over_those_who_were_asked(layout: Layout) -> None:
    releases = torch.randn(layout.clients, layout.block_rows, 2, dtype=torch.float64)
    positions = layout.positions(4)
    means = layout.means(releases, positions)
    for block, mean in enumerate(means):
        torch.testing.assert_close(mean, releases[positions == block].mean(0))
    sizes = layout.groups, layout.group_rows + layout.extra, 2
    outside = torch.randn(*sizes, dtype=torch.float64)
    gradient = layout.gradient(means, outside, 2.0).reshape(sizes)
    n = layout.group_rows
    torch.testing.assert_close(layout.in_blocks(gradient - outside), means / 2.0)
    assert torch.equal(gradient[:, n:], outside[:, n:])
