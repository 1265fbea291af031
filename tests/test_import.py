"""The import of fedsink, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import fedsink


def test_it_is_light():
    code = (
        "import sys, fedsink\n"
        "assert 'simulate' in dir(fedsink)\n"
        "heavy = {'torch', 'hydra', 'omegaconf', 'numpy', 'flwr', 'ray', 'fedsink.api'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_it_lists_no_internals():
    """And has a type for every name, in the file beside it."""
    names = [name for name in dir(fedsink) if not name.startswith("__")]
    stub = Path(fedsink.__file__).with_suffix(".pyi").read_text()
    assert names == sorted(re.findall(r"import \w+ as (\w+)", stub))
    assert len(names) <= 26


@pytest.mark.parametrize(("core", "refused"), [("1.2", False), ("1.3", True), (None, False)])
def test_two_versions_over_one_another_are_refused(tmp_path, core, refused):
    """A copy of this file in a folder that looks like site-packages after two installs."""
    (tmp_path / "fedsink").mkdir()
    shutil.copy(str(fedsink.__file__), tmp_path / "fedsink")
    for name in ("fedsink-1.2", "fedsink_papers-1.1", *([f"fedsink_core-{core}"] if core else [])):
        (tmp_path / f"{name}.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import fedsink"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = "ImportError: fedsink 1.2 and fedsink-core 1.3 are installed over one another here: "
    assert (told in done.stderr) == refused == bool(done.returncode)


def test_every_name_is_there_and_others_are_not():
    for name in fedsink.__all__:
        assert getattr(fedsink, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = fedsink.simulat  # type: ignore[attr-defined]


@pytest.mark.medium
def test_the_gpu_tests_need_a_bare_pytorch():
    """Its docstring names all that the Python of `make test-gpu` must have."""
    required = {
        re.split(r"[^\w-]", line)[0].lower()
        for line in metadata.requires("fedsink") or ()
        if "extra ==" not in line
    }
    refused = required - {"torch", "numpy", "scipy", "safetensors", "pytest"}
    modules = sorted(
        module
        for module, distributions in metadata.packages_distributions().items()
        if {name.lower() for name in distributions} & refused
    )
    assert {"flwr", "ray", "hydra", "cryptography", "dp_accounting"} <= set(modules)
    code = f"""
import sys, pytest

class Refused:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refused)
sys.exit(pytest.main(
    ["-qm", "gpu", "-k", "cpu", "-p", "no:cacheprovider", "--confcutdir=tests/gpu", "tests/gpu"]
))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[1],
        env={
            **os.environ,
            "FEDSINK_GPU": "cpu",
            "PYTHONPATH": ".",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.medium
def test_flower_sends_no_telemetry_where_fedsink_is_used_from_python():
    """Flower reads the environment when it is imported."""
    code = (
        "import fedsink; fedsink.Federation; from flwr.supercore import telemetry;"
        " print(telemetry.FLWR_TELEMETRY_ENABLED)"
    )
    bare = {name: text for name, text in os.environ.items() if not name.startswith("FLWR_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"


@pytest.mark.parametrize("room", ["clients", "data", "protocol", "strategies"])
def test_what_an_extension_needs_of_a_room_is_loaded_by_its_name(room):
    module, stub = import_module(f"fedsink.{room}"), Path(fedsink.__file__).parent / room
    typed = re.findall(r"import (\w+) as", (stub / "__init__.pyi").read_text())
    assert {getattr(module, name).__name__ for name in typed} == {*typed}
    with pytest.raises(AttributeError, match=f"module 'fedsink.{room}' has no attribute 'other'"):
        _ = module.other
    named = re.findall(r': "([\w ]+)"', (stub / "__init__.py").read_text())
    assert " ".join(named).split() == typed
