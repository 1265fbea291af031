from __future__ import annotations

from pathlib import Path

import yaml

import fedsink.conf

CONF = Path(str(fedsink.conf.__file__)).parent
FOLDER = CONF / "experiment"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def root(name: str, folder: str = "/nowhere") -> list[str]:
    """Override that an experiment needs to compose on data that nobody has downloaded."""
    return [f"data.root={folder}"] if "celeba" in name or name.endswith("femnist") else []


def scales(name: str) -> set[str]:
    """The scales of an experiment's file and of the file below it."""
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    found = set(content.get("scales") or ())
    for entry in content.get("defaults", ()):
        if isinstance(entry, str) and entry.startswith("/published/"):
            found |= set(yaml.safe_load((CONF / f"{entry[1:]}.yaml").read_text())["scales"])
        elif isinstance(entry, str) and entry in NAMES:
            found |= scales(entry)
    return found
