"""`fedsink simulate`: a Hydra application around `fedsink.simulation`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsink.commands.hydra_errors import one_sentence
from fedsink.errors import ConfigError, FedsinkError


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Run, resume or sweep; prints the run folder in the last line of standard output."""
    wanted = [a.partition("=")[2] for a in arguments if a.startswith("resume=")]
    if wanted and wanted[0] not in ("", "null"):
        _resume(wanted[0], [a for a in arguments if not a.startswith("resume=")], debug)
        return 0
    # Hydra would print its own errors over several lines and exit; let them come to us instead.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    application = hydra.main(config_path="pkg://fedsink.conf", config_name="config", version_base="1.3")
    before, sys.argv = sys.argv, ["fedsink simulate", *arguments]
    try:
        application(_task(debug))()
    except (HydraException, OmegaConfBaseException) as error:
        if debug:
            raise
        raise ConfigError(one_sentence(error)) from error
    finally:
        sys.argv = before
    return 0


def _task(debug: bool) -> Any:
    def task(config: DictConfig) -> None:
        from fedsink.simulation.simulate import start

        folder = Path(HydraConfig.get().runtime.output_dir)
        try:
            resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
            if resolved["data"].get("root"):
                # Stored absolutely, so that the run can be resumed from anywhere.
                resolved["data"]["root"] = str(Path(resolved["data"]["root"]).expanduser().resolve())
            print(start(resolved, folder, debug=debug))
        except (FedsinkError, OmegaConfBaseException):
            _remove_if_empty(folder)
            raise

    return task


def _resume(path: str, others: list[str], debug: bool) -> None:
    if others:
        raise ConfigError(
            f"resume={path} goes on with the configuration stored in that folder: leave out "
            f"{' '.join(others)}."
        )
    from fedsink.simulation.simulate import resume

    print(resume(Path(path).expanduser().resolve(), debug=debug))


def _remove_if_empty(folder: Path) -> None:
    """Hydra made the folder before anything was checked; a refused run leaves none."""
    for path in (folder, folder.parent, folder.parent.parent):
        if path.resolve() == Path.cwd() or path.name == "":
            return
        with contextlib.suppress(OSError):
            path.rmdir()
