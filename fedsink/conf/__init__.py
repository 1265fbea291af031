"""Hydra configuration: `pkg://fedsink.conf` needs this package to exist.

YAML refers to the rule for what was not measured (`fedsink.conf.rule`) as `${rule:NAME}`.
"""

from __future__ import annotations

if __name__ != "fedsink.conf":
    # A second copy would have classes and caches of its own.
    raise ImportError(
        "The link conf/ at the repository's root is for readers: import fedsink.conf instead."
    )

from omegaconf import OmegaConf

from fedsink.conf import rule

OmegaConf.register_new_resolver(
    "rule", lambda name, *, _root_: rule.value(name, _root_), replace=True
)
