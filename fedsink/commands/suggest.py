"""`fedsink suggest data=…`: settings by the rule, from public sizes only."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsink.commands.hydra_keys import one_sentence, overrides
from fedsink.conf.acting import compose_config, lacking
from fedsink.conf.loading import composed
from fedsink.conf.rule import sizes_of
from fedsink.configuration import Configuration
from fedsink.environment import typed_name
from fedsink.errors import ConfigError
from fedsink.protocol.requests import UNNAMED
from fedsink.reporting.displays import format_table
from fedsink.strategies.methods import settings_of
from fedsink.strategies.rule import REASONS

HELP = """Usage: fedsink suggest data=NAME [mode=central|ldp] [eps=…] [clients=…] [key=value …]

Prints the settings that the rule (docs/rule.md) gives for public sizes: the shape of a
record, the number of classes, the nominal number of records, the clients, ε and δ. It reads no
record, and no file of the data has to exist. Keys are those of `fedsink simulate`; keys that you
set keep their values.

  fedsink suggest data=shapes eps=3
  fedsink suggest data=image_folder data.shape=[1,64,64] data.classes=[a,b] \\
    data.nominal_records=8000 clients=20
  fedsink suggest mode=ldp mechanism=gaussian data=mnist eps=10"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints a command and the reasons for its settings."""
    try:
        keys_typed = overrides(arguments)
        if OmegaConf.is_missing(composed(keys_typed).data, "root"):
            keys_typed.append("data.root=DIR")
        config = compose_config(keys_typed)
        mode, name = config["mode"], config["strategy"]["name"]
        if name not in ("dp_sinkhorn", "privatize_once"):
            raise ConfigError(
                "The rule was read off strategy=dp_sinkhorn and privatize_once, and says nothing "
                f"of strategy={name}: leave it out."
            )
        if (sizes := sizes_of(config)) is None:  # a fact is null, and this says which
            Configuration.read(config)
            raise ConfigError("The rule needs data.shape, data.classes and data.nominal_records.")
        rule: dict[str, Any] = sizes.central() if mode == "central" else sizes.local()
        rule = {"rounds": 4000, **rule, **rule.get(config["clip"], {})}
        keys = {word.partition("=")[0] for word in keys_typed}
        keys |= {"mechanism.label_eps"} if sizes.classes == 1 else set()
        keys |= {"map.pool"} if (config["map"] or {}).get("pool") is None else set()
        rows = [
            {"setting": key, "value": _text(rule[key.rpartition(".")[2]]), "why": why}
            for key, why in REASONS[mode].items()
            if key not in keys and not lacking(key, config)
        ]
        typed = [*keys_typed, *(f"{row['setting']}={row['value']}" for row in rows)]
        settings_of(Configuration.read(compose_config(typed)), UNNAMED)  # as a run would refuse it
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_sentence(error)) from error
    print(f"{typed_name()} simulate {shlex.join(typed)}\n\n{format_table(rows)}")
    if mode == "central":
        print(f"\nNoise limits where (N/C)·μ/√K, here {sizes.signal:,.0f}, is below 2500.")
    return 0


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
