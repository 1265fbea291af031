from __future__ import annotations

import pytest
import torch

from fedsink.evaluation.figures import nearest as module
from fedsink.evaluation.figures.nearest import distance_blocks, nearest

from ...support.clouds import cloud


@pytest.mark.parametrize("block", [2**24, 100, 1])
@pytest.mark.parametrize("same", [False, True])
def test_finds_what_scikit_learn_finds_in_blocks_of_any_size(monkeypatch, block, same):
    from sklearn.neighbors import NearestNeighbors

    monkeypatch.setattr(module, "BLOCK", block)
    points = cloud(50, 3, seed=1) + 5
    queries = points if same else cloud(37, 3, seed=2) + 5
    oracle = NearestNeighbors(n_neighbors=4).fit(points.numpy())
    # Without an argument scikit-learn leaves every point out of its own neighbours.
    expected = oracle.kneighbors(None if same else queries.numpy())
    distances, indices = nearest(queries, points, k=4, same=same)
    assert torch.allclose(distances, torch.from_numpy(expected[0]), atol=1e-12)
    assert torch.equal(indices, torch.from_numpy(expected[1]))


def test_blocks_cover_all_queries_and_hold_no_more_than_they_may(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 60)
    queries, points = cloud(23, 2, seed=1), cloud(20, 2, seed=2)
    parts = list(distance_blocks(queries, points))
    assert all(part.numel() <= 60 for _, part in parts)
    assert torch.allclose(
        torch.cat([part for _, part in parts]).sqrt(), torch.cdist(queries, points)
    )
    assert [rows.start for rows, _ in parts] == list(range(0, 23, 3))


def test_a_copy_has_distance_zero_also_in_single_precision_far_from_the_origin():
    points = torch.rand(40, 700, generator=torch.Generator().manual_seed(0)) + 100
    distances, indices = nearest(points.flip(0), points)
    assert float(distances.max()) == 0
    assert torch.equal(indices[:, 0], torch.arange(39, -1, -1))


def test_duplicates_are_neighbours_at_distance_zero():
    points = torch.zeros(3, 2)
    assert nearest(points, points, k=2, same=True)[0].tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(("k", "same"), [(0, False), (6, False), (5, True)])
def test_refuses_more_neighbours_than_there_are(k, same):
    points = cloud(5, 2)
    with pytest.raises(ValueError, match=f"{k} nearest neighbours need more points; received 5"):
        nearest(points, points, k=k, same=same)


def test_refuses_samples_that_do_not_fit():
    with pytest.raises(ValueError, match=r"received \(4, 2\) and \(4, 3\)"):
        nearest(cloud(4, 2), cloud(4, 3))
