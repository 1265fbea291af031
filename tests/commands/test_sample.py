from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from .conftest import SMALL, Finished, Played, run_many

pytestmark = pytest.mark.slow  # a process that runs twice and samples some thirty times


@pytest.fixture(scope="module")
def sampled(
    finished: Finished, finished_ldp: Path, tmp_path_factory: pytest.TempPathFactory
) -> Played:
    """All that is sampled in this module, by one process in one folder."""
    folder = tmp_path_factory.mktemp("sampled")
    run, damaged = finished[1], folder / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "generator.safetensors").write_bytes(b"")
    for name, parts in (("noisy", "deformation"), ("plain", "deformation|noise")):
        shutil.copytree(run, folder / name)
        config = (run / "config.yaml").read_text()
        config = re.sub(rf"((?:{parts}):\s+std:) \S+", r"\1 0.0", config)
        (folder / name / "config.yaml").write_text(config)
    shutil.copytree(folder / "plain", folder / "wide")
    config, count = re.subn(r"latent_range: 1.0", "latent_range: 1.5", config)
    assert count == 1
    (folder / "wide" / "config.yaml").write_text(config)
    unfinished = folder / "unfinished"
    shutil.copytree(run, unfinished)
    (unfinished / "metrics.json").unlink()
    lines = [
        ["sample", f"run={run}", "n=50", "seed=1", "out=one.npz"],
        ["sample", f"run={run}", "n=50", "seed=1", "out=same.npz"],
        ["sample", f"run={run}", "n=50", "seed=2", "out=other.npz"],
        ["sample", f"run={finished_ldp}", "n=40", "out=deep/ldp.npz"],
        ["sample", f"run={run}", "n=50", "seed=1", "out=pictures"],
        ["sample", f"run={run}", "n=50", "seed=1", "out=one.npz"],
        ["sample", f"run={run}", "out=pictures"],
        ["sample", f"run={run}", "out=x.png"],
        ["sample", f"run={run}", "out=x.npz", "n=0"],
        ["sample", f"run={damaged}", "out=x.npz"],
        ["sample", f"run={unfinished}", "out=x.npz"],
        ["simulate", *SMALL, "data=half_circle", "mode=ldp", "hydra.run.dir=points"],
        ["sample", "run=points", "n=30", "out=points.npz"],
        ["sample", "run=points", "n=30", "out=points_as_pictures"],
        ["sample", f"run={run}", "n=50", "seed=1", "observation=false", "out=bare.npz"],
        ["sample", f"run={run}", "observation=perhaps", "out=x.npz"],
        ["sample", "run=noisy", "n=50", "seed=1", "out=noisy.npz"],
        ["sample", "run=plain", "n=50", "seed=1", "out=plain.npz"],
        ["sample", f"run={run}", "n=50", "seed=1", "out=one.parquet"],
        ["sample", f"run={run}", "n=57", "balanced=true", "out=balanced.npz"],
        ["sample", f"run={run}", "n=60", "balanced=true", "out=balanced.parquet"],
        ["sample", f"run={run}", "n=40", "classes=[3,5]", "out=some.npz"],
        ["sample", f"run={run}", "n=7", "classes=[5,3]", "balanced=true", "out=few"],
        ["sample", f"run={run}", "classes=[3,x]", "out=x.npz"],
        ["sample", f"run={run}", "classes=[3,3]", "out=x.npz"],
        ["sample", "run=points", "balanced=true", "out=x.npz"],
        ["sample", "run=points", "classes=[0]", "out=x.npz"],
        ["sample", "run=points", "out=x.parquet"],
        ["sample", "run=wide", "n=50", "seed=1", "out=wide.npz"],
        ["sample", f"run={run}", "n=50", "seed=1", "out=gen.npz", "format=dpimagebench"],
        ["sample", f"run={run}", "n=50", "out=gen", "format=dpimagebench"],
        ["sample", "run=points", "n=50", "out=x.npz", "format=dpimagebench"],
    ]
    return folder, run_many([(folder, line) for line in lines])


def test_an_archive_holds_bytes_and_labels(sampled: Played) -> None:
    folder, outcomes = sampled
    assert outcomes[0].code == 0, outcomes[0].err
    assert outcomes[0].last == "one.npz"
    with np.load(folder / "one.npz") as file:
        assert set(file.files) == {"x", "y"}
        assert (file["x"].shape, file["x"].dtype) == ((50, 1, 8, 8), np.uint8)
        assert (file["y"].shape, file["y"].dtype) == ((50,), np.int64)
        assert set(file["y"]) <= set(range(10))
        assert file["x"].std() > 5  # not one grey
    with np.load(folder / "deep" / "ldp.npz") as file:
        assert file["x"].shape == (40, 1, 8, 8)


def test_the_seed_decides_the_sample(sampled: Played) -> None:
    folder, _ = sampled
    files = {name: np.load(folder / f"{name}.npz") for name in ("one", "same", "other")}
    for key in ("x", "y"):
        assert np.array_equal(files["one"][key], files["same"][key])
        assert not np.array_equal(files["one"][key], files["other"][key])


def test_pictures_are_observed_unless_that_is_left_out(sampled: Played) -> None:
    folder, outcomes = sampled
    observed = [*outcomes[14:18], outcomes[28]]
    assert [outcome.code for outcome in observed] == [0, 2, 0, 0, 0], observed
    assert "perhaps" in outcomes[15].err
    one, bare = (np.load(folder / f"{name}.npz") for name in ("one", "bare"))
    assert np.array_equal(one["y"], bare["y"])
    added = (one["x"].astype(float) - bare["x"]) / 255.0
    assert 0.05 < added.std() < 0.2  # the digits' noise of 0.1, and small bends
    assert abs(added.mean()) < 0.03
    noisy, plain = (np.load(folder / f"{name}.npz")["x"] / 255.0 for name in ("noisy", "plain"))
    assert np.array_equal(plain, bare["x"] / 255.0)
    inside = (plain > 0.35) & (plain < 0.65)  # where the range cuts nothing
    assert (noisy - plain)[inside].std() == pytest.approx(0.1, rel=0.15)
    wide = np.load(folder / "wide.npz")
    assert np.array_equal(wide["y"], bare["y"])
    same = np.equal.outer(bare["y"], bare["y"])
    apart = [
        np.square(np.subtract.outer(x.mean((1, 2, 3)), x.mean((1, 2, 3))))[same].sum()
        for x in (wide["x"] / 255.0, plain)
    ]
    assert apart[0] > 1.3 * apart[1] > 0.0  # few latents: nearly linear in them


def test_a_folder_holds_the_same_images_by_class(sampled: Played) -> None:
    folder, outcomes = sampled
    assert outcomes[4].code == 0, outcomes[4].err
    assert {p.name for p in (folder / "pictures").iterdir()} == {str(c) for c in range(10)}
    pictures = {int(p.stem): p for p in (folder / "pictures").rglob("*.png")}
    assert sorted(pictures) == list(range(50))
    with np.load(folder / "one.npz") as file:
        for number, path in pictures.items():
            assert int(path.parent.name) == file["y"][number]
            with Image.open(path) as picture:
                assert np.array_equal(np.asarray(picture), file["x"][number, 0])


def test_points_are_floats_and_no_pictures(sampled: Played) -> None:
    folder, outcomes = sampled
    assert outcomes[12].code == 0, outcomes[12].err
    with np.load(folder / "points.npz") as file:
        assert (file["x"].shape, file["x"].dtype) == ((30, 2), np.float32)
        assert set(file["y"]) == {0}
    assert outcomes[13].code == 2
    assert "write to a .npz file" in outcomes[13].err
    assert not (folder / "points_as_pictures").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (5, "one.npz exists already: remove it or give another out=."),
        (6, "pictures exists already"),
        (7, "out=x.png must end in .npz or .parquet, or have no ending to name a folder."),
        (8, "n=0: must be at least 1."),
        (9, "damaged"),
        (10, "has not finished: fedsink simulate resume="),
        (23, "The run has no class 'x': choose of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9."),
        (24, "classes=[3,3]: expected names of classes, each once"),
        (25, "balanced=true needs a generator that tells classes apart"),
        (26, "classes= needs a generator that tells classes apart"),
        (27, "write to a .npz file."),
    ],
)
def test_what_cannot_be_sampled_is_one_sentence(sampled: Played, line: int, message: str) -> None:
    folder, outcomes = sampled
    assert outcomes[line].code == 2
    assert message in outcomes[line].err
    assert outcomes[line].err.count("\n") == 1
    assert not {"x.npz", "x.parquet"} & {path.name for path in folder.iterdir()}


def test_parquet_holds_the_same_images_as_hugging_face_reads_them(sampled: Played) -> None:
    folder, outcomes = sampled
    assert outcomes[18].code == 0, outcomes[18].err
    table = parquet.read_table(folder / "one.parquet")
    picture, label = table.schema.field("image"), table.schema.field("label")
    assert str(picture.type) == "struct<bytes: binary, path: string>"
    assert str(label.type) == "int64"
    assert json.loads(table.schema.metadata[b"huggingface"]) == {
        "info": {
            "features": {
                "image": {"_type": "Image"},
                "label": {"_type": "ClassLabel", "names": [str(c) for c in range(10)]},
            }
        }
    }
    with np.load(folder / "one.npz") as file:
        assert table["label"].to_pylist() == file["y"].tolist()
        for number, row in enumerate(table["image"].to_pylist()):
            assert row["path"] == f"{number:06d}.png"
            with Image.open(io.BytesIO(row["bytes"])) as shown:
                assert np.array_equal(np.asarray(shown), file["x"][number, 0])


def test_classes_can_be_balanced_and_chosen(sampled: Played) -> None:
    folder, outcomes = sampled
    assert [outcome.code for outcome in outcomes[18:23]] == [0] * 5, outcomes[18:23]
    labels = np.load(folder / "balanced.npz")["y"]
    assert np.bincount(labels).tolist() == [6] * 7 + [5] * 3
    assert "6 of some classes and 5 of others: n is no multiple of 10." in outcomes[19].err
    assert not np.array_equal(labels, np.arange(57) % 10)  # in no order that a split could follow
    balanced = parquet.read_table(folder / "balanced.parquet")["label"].to_pylist()
    assert np.bincount(balanced).tolist() == [6] * 10
    assert "of others" not in outcomes[20].err
    assert set(np.load(folder / "some.npz")["y"]) == {3, 5}
    counts = {p.name: len(list(p.iterdir())) for p in (folder / "few").iterdir()}
    assert {name: count for name, count in counts.items() if count} == {"5": 4, "3": 3}


def test_dpimagebench_reads_pictures_as_numbers_from_0_to_1(sampled: Played) -> None:
    folder, outcomes = sampled
    written, folders, points = outcomes[-3:]
    assert written.code == 0, written.err
    with np.load(folder / "gen.npz") as gen, np.load(folder / "one.npz") as one:
        assert set(gen.files) == {"x", "y"}
        assert (gen["x"].dtype, gen["x"].shape) == (np.float32, (50, 1, 8, 8))
        assert gen["y"].dtype == np.int64
        assert 0 <= gen["x"].min() < gen["x"].max() <= 1
        assert (np.round(255 * gen["x"]).astype(np.uint8) == one["x"]).all()
        assert (gen["y"] == one["y"]).all()
    assert "format=dpimagebench is an .npz: give out=gen.npz, not gen." in folders.err
    assert points.code == 2
