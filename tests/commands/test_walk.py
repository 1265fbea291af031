"""From `suggest` to `compare`, for every data source, mode and method, on small files."""

from __future__ import annotations

import html
import math
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedsink.commands import evaluate
from fedsink.commands.cli import main
from fedsink.conf.acting import compose_config
from fedsink.conf.loading import choices
from fedsink.server.folder import RunFolder, stored_config

from ..support import picture_files, writers

CLASSES = ("chat", "été", "l'œuf", 'a, "b" [c] $5')
OWN = ",".join(("chat", '"été"', '"l\'œuf"', r'"a, \"b\" [c] $5"'))
SMALL = {"engine": "local", "clients": "2", "rounds": "2", "report.pictures": "1", "seed": "0"}


@dataclass(frozen=True)
class Walk:
    """A data set of a mode: the keys of its files and those that make it small."""

    data: str
    mode: str
    more: tuple[str, ...] = ()

    @property
    def suggests(self) -> bool:
        """Tells whether the rule speaks of this data set."""
        return self.data != "half_circle" and not any(k.startswith("strategy=") for k in self.more)

    def __str__(self) -> str:
        return "-".join([self.data, self.mode, *self.more])


METHODS = [
    ("central", ()),
    ("central", ("clip=batch",)),
    ("central", ("strategy=gs_wgan",)),
    ("central", ("strategy=parameter_gradient",)),
    ("ldp", ("mechanism=gaussian",)),
    ("ldp", ("mechanism=laplace",)),
]
QUICK = [Walk("image_folder", "central")]
FULL = [
    walk
    for data in choices("data")
    for mode, more in METHODS
    if (walk := Walk(data, mode, more)) not in QUICK
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path) -> dict[str, list[str]]:
    """The keys that name each data set's files and public description."""
    root = tmp_path_factory.mktemp("files")
    picture_files.write_classes(root / "own", CLASSES)
    texts = {f"writer {number}": "01289AaBbz" for number in range(8)}
    for seed, split in enumerate(("train", "test")):
        writers.write_leaf(root / "femnist", split, writers.some(texts, seed))
    small = "data.nominal_records=60"
    (root / "arrays").mkdir()
    for split, size in (("train", 60), ("test", 40)):
        random, labels = np.random.default_rng(size), np.arange(size) % 2
        pictures = random.integers(0, 256, (size, 1, 8, 8), dtype=np.uint8)
        np.savez(root / "arrays" / f"{split}.npz", x=pictures, y=labels)
    femnist = [f"data.root={root / 'femnist'}", "data.nominal_records=80", "partition=by_user"]
    downloaded = [f"data.root={tiny_data}", "data.nominal_records=200"]
    return {
        "image_folder": [
            *(f"data.root={root / 'own'}", f"data.classes=[{OWN}]", "data.shape=[3,8,8]", small)
        ],
        "npz": [f"data.root={root / 'arrays'}", "data.shape=[1,8,8]", "data.classes=[a,b]", small],
        "mnist": downloaded,
        "fashion_mnist": downloaded,
        "celeba": [*downloaded, "data.shape=[3,16,16]"],
        **dict.fromkeys(("femnist", "femnist_62", "femnist_digits"), femnist),
        "glyphs": ["data.shape=[1,8,8]", "data.classes=[A,Bb]"],
        "shapes": ["data.shape=[3,8,8]"],
        "digits": [],
        "half_circle": [],
    }


@pytest.mark.medium
@pytest.mark.parametrize(
    "walk",
    [
        *(pytest.param(walk, id=str(walk)) for walk in QUICK),
        *(pytest.param(walk, id=str(walk), marks=pytest.mark.slow) for walk in FULL),
    ],
)
def test_a_data_set_is_walked_from_the_first_command_to_the_last(
    walk: Walk,
    files: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate, "_BETWEEN_LINES", math.inf)  # a slow machine prints progress

    def fedsink(*arguments: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capsys.readouterr()
        assert left.value.code == code, err
        assert "could not" not in err
        assert "defect" not in err
        return out, err

    keys = [f"mode={walk.mode}", f"data={walk.data}", *walk.more, *files[walk.data]]
    command = ["simulate", *keys]
    if walk.suggests:
        out, err = fedsink("suggest", *keys)
        command = shlex.split(out.split("\n\n")[0].replace("\\\n", " "))[1:]
        assert err == ""
    else:
        assert "The rule" in fedsink("suggest", *keys, code=2)[1]
    typed = [word for word in command if word.partition("=")[0] not in SMALL]
    small = [f"{key}={value}" for key, value in SMALL.items()]
    out, err = fedsink(*typed, *small, "hydra.run.dir=run")
    run = tmp_path / "run"
    assert out == f"{run}\n"

    config = stored_config(RunFolder.existing(run))
    names = config["data"]["classes"] if config["conditional"] else []
    report = html.unescape((run / "report.html").read_text())
    assert fedsink("report", f"run={run}") == (f"{run / 'report.html'}\n", "")
    assert html.unescape((run / "report.html").read_text()) == report

    n = max(20, 2 * len(names))
    out, err = fedsink("evaluate", f"run={run}", f"n={n}", "threads=1")
    assert (out.splitlines()[-1], err) == (str(run / "evaluation.json"), "")
    ending = ".npz" if len(config["data"]["shape"]) == 1 else ""
    kind = "balanced=true" if len(names) > 1 else "seed=3"
    drawn = tmp_path / f"drawn{ending}"
    out, err = fedsink("sample", f"run={run}", f"n={n}", kind, f"out={drawn}")
    assert (out, err.splitlines()[0]) == (f"{drawn}\n", f"{n} images")
    if ending:
        assert np.load(drawn)["x"].shape == (n, *config["data"]["shape"])
    else:
        assert len(list(drawn.rglob("*.png"))) == n
        assert len(list(drawn.iterdir())) == len(names)
    assert fedsink("card", f"run={run}") == (f"{run / 'README.md'}\n", "")
    shutil.copytree(run, tmp_path / "other")
    out, err = fedsink("compare", "run=[run,other]")
    assert (out.splitlines()[-1], err) == ("compare.html", "")

    card = (run / "README.md").read_text()
    page = html.unescape((run / "report.html").read_text())
    for text in (card, page, html.unescape(Path("compare.html").read_text())):
        assert config["data"]["name"] in text
    for name in names:
        assert name in page
    again = card.split("## The same run again")[1].split("```bash\n")[1].split("\n")[0]
    words = [word for word in shlex.split(again)[2:] if not word.startswith("data.root=")]
    root = f"data.root='{config['data']['root']}'" if config["data"]["root"] else "data.root=null"
    assert compose_config([*words, root]) == {k: v for k, v in config.items() if k != "run"}
