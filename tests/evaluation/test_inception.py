from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedsink.errors import ModelError
from fedsink.evaluation.inception import (
    WEIGHTS,
    bare_inception,
    inception_features,
    inception_score,
    load_inception,
    score_of_splits,
    weights_path,
)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    return tmp_path / "hub" / "checkpoints" / WEIGHTS


def test_missing_weights_are_named_with_the_way_to_get_them_and_nothing_is_downloaded(
    hub, monkeypatch
):
    def refuse(*arguments, **more):
        raise AssertionError("a download was tried")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    assert weights_path() == hub
    with pytest.raises(ModelError, match=f"{WEIGHTS} is not in the checkpoints folder"):
        load_inception()


def test_damaged_weights_are_refused(hub):
    hub.parent.mkdir(parents=True)
    hub.write_bytes(b"half a download")
    with pytest.raises(ModelError, match=r"damaged: .* has SHA-256 [0-9a-f]{8}"):
        load_inception()


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return bare_inception()


@pytest.mark.medium
def test_features_are_the_2048_before_the_last_layer(network):
    images = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    features = inception_features(network, images)
    assert features.shape == (3, 2048)
    assert torch.allclose(inception_features(network, images.expand(-1, 3, -1, -1)), features)
    assert torch.allclose(inception_features(network, images[1:2]), features[1:2], atol=1e-4)


def test_pixels_are_resized_and_normalised_as_imagenets(network):
    """A grey picture stays grey when resized, and is known in closed form when normalised."""
    seen = []
    handle = network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        inception_features(network, torch.full((1, 1, 8, 8), 0.5))
    finally:
        handle.remove()
    assert seen[0].shape == (1, 3, 299, 299)
    expected = (0.5 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(seen[0].amin(dim=(0, 2, 3)), expected, atol=1e-5)
    assert torch.allclose(seen[0].amax(dim=(0, 2, 3)), expected, atol=1e-5)


@pytest.mark.medium
def test_a_named_file_is_read_wherever_it_lies_and_whatever_its_name(hub, network, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(network.state_dict() | {"fc.weight": torch.zeros(1000, 2048)}, path)
    loaded = load_inception(path)
    assert all(map(torch.equal, loaded.state_dict().values(), network.state_dict().values()))
    assert not loaded.training


def test_a_named_file_that_is_missing_or_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "weights.pt"
    with pytest.raises(ModelError, match=r"weights.pt cannot be read \(No such file.*such as"):
        load_inception(path)
    path.write_bytes(b"half a download")
    with pytest.raises(ModelError, match=f"weights.pt is no checkpoint of PyTorch: .*{WEIGHTS}"):
        load_inception(path)
    torch.save([torch.zeros(2)], path)
    with pytest.raises(ModelError, match="a checkpoint without named weights"):
        load_inception(path)
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(ModelError, match=r"not torchvision's Inception v3 \(Missing key"):
        load_inception(path)


def test_a_checkpoint_executes_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "sprung").touch, ())

    torch.save({"weights": Trap()}, tmp_path / "weights.pt")
    with pytest.raises(ModelError, match="no checkpoint"):
        load_inception(tmp_path / "weights.pt")
    assert not (tmp_path / "sprung").exists()


def test_weights_that_are_not_finite_are_refused(network):
    with pytest.raises(ModelError, match="features are not finite"):
        inception_features(network, torch.full((1, 1, 8, 8), torch.nan))


@pytest.mark.medium
def test_weights_under_the_right_name_and_digest_are_loaded(hub, monkeypatch):
    """torchvision's own layout, last layer included; the file is ours, so is the digest."""
    import hashlib

    from torchvision.models import inception_v3

    from fedsink.evaluation import inception

    torch.manual_seed(1)
    state = inception_v3(weights=None, init_weights=False).state_dict()
    hub.parent.mkdir(parents=True)
    torch.save(state, hub)
    digest = hashlib.sha256(hub.read_bytes()).hexdigest()[:8]
    monkeypatch.setattr(inception, "WEIGHTS", f"inception_v3_google-{digest}.pth")
    hub.rename(inception.weights_path())
    loaded = load_inception()
    assert torch.equal(
        loaded.Mixed_7c.branch1x1.conv.weight, state["Mixed_7c.branch1x1.conv.weight"]
    )
    assert not loaded.training


def test_other_channels_are_refused(network):
    with pytest.raises(ModelError, match="1 or 3 channels; the images have 2"):
        inception_features(network, torch.zeros(1, 2, 8, 8))


def test_sure_and_balanced_is_the_number_of_classes():
    assert inception_score(torch.eye(7).repeat(3, 1)) == pytest.approx(7)


@pytest.mark.parametrize("row", [[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.2, 0.1]])
def test_the_same_answer_everywhere_is_one(row):
    assert inception_score(torch.tensor([row]).repeat(5, 1)) == pytest.approx(1)


def test_sure_but_unbalanced_is_the_exponential_of_the_entropy():
    p = torch.eye(2)[[0, 0, 0, 1]]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert inception_score(p) == pytest.approx(math.exp(entropy))


def test_is_the_mutual_information_of_an_unsure_classifier():
    """Two rows (a, 1 − a) and (1 − a, a): log 2 minus the entropy of a."""
    a = 0.9
    p = torch.tensor([[a, 1 - a], [1 - a, a]])
    expected = math.log(2) + a * math.log(a) + (1 - a) * math.log(1 - a)
    assert inception_score(p) == pytest.approx(math.exp(expected), rel=1e-6)


@pytest.mark.parametrize(
    "p", [torch.zeros(0, 3), torch.ones(3), torch.ones(3, 2), torch.tensor([[1.5, -0.5]])]
)
def test_refuses_what_is_no_probability(p):
    with pytest.raises(ValueError, match="robabilities must"):
        inception_score(p)


def test_splits_have_the_mean_and_the_deviation_of_their_scores_in_a_drawn_order():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(1003, 5, generator=generator).double()
    p = p / p.sum(dim=1, keepdim=True)
    order = torch.randperm(1003, generator=torch.Generator().manual_seed(7))
    mean, sd = score_of_splits(p, seed=7)
    parts = [inception_score(part) for part in p[order].tensor_split(10)]
    average = sum(parts) / 10
    assert mean == pytest.approx(average)
    assert sd == pytest.approx(math.sqrt(sum((part - average) ** 2 for part in parts) / 10))
    assert score_of_splits(p, seed=8) != (mean, sd)


def test_a_sample_in_order_of_its_classes_is_mixed_before_it_is_split():
    p = torch.eye(5).repeat_interleave(200, dim=0)
    mean, sd = score_of_splits(p, seed=0)
    assert mean == pytest.approx(5, rel=0.05)
    assert sd < 0.1
    assert score_of_splits(p, seed=0, splits=1) == (pytest.approx(inception_score(p)), 0)


@pytest.mark.parametrize("splits", [0, 11])
def test_refuses_more_parts_than_rows(splits):
    with pytest.raises(ValueError, match=f"{splits} splits need as many rows; received 10"):
        score_of_splits(torch.eye(10), seed=0, splits=splits)
