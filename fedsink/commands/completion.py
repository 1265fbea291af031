"""Shell completion: sub-commands are ours, everything after `simulate` is Hydra's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from fedsink.commands.names import ACTIONS, COMMANDS
from fedsink.conf.loading import application


def complete(arguments: Sequence[str]) -> int:
    """Answer `fedsink --shell-completion install=bash|query=bash` and the like."""
    line = os.environ.get("COMP_LINE", "")
    words = line.split(" ")
    if any(a.startswith("query=") for a in arguments):
        if len(words) <= 2:
            typed = words[1] if len(words) == 2 else ""
            print("\n".join(name for name in COMMANDS if name.startswith(typed)))
            return 0
        if len(words) == 3 and words[1] in ACTIONS:
            print("\n".join(name for name in ACTIONS[words[1]] if name.startswith(words[2])))
            return 0
        if words[1] != "simulate":
            return 0
        os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])
    before, sys.argv = sys.argv, ["fedsink", *arguments]
    try:
        application(_never)()
    finally:
        sys.argv = before
    return 0


def _never(config: DictConfig) -> None:
    raise RuntimeError("completion runs no task")
