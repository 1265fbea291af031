from __future__ import annotations

import math

import pytest
import torch

from fedsink.results.evaluation import neighbours
from fedsink.results.evaluation.neighbours import distance_blocks, memorisation, nearest

from ...support.clouds import cloud


@pytest.mark.parametrize("block", [2**24, 100, 1])
@pytest.mark.parametrize("same", [False, True])
def test_finds_what_scikit_learn_finds_in_blocks_of_any_size(monkeypatch, block, same):
    from sklearn.neighbors import NearestNeighbors

    monkeypatch.setattr(neighbours, "BLOCK", block)
    points = cloud(50, 3, seed=1) + 5
    queries = points if same else cloud(37, 3, seed=2) + 5
    oracle = NearestNeighbors(n_neighbors=4).fit(points.numpy())
    # Without an argument scikit-learn does not count a point among its neighbours.
    expected = oracle.kneighbors(None if same else queries.numpy())
    distances, indices = nearest(queries, points, k=4, same=same)
    assert torch.allclose(distances, torch.from_numpy(expected[0]), atol=1e-12)
    assert torch.equal(indices, torch.from_numpy(expected[1]))


def test_blocks_cover_all_queries_and_hold_no_more_than_they_may(monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 60)
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


TRAIN, HELD_OUT = cloud(300, 1, 4, 4, seed=1), cloud(100, 1, 4, 4, seed=2)


def test_a_generator_that_copies_the_training_set_is_detected():
    found = memorisation(TRAIN[:200], TRAIN, HELD_OUT, seed=0)
    assert found["excess"] == pytest.approx(1)
    assert found["z"] > 5
    near = TRAIN[:200] + 0.01 * cloud(200, 1, 4, 4, seed=3)
    assert memorisation(near, TRAIN, HELD_OUT, seed=0)["z"] > 5


def test_the_distances_are_medians_to_equally_many_of_each():
    found = memorisation(HELD_OUT[:60], TRAIN, HELD_OUT, seed=0)
    assert found["held_out_distance"] == 0
    assert found["training_distance"] > 1
    equal = memorisation(TRAIN[:100], TRAIN[:100], HELD_OUT, seed=0)
    distances = torch.cdist(TRAIN[:100].flatten(1), HELD_OUT.flatten(1)).min(dim=1).values
    assert equal["held_out_distance"] == pytest.approx(float(distances.median()))
    assert equal["training_distance"] == 0


def test_a_generator_of_fresh_images_is_not():
    zs = [
        memorisation(
            cloud(200, 1, 3, 3, seed=3 * s),
            cloud(300, 1, 3, 3, seed=3 * s + 1),
            cloud(100, 1, 3, 3, seed=3 * s + 2),
            seed=0,
        )["z"]
        for s in range(60)
    ]
    mean = sum(zs) / len(zs)
    spread = math.sqrt(sum((z - mean) ** 2 for z in zs) / (len(zs) - 1))
    assert max(map(abs, zs)) < 4
    assert abs(mean) < 4 / math.sqrt(60)
    assert 0.7 < spread < 1.4, "z must be standard normal without memorisation"


def test_one_that_saw_the_held_out_images_is_on_the_other_side():
    found = memorisation(HELD_OUT, TRAIN, HELD_OUT, seed=0)
    assert found["excess"] == pytest.approx(-3)  # −N/M: no nearest image is a training image
    assert found["z"] < -5


def test_the_excess_is_the_share_of_copies():
    train, held_out = cloud(3000, 1, 2, 2, seed=1), cloud(3000, 1, 2, 2, seed=2)
    images = torch.cat([train[:600], cloud(1400, 1, 2, 2, seed=3)])
    assert memorisation(images, train, held_out, seed=0)["excess"] == pytest.approx(0.3, abs=0.1)


def test_returning_to_few_images_is_no_evidence():
    """A thousand draws of two pictures are two pieces of evidence, not a thousand."""
    images = TRAIN.mean(dim=0) + 1e-3 * cloud(2, 1, 4, 4, seed=3)
    found = memorisation(images[torch.arange(1000) % 2], TRAIN, HELD_OUT, seed=0)
    assert abs(found["z"]) < 3


@pytest.mark.medium
def test_z_is_the_deviation_from_random_exchanges():
    images, pool = (
        cloud(80, 1, 2, 2, seed=5),
        torch.cat([TRAIN[:40, :, :2, :2], HELD_OUT[:20, :, :2, :2]]),
    )
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(1500):
        order = torch.randperm(60, generator=generator)
        found = memorisation(images, pool[order[:40]], pool[order[40:]], seed=0)
        shares.append((found["excess"], found["z"]))
    excess = torch.tensor(shares).double()
    # z is excess over its standard deviation, which no exchange changes.
    ratio = excess[:, 0] / excess[:, 1]
    finite = excess[:, 1].abs() > 1e-9
    assert float(ratio[finite].std()) < 1e-5
    assert float(excess[:, 0].std()) == pytest.approx(float(ratio[finite][0]), rel=0.1)


def test_an_image_in_both_sets_counts_for_neither():
    found = memorisation(TRAIN[:50], TRAIN[:50], TRAIN[:50], seed=0)
    assert found["excess"] == pytest.approx(0)
    assert found["z"] == 0


def test_refuses_empty_sets():
    with pytest.raises(ValueError, match="received 0, 300 and 100"):
        memorisation(TRAIN[:0], TRAIN, HELD_OUT, seed=0)
