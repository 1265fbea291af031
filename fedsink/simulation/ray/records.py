"""How cohorts come by the records: read by each node, or put into Ray's memory once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsink.data.sources import load
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError


class Records:
    """The records of a run, which every cohort must have the same.

    Args:
        ray: the module, connected.
        spec: what they are.
        sent: whether this process reads them and Ray's memory holds them for all processes of a
            node, without a copy for each; else every process reads them itself, and must have read
            what this one reads.

    Raises:
        DataError: they cannot be read here.
    """

    def __init__(self, ray: Any, spec: DataSpec, *, sent: bool) -> None:
        self._spec = spec
        data = load(spec)
        self._digest = "" if sent else data.digest()
        self._put: Any = ray.put(data.arrays()) if sent else None

    def call(self, actor: Any) -> Any:
        """Have an actor read or take them; the reference of what `check` is told."""
        if self._put is not None:
            return actor.hold.remote(self._spec, self._put)
        return actor.digest.remote(self._spec)

    def check(self, answers: Mapping[str, str]) -> None:
        """Refuse nodes that read other records.

        Args:
            answers: to `call`, by node in words.

        Raises:
            DataError: a node has others, or none.
        """
        for node, digest in answers.items():
            if self._put is None and digest != self._digest:
                raise DataError(
                    f"{node} of the Ray cluster must read what the driver reads for data.name="
                    f"{self._spec.name} (SHA-256 {self._digest[:12]}), but reads {digest[:400]}: "
                    "copy the files to the same data.root, or set engine.data=object_store."
                )
