"""Arrays in files of NumPy: ROOT/train.npz and ROOT/test.npz, as `fedsink sample` writes them.

`x` are the records, `y` their labels, and `users`, if there, who each record belongs to: a number
or a name.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from fedsink.data.labelled import Reading, number_of
from fedsink.data.spec import DataSpec
from fedsink.errors import ConfigError, DataError


def read(spec: DataSpec, split: str) -> Reading:
    """Returns the arrays of one split: x uint8 or float, (N, *shape), y whole numbers (N,)."""
    if spec.root is None:
        raise ConfigError("data=npz reads arrays of yours: name their folder, data.root=FOLDER.")
    path = Path(spec.root).expanduser() / f"{split}.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            x, y = (file[name] for name in ("x", "y"))
            users = file.get("users")
    except KeyError as missing:
        raise DataError(f"{path}: {missing}; it must hold the arrays x and y.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read as arrays ({error}); write it by numpy.savez(PATH, x=…, y=…)."
        ) from error
    numbers = None
    if users is not None:
        names, places = np.unique(users, return_inverse=True)
        numbers = torch.tensor([number_of(str(name)) for name in names])[torch.from_numpy(places)]
    try:
        return Reading(torch.from_numpy(x), torch.from_numpy(y), numbers)
    except TypeError as error:
        raise DataError(f"{path} holds no numbers ({error}): x and y are numbers.") from None
