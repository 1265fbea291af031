from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedsink.errors import ConfigError, ModelError
from fedsink.results.evaluation.inception import (
    WEIGHTS,
    bare_inception,
    fid,
    inception_features,
    load_inception,
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

    from fedsink.results.evaluation import inception

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


def test_fid_of_too_few_images_is_refused():
    with pytest.raises(ConfigError, match=r"more than 2048 images .* received 9 .* 3000"):
        fid(None, torch.zeros(9, 1, 8, 8), torch.zeros(3000, 1, 8, 8), 0)
