from __future__ import annotations

from pathlib import Path

import fedsink_papers.conf
import yaml

import fedsink.conf

FOLDERS = [Path(str(package.__file__)).parent for package in (fedsink.conf, fedsink_papers.conf)]
CONF = FOLDERS[0]
FILES = {path.stem: path for folder in FOLDERS for path in folder.glob("experiment/*.yaml")}
NAMES = sorted(FILES)


def root(name: str, folder: str = "/nowhere") -> list[str]:
    """Override that an experiment needs to compose on data that nobody has downloaded."""
    return [f"data.root={folder}"] if "celeba" in name or name.endswith("femnist") else []


def scales(name: str) -> set[str]:
    """The scales of an experiment's file and of the file below it."""
    content = yaml.safe_load(FILES[name].read_text())
    found = set(content.get("scales") or ())
    for entry in content.get("defaults", ()):
        if isinstance(entry, str) and entry.startswith("/published/"):
            file = FILES[name].parents[1] / f"{entry[1:]}.yaml"
            found |= set(yaml.safe_load(file.read_text())["scales"])
        elif isinstance(entry, str) and entry in NAMES:
            found |= scales(entry)
    return found
