from __future__ import annotations

import pytest
import torch

from fedsink.privacy import ClassSchedule, JointSchedule
from fedsink.protocol.exchange import Sum
from fedsink.strategies.dp_sinkhorn.rows import Labels, Layout, RoundRows, SelfParts

LAYOUTS = {
    "by class": Layout(5, 3, ClassSchedule(3), False, 4, 0.5),
    "fewer clients than classes": Layout(2, 3, ClassSchedule(3), False, 4, 0.0),
    "all classes at once": Layout(5, 3, JointSchedule(), False, 4, 0.0),
    "mixed": Layout(5, 3, JointSchedule(), True, 4, 0.3),
    "unconditional": Layout(5, 1, JointSchedule(), True, 4, 0.0),
}
EACH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))


def rows_of(layout: Layout, round: int, width: int = 2) -> RoundRows:
    """Rows of zeros, with a random self term outside."""
    kinds = layout.group_kinds(round)
    sizes = layout.groups, layout.group_rows + layout.extra, width
    outside = torch.randn(*sizes, dtype=torch.float64)
    parts = SelfParts(torch.zeros(layout.groups, 0), torch.zeros(layout.groups, 0, 0), outside)
    return RoundRows(round, layout, kinds, torch.zeros(sizes), parts)


@EACH
@pytest.mark.parametrize("round", [1, 2, 6])
def test_every_client_is_asked_about_rows_of_the_class_that_the_schedule_names(layout, round):
    rows = rows_of(layout, round)
    blocks = set()
    for client in range(layout.clients):
        label = layout.schedule.label(client, round)
        seen = layout.row_labels(rows.kinds[rows.groups_of(label)])[:, : layout.group_rows]
        assert seen.numel() == layout.block_rows
        assert set(seen.flatten().tolist()) == (
            set(range(layout.classes)) if label is None else {label}
        )
        blocks.add(rows.block(label))
    assert sorted(blocks) == list(range(layout.blocks))


@EACH
def test_sizes_fit(layout):
    kinds = layout.group_kinds(1)
    assert len(kinds) == layout.groups
    assert layout.row_labels(kinds).shape[1] == layout.group_rows + layout.extra
    assert int(kinds.amax()) < layout.kinds
    assert layout.blocks * layout.block_rows == layout.groups * layout.group_rows


def test_extra_rows_of_a_mixed_group_have_the_first_ones_labels():
    (labels,) = LAYOUTS["mixed"].row_labels(torch.tensor([0]))
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0]


@EACH
def test_the_gradient_is_each_blocks_mean_over_those_who_were_asked(layout):
    rows, n = rows_of(layout, 4), layout.group_rows
    releases = torch.randn(layout.clients, *rows.shape, dtype=torch.float64)
    cohorts: dict[Labels, list[int]] = {}
    for client in range(layout.clients):
        cohorts.setdefault((layout.label(client, 4),), []).append(client)
    sums = {
        labels: Sum(releases[clients].sum(0).unsqueeze(0), len(clients))
        for labels, clients in cohorts.items()
    }
    means, counts = rows.means(sums, 0)
    for labels, clients in cohorts.items():
        block = rows.block(labels[0])
        assert counts[block] == len(clients)
        torch.testing.assert_close(means[block], releases[clients].mean(0))
    gradient = rows.gradient(means, counts, 2.0).reshape(rows.parts.outside.shape)
    difference = gradient - rows.parts.outside
    torch.testing.assert_close(difference[:, :n].reshape(means.shape), means / 2.0)
    assert torch.equal(gradient[:, n:], rows.parts.outside[:, n:])
