"""Hydra configuration: `pkg://fedsink.conf` needs this package to exist.

YAML refers to the rule for what was not measured (`fedsink.strategies.rule`) as `${rule:NAME}`.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

if __name__ != "fedsink.conf":
    # A second copy would define every class and cache again.
    raise ImportError(
        "The link conf/ at the repository's root is for readers: import fedsink.conf instead."
    )


def _rule(name: str, *, _root_: DictConfig) -> Any:
    from fedsink.conf.rule import value  # with torch, which completing a command need not load

    found = value(name, _root_)
    # OmegaConf cannot put a plain list where an interpolation stands (--resolve).
    return OmegaConf.create(found) if isinstance(found, list) else found


OmegaConf.register_new_resolver("rule", _rule, replace=True)
