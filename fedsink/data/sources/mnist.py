"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test grey images of 28×28 pixels.

The files are those of `torchvision.datasets`: ROOT/MNIST/raw/train-images-idx3-ubyte and so on,
plain or gzipped. A given root is only read; what has to be unpacked goes to the cache folder.
"""

from __future__ import annotations

from pathlib import Path

from fedsink.data.labelled import Reading
from fedsink.data.sources.cache import cache_folder, fill_once, unpacked
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError

_FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read(spec: DataSpec, split: str) -> Reading:
    """Returns uint8 images (N, 1, 28, 28) and labels of one split.

    Raises:
        DataError: where the files are missing, corrupt, or cannot be downloaded.
    """
    folder = _FOLDERS[spec.name]
    root = _downloaded(folder, spec) if spec.root is None else _given(folder, Path(spec.root))
    from torchvision import datasets

    try:
        dataset = getattr(datasets, folder)(str(root), train=split == "train", download=False)
    except (AssertionError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"the {folder} files in {root / folder / 'raw'} cannot be read ({error}); "
            f"replace them with intact copies."
        ) from error
    return Reading(dataset.data.unsqueeze(1), dataset.targets)


def _given(folder: str, root: Path) -> Path:
    """Returns the root that the user gave, or a cache folder with its files unpacked."""
    root = root.expanduser()
    raw = root / folder / "raw"
    if all((raw / name).is_file() for name in _NAMES):
        return root
    missing = [
        name for name in _NAMES if not (raw / name).is_file() and not (raw / f"{name}.gz").is_file()
    ]
    if missing:
        raise DataError(
            f"{raw.absolute()} does not hold {', '.join(missing)} (plain or .gz); set data.root "
            f"to the folder that contains {folder}/raw, or leave data.root empty to use the "
            f"cache folder."
        )
    return unpacked(root, [Path(folder) / "raw" / name for name in _NAMES])


def _downloaded(folder: str, spec: DataSpec) -> Path:
    """Returns the cache folder, after downloading the files that it lacks."""
    root = cache_folder() / "torchvision"
    if not (root / folder).is_dir() and not spec.download:
        raise DataError(
            f"{root / folder} does not exist and data.download is false; set data.root to the "
            f"folder that contains {folder}/raw, or set data.download=true."
        )

    def fill(temporary: Path) -> None:
        from torchvision import datasets

        try:
            getattr(datasets, folder)(str(temporary), download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"{folder} could not be downloaded ({str(error).strip().splitlines()[0]}); "
                f"connect to the internet, or set data.root to the folder that contains "
                f"{folder}/raw."
            ) from error
        # torchvision nests the files under its own root, and the cache entry is that folder.
        for part in (temporary / folder).iterdir():
            part.rename(temporary / part.name)
        (temporary / folder).rmdir()

    fill_once(root / folder, fill)
    return root
