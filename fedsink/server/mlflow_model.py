"""The generator of a run as a model of MLflow: `mlflow.pyfunc.load_model("runs:/RUN/model")`.

`log=mlflow` stores the released files of a run and drawing.json, which says how pictures are drawn.
MLflow names this module in the model and calls `_load_pyfunc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsink.errors import ModelError
from fedsink.models import Observation, load
from fedsink.privacy import Stream
from fedsink.server.finished import drawn, shown_map
from fedsink.values import read_json


class DrawnPictures:
    """Draws pictures of the classes that are asked for, as `fedsink sample` does.

    Args:
        folder: generator.safetensors, generator.json, privacy.json and drawing.json.
    """

    def __init__(self, folder: Path) -> None:
        how = read_json((folder / "drawing.json").read_bytes())
        self._generator = load(folder)
        self._prior = torch.tensor(how["label_prior"])
        self._map = shown_map(read_json((folder / "privacy.json").read_bytes()))
        self._observation = Observation.from_dict(how["observation"])

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """Returns a picture (C, H, W) in [0, 1], float32, for each row.

        Args:
            model_input: a table with the column `label`, whole numbers from 0.
            params: `seed`, of latents and observation; 0 where it is left out.

        Raises:
            ModelError: a label that the generator does not have.
        """
        labels = torch.from_numpy(np.array(model_input["label"], dtype=np.int64))
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self._prior):
            raise ModelError(f"label goes from 0 to {len(self._prior) - 1}.")
        stream = Stream(f"sample|{(params or {}).get('seed', 0)}".encode(), "sample")
        images = drawn(self._generator, labels, stream, self._prior, self._map, self._observation)
        return images.numpy()


def _load_pyfunc(path: str) -> DrawnPictures:
    return DrawnPictures(Path(path))
