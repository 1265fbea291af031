from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fedsink
from fedsink.errors import ModelError
from fedsink.models import Generator, build, load, sample, save
from fedsink.privacy.randomness.noise import Stream

CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("dct_mlp", (1, 8, 8), {"hidden": (16, 8), "radius": 3.0, "per_class_first_layer": True}),
    ("mlp", (2,), {"output": "linear", "latent_law": "normal", "hidden": (8,)}),
    ("dcgan", (3, 32, 32), {"width": 2}),
    ("biggan", (3, 9, 6), {"width": 3, "blocks": 2}),
    ("conv", (3, 9, 6), {"hidden": 5, "maps": (4, 2), "output_gain": 2.0}),
]


def make(case: Any = CASES[0], classes: int = 4) -> Generator:
    name, shape, options = case
    return build(name, shape, classes, generator=torch.Generator().manual_seed(5), **options)


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_generator_is_the_saved_one(case: Any, tmp_path: Path) -> None:
    generator = make(case)
    save(generator, tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert type(loaded) is type(generator)
    assert loaded.options == generator.options
    first, second = (sample(g, 9, None, Stream(b"k")) for g in (generator, loaded))
    assert torch.equal(first, second)


def test_the_folder_holds_exactly_two_files(tmp_path: Path) -> None:
    save(make(), tmp_path)
    save(make(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["generator.json", "generator.safetensors"]
    description = json.loads((tmp_path / "generator.json").read_text())
    assert description["name"] == "dct_mlp"
    assert description["shape"] == [1, 8, 8]
    assert description["classes"] == 4
    assert description["fedsink"] == fedsink.__version__
    assert description["options"]["hidden"] == [16, 8]


def test_a_failed_save_keeps_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(make(), tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(make(classes=3), tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"generator\.json cannot be read \(No such file"):
        load(tmp_path)
    save(make(), tmp_path)
    (tmp_path / "generator.safetensors").unlink()
    with pytest.raises(ModelError, match=r"generator\.safetensors cannot be read \(No such file"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["generator.json", "generator.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"\x00" * 100, None])
def test_corrupt_files_are_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    save(make(), tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-8] if content is None else content)  # None: torn
    with pytest.raises(ModelError, match=rf"{name} is corrupt \(.*train again"):
        load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "vae"},
        {"classes": "four"},
        {"options": {"depth": 1}},
        {"options": 3},
        {"shape": ["a", 8, 8]},
        {"shape": [1, math.inf, 8]},
        {"options": {"hidden": [0]}},
        {"options": {"hidden": [-1]}},
        "[]",
        "{}",
        '{"name": "mlp"}',
    ],
)
def test_descriptions_of_no_generator_are_refused(
    tmp_path: Path, change: dict[str, Any] | str
) -> None:
    save(make(), tmp_path)
    path = tmp_path / "generator.json"
    changed = isinstance(change, dict) and json.dumps(json.loads(path.read_text()) | change)
    path.write_text(changed or str(change))
    with pytest.raises(ModelError, match=r"generator\.json describes no generator that fedsink"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("stated", "stored", "message"),
    [
        (make(), make(classes=3), r"it has 473 weights, and .* holds 409 numbers"),
        (  # as many
            build("mlp", (2,), 1, hidden=[5, 3]), build("mlp", (2,), 1, hidden=[3, 5]),
            r"another architecture|holds .* numbers",
        ),
    ],
)  # fmt: skip
def test_weights_of_another_architecture_are_refused(
    stated: Generator, stored: Generator, message: str, tmp_path: Path
) -> None:
    save(stored, tmp_path / "other")
    save(stated, tmp_path)
    os.replace(tmp_path / "other" / "generator.safetensors", tmp_path / "generator.safetensors")
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


_HUGE = 10**12
_SMALL = {"hidden": [1], "latent_dim": 1}


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options"),
    [
        ("dct_mlp", [1, 8, 8], 4, {"hidden": [500_000, 500_000]}),
        ("dct_mlp", [1, 3000, 3000], 1, {**_SMALL, "radius": 6.0}),
        ("dct_mlp", [1, 100_000, 100_000], 1, {**_SMALL, "radius": 6.0}),
        ("dct_mlp", [1, 1024, 1024], 1, {**_SMALL, "radius": 20.0}),
        ("dct_mlp", [3, 1, _HUGE], 1, _SMALL),
        ("dct_mlp", [_HUGE, 8, 8], 1, _SMALL),
        ("conv", [1, 100_000, 100_000], 1, {"hidden": 1, "latent_dim": 1, "maps": [1]}),
        ("conv", [1, 1024, 1024], 1, {
            "hidden": 1, "latent_dim": 1, "maps": [*[1] * 9, 100], "radius": 2.0,
        }),
        ("biggan", [1, 100_000, 100_000], 1, {"width": 1, "blocks": 1}),
        ("biggan", [1, 8, _HUGE], 1, {"width": 1, "blocks": 16}),
        ("dcgan", [1, _HUGE, _HUGE], 1, {"width": 1}),
        ("mlp", [_HUGE], 1, {"hidden": []}),
        ("mlp", [2], _HUGE, {"hidden": [1], "conditional": False}),
        ("mlp", [2], 1, {"hidden": [1], "latent_dim": _HUGE}),
    ],
)  # fmt: skip
def test_a_small_folder_does_not_take_much_memory(
    tmp_path: Path,
    name: str,
    shape: list[int],
    classes: int,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many numbers as any of these has weights, and no layer of it is ever made."""
    save_file({"x": torch.zeros(60_000)}, tmp_path / "generator.safetensors")
    stated = {"name": name, "shape": shape, "classes": classes, "options": options}
    (tmp_path / "generator.json").write_text(json.dumps(stated))
    monkeypatch.setattr("fedsink.models.layers.skip_init", None)
    monkeypatch.setattr("fedsink.data.dct.cosine_matrix", None)
    with pytest.raises(ModelError, match=r"at most|the most|numbers|whole sizes|makes images of"):
        load(tmp_path)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    generator = make()
    with torch.no_grad():
        list(generator.parameters())[-1][-1] = bad
    save(generator, tmp_path)
    with pytest.raises(ModelError, match=r"weights that are not finite \(layers.*diverged"):
        load(tmp_path)
