from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor

from fedsink.data import dct
from fedsink.data.views import DctView
from fedsink.errors import ModelError
from fedsink.models import (
    GENERATORS,
    Conv,
    Dcgan,
    DctMlp,
    Generator,
    Mlp,
    build,
    load,
    parameter_count,
    sample,
    save,
)
from fedsink.models.generator_base import LatentLaw
from fedsink.models.layers import normalised
from fedsink.privacy.randomness.noise import Stream

CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("dct_mlp", (1, 8, 8), {}),
    ("dct_mlp", (3, 6, 8), {"radius": 3.5, "per_class_first_layer": True, "latent_dim": 5}),
    ("dct_mlp", (1, 8, 8), {"hidden": [16], "one_hot_scale": 1.0}),
    ("mlp", (1, 8, 8), {}),
    ("mlp", (2,), {"output": "linear", "batch_norm": False}),
    ("mlp", (1, 8, 8), {"hidden": [], "conditional": False}),
    ("conv", (1, 8, 8), {}),
    ("conv", (1, 28, 28), {"hidden": 16, "maps": [4, 2], "latent_dim": 3}),
    ("conv", (3, 32, 32), {"hidden": 16, "maps": [4, 3, 2]}),
    ("conv", (3, 5, 9), {"hidden": 16, "maps": [4, 2], "latent_law": "normal"}),
    ("biggan", (3, 12, 9), {"width": 6, "blocks": 2, "latent_dim": 3}),
    ("biggan", (1, 8, 8), {"width": 4, "label_embedding": 2}),
    ("dcgan", (1, 28, 28), {"width": 4}),
    ("dcgan", (3, 32, 32), {"width": 4, "label_embedding": 4, "latent_dim": 12}),
]


def make(case: tuple[str, tuple[int, ...], dict[str, Any]], seed: int = 0) -> Generator:
    name, shape, options = case
    return build(name, shape, 4, generator=torch.Generator().manual_seed(seed), **options)


def stream(*context: str | int) -> Stream:
    return Stream(b"test", *context)


@pytest.mark.parametrize("case", CASES)
def test_outputs_have_the_shape_and_range(case: Any) -> None:
    generator = make(case)
    labels = torch.arange(12) % 4
    images = generator(generator.latent(12, stream()), labels)
    assert images.shape == (12, *case[1])
    assert images.dtype == torch.float32
    if len(case[1]) == 3:
        assert bool(((images >= 0.0) & (images <= 1.0)).all())
    images.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in generator.parameters())


@pytest.mark.parametrize("case", CASES)
def test_weights_come_from_the_given_generator_alone(case: Any) -> None:
    before = torch.random.get_rng_state()
    torch.manual_seed(123)
    first = make(case).state_dict()
    torch.manual_seed(456)
    again, other = make(case).state_dict(), make(case, seed=1).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    torch.random.set_rng_state(before)
    make(case)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("case", CASES)
def test_no_weight_is_left_uninitialised(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty memory may look fine by chance: fill it with NaN."""
    empty = torch.empty_like

    def poisoned(*args: Any, **options: Any) -> torch.Tensor:
        made = empty(*args, **options)
        return made.fill_(float("nan")) if made.device.type == "cpu" else made

    monkeypatch.setattr(torch, "empty_like", poisoned)
    assert all(bool(t.isfinite().all()) for t in make(case).state_dict().values())


def test_initial_weights_follow_pytorchs_rule() -> None:
    generator = build("mlp", (1, 8, 8), 4, latent_dim=12, hidden=[256], batch_norm=False)
    weight = generator.layers[0].weight.detach().flatten().numpy()  # type: ignore[index, union-attr]
    assert kstest(weight, "uniform", args=(-0.25, 0.5)).pvalue > 1e-3
    assert kstest(weight, "uniform", args=(-0.375, 0.75)).pvalue < 1e-3
    convolution = Dcgan((1, 28, 28), 4, width=8).state_dict()["layers.9.weight"]
    assert float(convolution.abs().max()) <= (8 * 9) ** -0.5


@pytest.mark.parametrize("case", CASES)
def test_labels_matter_where_they_should(case: Any) -> None:
    generator = make(case)
    z = generator.latent(8, stream())
    zeros, ones = torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.int64)
    changed = not torch.equal(generator(z, zeros), generator(z, ones))
    assert changed == (case[2].get("conditional") is not False)


@pytest.mark.parametrize(
    ("law", "reference", "rejected"),
    [
        ("uniform", ("uniform", (-1, 2)), ("uniform", (-1.5, 3))),
        ("unit", ("uniform", (0, 1)), ("uniform", (-0.25, 1.5))),
        ("normal", ("norm", (0, 1)), ("norm", (0, 1.5))),
    ],
)
def test_latents_follow_their_law(law: str, reference: Any, rejected: Any) -> None:
    generator = build("mlp", (1, 8, 8), 2, latent_law=law, latent_dim=4)
    z = generator.latent(1000, stream())
    assert z.shape == (1000, 4)
    assert z.dtype == torch.float32
    values = z.flatten().numpy()
    assert kstest(values, reference[0], args=reference[1]).pvalue > 1e-3
    assert kstest(values, rejected[0], args=rejected[1]).pvalue < 1e-3
    assert torch.equal(z, generator.latent(1000, stream()))
    assert not torch.equal(z, generator.latent(1000, stream("other")))


@pytest.mark.parametrize("case", CASES)
def test_batch_statistics_are_declared_truthfully(case: Any) -> None:
    generator = make(case)
    z = generator.latent(8, stream())
    labels = torch.arange(8) % 4
    whole, part = generator(z, labels)[:4], generator(z[:4], labels[:4])
    alone = torch.allclose(whole, part, atol=1e-6)
    assert alone != generator.uses_batch_statistics
    generator.eval()
    torch.testing.assert_close(generator(z, labels)[:4], whole)


def test_the_scale_multiplies_the_one_hot_label() -> None:
    scaled, plain = (build("dct_mlp", (1, 8, 8), 4, one_hot_scale=s) for s in (3.0, 1.0))
    z, labels = scaled.latent(8, stream()), torch.arange(8) % 4
    assert not torch.allclose(scaled(z, labels), plain(z, labels), atol=1e-3)
    with torch.no_grad():
        plain.layers[0].weight[:, plain.latent_dim :] *= 3.0  # type: ignore[index, union-attr]
    torch.testing.assert_close(scaled(z, labels), plain(z, labels))


def test_dcgan_leaks_a_fifth_of_what_is_negative() -> None:
    layers = Dcgan((1, 28, 28), 4, width=4).modules()
    rectifiers = [layer for layer in layers if isinstance(layer, torch.nn.LeakyReLU)]
    below = torch.tensor([-1.0, 2.0])
    assert [rectify(below).tolist() for rectify in rectifiers] == 3 * [[pytest.approx(-0.2), 2.0]]


@pytest.mark.parametrize("name", ["dct_mlp", "conv"])
def test_the_gain_multiplies_what_tanh_sees(name: str) -> None:
    stream = Stream(b"gain", 0)
    plain, gained = (build(name, (1, 8, 8), 10, output_gain=g) for g in (1.0, 4.0))
    z, labels = plain.latent(20, stream), torch.arange(20) % 10
    before = [torch.atanh(2.0 * g(z, labels) - 1.0) for g in (plain, gained)]
    torch.testing.assert_close(before[1], 4.0 * before[0], rtol=1e-3, atol=1e-4)


def test_dct_mlp_draws_inside_the_band_of_the_view() -> None:
    generator = DctMlp((1, 8, 8), 4, radius=4.0).double()
    assert "basis" not in generator.state_dict()
    images = generator(torch.rand(5, 3).double(), torch.arange(5) % 4)
    field = torch.atanh(2 * images - 1)
    inside = DctView((1, 8, 8), 4.0)((field + 1) / 2).square().sum(1)
    torch.testing.assert_close(inside, field.flatten(1).square().sum(1))


def test_per_class_first_layer_is_a_matrix_of_its_own_per_class() -> None:
    generator = DctMlp((1, 8, 8), 4, per_class_first_layer=True, latent_dim=3)
    z, labels = torch.rand(4, 3), torch.arange(4)
    weight = generator.layers[0].weight.detach().T.reshape(4, 4, 256)  # type: ignore[operator]
    hidden = torch.einsum("ni,nih->nh", z, weight[:, :3]) + weight[:, 3]
    seen: list[torch.Tensor] = []
    generator.layers[0].register_forward_hook(lambda *a: seen.append(a[2]))
    generator(z, labels)
    torch.testing.assert_close(seen[0].detach(), hidden)
    # As strong at the start as a linear layer with that fan-in.
    assert float(weight.abs().max()) == pytest.approx(0.5, rel=0.05)


def test_conv_doubles_from_a_small_base_and_cuts_what_is_too_many() -> None:
    shapes = {name: tuple(p.shape) for name, p in Conv((1, 28, 28), 10).named_parameters()}
    assert shapes["first.weight"] == (256, 10 * (8 + 1))
    assert shapes["second.weight"] == (32 * 7 * 7, 256)
    assert shapes["deconvolutions.1.weight"] == (32, 16, 4, 4)
    assert shapes["deconvolutions.3.weight"] == (16, 1, 4, 4)
    # 5 × 9 pixels are the corner of 8 × 12 of the same weights.
    cut, whole = (Conv((1, *sides), 4, radius=99.0, maps=[3, 2]) for sides in ((5, 9), (8, 12)))
    assert cut.base == whole.base == (3, 2, 3)
    whole.load_state_dict(cut.state_dict())
    z, labels = cut.latent(6, stream()), torch.arange(6) % 4
    torch.testing.assert_close(cut(z, labels), whole(z, labels)[..., :5, :9])


def test_conv_draws_nothing_above_its_radius() -> None:
    """A view above the radius has no gradient, and deconvolutions leave a pattern of dots."""
    generator = Conv((2, 12, 8), 3, radius=3.5)
    field = torch.atanh(2 * generator(generator.latent(9, stream()), torch.arange(9) % 3) - 1)
    everything = tuple((i, j) for i in range(12) for j in range(8))
    coefficients = field.detach().flatten(2).double() @ dct.basis(12, 8, everything).T
    inside = torch.tensor([math.hypot(i, j) < 3.5 for i, j in everything])
    assert float(coefficients[..., ~inside].abs().max()) < 1e-4
    assert float(coefficients[..., inside].abs().mean()) > 1e-2


def test_conv_has_a_first_matrix_of_its_own_per_class() -> None:
    """A class's pictures depend only on its block, which starts with that block's fan-in."""
    generator = Conv((1, 8, 8), 3, latent_dim=2, hidden=64)
    z, labels = generator.latent(6, stream()), torch.arange(6) % 3
    before = generator(z, labels)
    assert float(generator.first.weight.detach().abs().max()) == pytest.approx(3**-0.5, rel=0.05)
    with torch.no_grad():
        generator.first.weight[:, 3:6] += 1.0
    moved = (generator(z, labels) - before).abs().amax((1, 2, 3))
    assert (moved > 1e-3).tolist() == [False, True, False] * 2


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("vae", (1, 8, 8), {}, "'vae' is unknown; choose one of biggan, conv, dcgan, dct_mlp, mlp"),
        ("mlp", (1, 8, 8), {"depth": 3}, "mlp has no option 'depth'; it has latent_dim, latent_"),
        ("mlp", (8, 8), {}, r"got shape \(8, 8\)"),
        ("mlp", (1, 8, 8), {"latent_dim": 0}, "latent_dim of at least 1, got 0"),
        ("mlp", (1, 8, 8), {"latent_law": "cauchy"}, "or 'normal', got 'cauchy'"),
        ("mlp", (1, 8, 8), {"output": "relu"}, "'sigmoid' or 'linear', got 'relu'"),
        ("mlp", (1, 8, 8), {"output": "linear"}, r"images are in \[0, 1\] and need 'sigmoid'"),
        ("dct_mlp", (2,), {}, r"dct_mlp makes images .* got shape \(2,\); use mlp"),
        ("dct_mlp", (1, 8, 8), {"hidden": []}, "at least one hidden layer"),
        ("dct_mlp", (1, 8, 8), {"one_hot_scale": 10**30}, "a number as one_hot_scale, got 1000"),
        ("dct_mlp", (1, 8, 8), {"one_hot_scale": "x"}, "a number as one_hot_scale, got 'x'"),
        ("dct_mlp", (1, 8, 8), {"one_hot_scale": [1]}, r"a number as one_hot_scale, got \[1\]"),
        ("dct_mlp", (1, 8, 8), {"output_gain": 1e300}, r"positive output_gain, got 1e\+300"),
        ("dct_mlp", (1, 8, 8), {"per_class_first_layer": 1}, "is true or false, not 1"),
        ("dct_mlp", (1, 8, 8), {"hidden": [0]}, "whole sizes from 1 to .*, got 0"),
        ("mlp", (1, 8, 8), {"hidden": [4, 0]}, "whole sizes from 1 to .*, got 0"),
        ("dct_mlp", (1, 8, 8), {"radius": 0}, "positive radius, got 0"),
        ("dct_mlp", (1, 8, 8), {"output_gain": 0.0}, r"positive output_gain, got 0\.0"),
        ("conv", (2,), {}, r"conv makes images .* got shape \(2,\); use mlp"),
        ("conv", (1, 8, 8), {"maps": []}, "so maps has 1 to 4 sizes, got 0"),
        ("conv", (1, 9, 7), {"maps": [2] * 4}, "so maps has 1 to 3 sizes, got 4"),
        ("conv", (1, 8, 8), {"maps": [8, 0]}, "conv needs maps of at least 1, got 0"),
        ("conv", (1, 8, 8), {"radius": 0.0}, "conv needs a positive radius, got 0.0"),
        ("conv", (1, 8, 8), {"hidden": 0}, "conv needs hidden of at least 1, got 0"),
        ("conv", (1, 8, 8), {"output_gain": -1.0}, r"positive output_gain, got -1\.0"),
        ("dcgan", (1, 8, 8), {}, r"28×28 or 32×32 pixels .* got shape \(1, 8, 8\)"),
        ("dcgan", (1, 28, 32), {}, r"28×28 or 32×32 pixels .* got shape \(1, 28, 32\)"),
        ("dcgan", (1, 28, 28), {"width": 0}, "width of at least 1, got 0"),
        ("biggan", (2,), {}, r"biggan makes images .* got shape \(2,\)"),
        ("biggan", (1, 8, 8), {"width": 0}, "biggan needs whole sizes from 1 .* got 0"),
        ("biggan", (1, 8, 8), {"blocks": 17}, "biggan has at most 16 blocks, got 17"),
        ("biggan", (1, 8, 8), {"label_embedding": 2.5}, r"got 2\.5"),
    ],
)
def test_messages(name: str, shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(name, shape, 4, **options)


def test_zero_classes_are_refused() -> None:
    with pytest.raises(ModelError, match="classes of at least 1, got 0"):
        build("mlp", (1, 8, 8), 0)


def test_the_published_dcgan() -> None:
    generator = Dcgan((1, 28, 28), 10)
    assert (generator.latent_dim, generator.latent_law) == (16, "unit")
    shapes = [tuple(p.shape) for p in generator.parameters() if p.ndim == 4]
    assert shapes == [(24, 256, 7, 7), (256, 128, 4, 4), (128, 64, 4, 4), (1, 64, 3, 3)]


def test_an_unconditional_generator_of_points_ignores_its_only_label() -> None:
    generator = Mlp((2,), 1, latent_dim=2, output="linear")
    assert not generator.conditional


def test_an_installed_package_adds_a_generator(
    install_package: Callable[[dict[str, str], str], None], tmp_path: Path
) -> None:
    source = "from fedsink.models import Mlp\n\nclass Mine(Mlp):\n    name = 'mine'\n"
    install_package({"mine.py": source}, "[fedsink.generators]\nmine = mine:Mine\n")
    generator = build("mine", (1, 4, 4), 2, latent_dim=3)
    assert type(generator).__module__ == "mine"
    save(generator, tmp_path)
    assert load(tmp_path).options == generator.options


SIZES = st.integers(1, 7)
HIDDEN = st.lists(SIZES, max_size=3)


@st.composite
def described(draw: st.DrawFn) -> tuple[str, tuple[int, ...], int, dict[str, Any]]:
    """Name, shape, classes and options of any generator that can be built."""
    name = draw(st.sampled_from(sorted(GENERATORS)))
    classes = draw(SIZES)
    options: dict[str, Any] = {"latent_dim": draw(SIZES)}
    shape: tuple[int, ...] = (draw(st.integers(1, 3)), draw(SIZES), draw(SIZES))
    if name == "dcgan":
        side = draw(st.sampled_from([28, 32]))
        shape = (shape[0], side, side)
        options |= {"width": draw(st.integers(1, 3)), "label_embedding": draw(SIZES)}
    elif name == "biggan":
        options |= {"width": draw(SIZES), "label_embedding": draw(SIZES), "blocks": draw(SIZES)}
    elif name == "conv":
        shape = (shape[0], 1 + shape[1], 1 + shape[2])  # for the default's two doublings
        most = min(shape[1:]).bit_length()
        maps = draw(st.lists(SIZES, min_size=1, max_size=most))
        radius = draw(st.sampled_from([None, 1.0, 2.5, 99.0]))
        options |= {"hidden": draw(SIZES), "maps": maps, "radius": radius}
    elif name == "dct_mlp":
        options |= {
            "hidden": draw(HIDDEN.filter(bool)),
            "radius": draw(st.sampled_from([None, 1.0, 2.5, 99.0])),
            "per_class_first_layer": draw(st.booleans()),
        }
    else:
        points = draw(st.booleans())
        shape = shape[1:2] if points else shape
        options |= {
            "hidden": draw(HIDDEN),
            "batch_norm": draw(st.booleans()),
            "output": draw(st.sampled_from(["sigmoid", "linear"])) if points else "sigmoid",
            "conditional": draw(st.sampled_from([None, True, False])),
        }
    given_ones = draw(st.sets(st.sampled_from(sorted(options))))
    return name, shape, classes, {key: options[key] for key in sorted(given_ones)}


@pytest.mark.medium
@settings(max_examples=150)
@given(described())
def test_the_weights_are_counted_without_building_anything(
    description: tuple[str, tuple[int, ...], int, dict[str, Any]],
) -> None:
    """The count includes options that are left out: their defaults count."""
    name, shape, classes, options = description
    built = build(name, shape, classes, **options)
    real = sum(parameter.numel() for parameter in built.parameters())
    assert parameter_count(name, shape, classes, **options) == real
    assert parameter_count(name, shape, classes, **built.options) == real


def test_counting_costs_nothing_however_large_the_generator() -> None:
    largest, points = 2**30, 2**22
    count = parameter_count("mlp", (points,), 1, hidden=[largest] * 62, batch_norm=False)
    assert count == (16 + 1 + 61 * (largest + 1)) * largest + (largest + 1) * points


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": [1] * 5000}, "mlp has at most 64 layers, got 5001"),
        ({"hidden": [2**30 + 1]}, "mlp needs whole sizes from 1 to 1073741824, got 1073741825"),
        ({"hidden": [0]}, "got 0"),
        ({"hidden": [2.0]}, r"got 2\.0"),
        ({"hidden": [True]}, "got True"),
        ({"hidden": ["9"]}, "got '9'"),
        ({"latent_dim": -1}, "got -1"),
        ({"nothing": 1}, "mlp has no option 'nothing'"),
    ],
)
def test_sizes_that_no_generator_has_are_refused_unbuilt(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        parameter_count("mlp", (4,), 3, **options)


def test_a_generator_that_does_not_count_its_weights_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(Mlp):
        name = "silent"

        @classmethod
        def parameter_count(cls, *description: Any) -> int:
            return super(Mlp, cls).parameter_count(*description)

    monkeypatch.setitem(GENERATORS, "silent", Silent)
    with pytest.raises(ModelError, match="generator=silent does not say how many weights it has"):
        parameter_count("silent", (4,), 3)


class Recorder(Generator):
    """Draws its label into one pixel and remembers labels and latents of every batch."""

    name = "recorder"

    def __init__(self, classes: int, batch_norm: bool, law: LatentLaw = "unit") -> None:
        super().__init__((1, 1, 1), classes, 2, law, {})
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.norm = normalised(torch.nn.BatchNorm1d, 1) if batch_norm else None
        self.batches: list[Tensor] = []
        self.latents: list[Tensor] = []

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        self.batches.append(labels)
        self.latents.append(z)
        return (labels + z[:, 0] / 2).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("n", [0, 1, 7, 40])
def test_rows_come_back_in_the_order_of_their_labels(batch_norm: bool, n: int) -> None:
    generator = Recorder(3, batch_norm)
    labels = torch.randint(3, (n,), generator=torch.Generator().manual_seed(0))
    images = sample(generator, n, labels, stream("sample"), batch_size=8)
    assert images.shape == (n, 1, 1, 1)
    z = generator.latent(n, stream("sample"))
    torch.testing.assert_close(images.flatten(), labels + z[:, 0] / 2)


def test_labels_cycle_through_the_classes_by_default() -> None:
    images = sample(Recorder(3, False), 7, None, stream("sample"))
    assert images.flatten().floor().tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    "labels", [torch.zeros(25, dtype=torch.int64), torch.arange(24) % 4, torch.tensor([3])]
)
def test_batch_norm_sees_full_balanced_batches_whatever_is_asked(labels: Tensor) -> None:
    generator = Recorder(4, True)
    sample(generator, len(labels), labels, stream("sample"), batch_size=10)
    for batch in generator.batches:
        counts = torch.bincount(batch, minlength=4).tolist()
        assert sorted(counts) == [2, 2, 3, 3]


def test_batch_norm_sees_the_given_mix_and_a_class_outside_it_is_still_drawn() -> None:
    generator = Recorder(3, True)
    mix = torch.tensor([0.5, 0.5, 0.0])
    sample(generator, 20, torch.arange(20) % 2, stream("sample"), batch_size=10, mix=mix)
    assert [torch.bincount(b, minlength=3).tolist() for b in generator.batches] == [[5, 5, 0]] * 2
    outside = torch.full((3,), 2)
    images = sample(generator, 3, outside, stream("sample"), batch_size=10, mix=mix)
    assert images.flatten().floor().tolist() == [2, 2, 2]


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("law", ["uniform", "unit", "normal"])
def test_a_latent_range_widens_every_latent_and_nothing_else(
    batch_norm: bool, law: LatentLaw
) -> None:
    generator = Recorder(3, batch_norm, law)
    labels = torch.arange(20) % 3
    usual = sample(generator, 20, labels, stream("sample"), 8)
    trained, generator.latents = generator.latents, []
    assert torch.equal(usual, sample(generator, 20, labels, stream("sample"), 8, latent_range=1.0))
    assert all(map(torch.equal, trained, generator.latents))
    generator.latents = []
    sample(generator, 20, labels, stream("sample"), 8, latent_range=1.5)
    # With BatchNorm rows that are thrown away count as well.
    for z, wide in zip(trained, generator.latents, strict=True):
        torch.testing.assert_close(wide, 1.5 * z)


@pytest.mark.parametrize("name", ["dct_mlp", "mlp"])
def test_without_batch_norm_rows_depend_neither_on_n_nor_on_the_batch(name: str) -> None:
    options: dict[str, Any] = {"batch_norm": False} if name == "mlp" else {}
    generator = build(name, (1, 8, 8), 10, **options)
    whole = sample(generator, 60, None, stream("sample"), batch_size=60)
    torch.testing.assert_close(sample(generator, 20, None, stream("sample")), whole[:20])
    torch.testing.assert_close(sample(generator, 60, None, stream("sample"), batch_size=7), whole)
    assert not whole.requires_grad


def test_a_single_class_of_a_batch_norm_generator_looks_as_in_training() -> None:
    """The statistics must be those of mixed batches: near them, and far from single-class ones."""
    generator = build("mlp", (1, 8, 8), 2, latent_dim=2)
    with torch.no_grad():
        generator.layers[0].weight[:, 2:] *= 5.0  # type: ignore[index, union-attr]
    n, zeros = 4000, torch.zeros(4000, dtype=torch.int64)
    drawn = sample(generator, n, zeros, stream("sample"), batch_size=2000).mean(0)
    z = generator.latent(n, Stream(b"test", "reference"))
    with torch.no_grad():
        trained = generator(z, torch.arange(n) % 2)[::2].mean(0)
        wrong = generator(z, zeros).mean(0)
    assert float((drawn - trained).abs().max()) < 0.02
    assert float((drawn - wrong).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("n", "labels", "options", "message"),
    [
        (-1, None, {}, "n=-1 and batch_size=500"),
        (3, None, {"batch_size": 1}, "batch_size ≥ 2, got n=3 and batch_size=1"),
        (3, torch.zeros(2, dtype=torch.int64), {}, r"needs 3 int64 labels, got .* \(2,\)"),
        (2, torch.zeros(2), {}, r"needs 2 int64 labels, got torch\.float32"),
        (2, torch.tensor([0, 4]), {}, "label 4 is outside the generator's classes 0 to 3"),
        (2, torch.tensor([-1, 0]), {}, "label -1 is outside"),
        (2, None, {"mix": torch.ones(3)}, "mix must hold 4 non-negative class proportions"),
        (2, None, {"mix": torch.tensor([1.0, -1.0, 1.0, 1.0])}, "mix must hold 4 non-negative"),
        (2, None, {"mix": torch.zeros(4)}, "mix must hold 4 non-negative"),
    ],
)
def test_messages_of_samples(
    n: int, labels: Tensor | None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        sample(Recorder(4, True), n, labels, stream("sample"), **options)


def test_large_pictures_are_drawn_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = build("mlp", (1, 8, 8), 2, hidden=[4], batch_norm=False)
    whole, rows = sample(generator, 9, None, stream()), []
    generator.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    monkeypatch.setattr("fedsink.models.generators._MOST_AT_ONCE", 4 * 64)
    torch.testing.assert_close(sample(generator, 9, None, stream()), whole)
    assert rows == [4, 4, 1]


@pytest.mark.parametrize("case", CASES)
def test_another_default_type_changes_nothing(case: Any) -> None:
    usual = sample(make(case), 9, None, stream())
    torch.set_default_dtype(torch.float64)
    try:
        drawn = sample(make(case), 9, None, stream())
    finally:
        torch.set_default_dtype(torch.float32)
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, usual)
