"""Pages that every build makes from the code: commands, keys, codes, messages, Python.

The pages are not stored, so that they cannot differ from the code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from configuration_keys import cell, experiments_page, keys_page, page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import fedsink
from fedsink import errors
from fedsink.clients.answers.registry import ANSWERS
from fedsink.commands import COMMANDS
from fedsink.commands.cli import main
from fedsink.protocol import failure_codes as refusals

ROOT = Path(__file__).resolve().parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the packages below their list, in the navigation."""
    sections = next(part["Reference"] for part in config.nav or [] if "Reference" in part)
    python = next(part for part in sections if "Python" in part)
    names = [module.__name__ for module in _packages()]
    pages = [{name: f"reference/python/{name.removeprefix('fedsink.')}.md"} for name in names]
    python["Python"] = [python["Python"], *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    pages = {
        "commands": commands_page(),
        "keys": keys_page(),
        "experiments": experiments_page(),
        "codes": codes_page(),
        "messages": messages_page(),
        "python": python_page(),
        **{f"python/{name}": text for name, text in package_pages()},
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def commands_page() -> str:
    """Output of every command's --help."""
    parts = ["# Commands", "What each command prints with `--help`.", _fence(_help())]
    for name, what in COMMANDS.items():
        parts += [f"## fedsink {name}", f"{_sentence(what)}", _fence(_help(name))]
    return page(parts)


def codes_page() -> str:
    """Exit codes by error, and codes of refusals by meaning."""
    parts = [
        "# Exit and refusal codes",
        "## Exit codes",
        f"`fedsink` {_exits()} An error is one sentence on the standard error; `--debug` shows "
        "its traceback.",
        "| error | exit code | when |\n|---|---|---|",
    ]
    for error in _errors(errors.FedsinkError):
        parts[-1] += f"\n| `{error.__name__}` | {error.exit_code} | {cell(_first_line(error))} |"
    parts += [
        "## Refusal codes",
        "What a server learns from a client that does not answer: this number, and nothing about "
        "the data. The sentence that says why is in the client’s own log.",
        "| code | name | the client … |\n|---|---|---|",
    ]
    names = {value: name for name, value in vars(refusals).items() if isinstance(value, int)}
    for code in sorted(refusals.MEANING):
        parts[-1] += f"\n| {code} | `{names[code]}` | {cell(refusals.MEANING[code])} |"
    return page(parts)


def messages_page() -> str:
    """Types of messages, with the handlers that answer them."""
    parts = [
        "# Messages",
        "All that servers and clients share is in `fedsink.protocol`. A request for training has "
        "the type `train.NAME`; a policy allows what answers it by its words. What requests and "
        "replies hold is said where they are [packed and read](python/protocol.md).",
        "| type | words of a policy | answer |\n|---|---|---|",
    ]
    for name in sorted(ANSWERS.own):
        answer = ANSWERS[name]
        words = ", ".join(f"`{word}`" for word in answer.words())
        parts[-1] += f"\n| `train.{name}` | {words} | {cell(_first_line(answer))} |"
    return page(parts)


def python_page() -> str:
    """The list of packages."""
    parts = [
        "# Python",
        "From the docstrings. `fedsink.transport`, `fedsink.privacy` and `fedsink.models` are "
        "libraries of their own, without Flower, Ray or Hydra.",
        "| package | what |\n|---|---|",
    ]
    for module in _packages():
        short = module.__name__.removeprefix("fedsink.")
        parts[-1] += f"\n| [`{module.__name__}`](python/{short}.md) | {_first_line(module)} |"
    return page([*parts, _described("fedsink", submodules=False)])


def package_pages() -> Iterator[tuple[str, str]]:
    """A page for each package and each module directly in `fedsink`, by its short name."""
    for module in _packages():
        short = module.__name__.removeprefix("fedsink.")
        yield short, page([f"# {module.__name__}", _described(module.__name__)])


def _described(module: str, *, submodules: bool = True) -> str:
    """Docstrings of a module, under the page's own heading."""
    options = {"show_root_heading": "false", "show_submodules": str(submodules).lower()}
    lines = [f"::: {module}", "    options:", *(f"      {k}: {v}" for k, v in options.items())]
    return "\n".join(lines)


def _packages() -> Iterator[ModuleType]:
    for found in iter_modules(fedsink.__path__, "fedsink."):
        if not found.name.rpartition(".")[2].startswith("_"):
            yield import_module(found.name)


def _errors(error: type[errors.FedsinkError]) -> Iterator[type[errors.FedsinkError]]:
    yield error
    for below in error.__subclasses__():
        if below.__module__.startswith("fedsink."):
            yield from _errors(below)


def _exits() -> str:
    return _first_line(main).removeprefix("Entry point; ")


def _help(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedsink", *command, "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "100", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    return done.stdout.strip("\n")


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0].replace("``", "`")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


def _fence(text: str) -> str:
    return f"```text\n{text}\n```"
