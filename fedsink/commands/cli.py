"""The command `fedsink`: finds the sub-command, which is imported only when it runs."""

from __future__ import annotations

import importlib
import logging
import os
import select
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TextIO

from fedsink.commands import ACTIONS, ALONE, COMMANDS, NEEDS
from fedsink.environment import missing_package, quieten_flower


def usage() -> str:
    """Returns the text of `fedsink --help`."""
    absent = {package for package in set(NEEDS.values()) if find_spec(package) is None}
    marks = {name: "*" if NEEDS.get(name) in absent else " " for name in COMMANDS}
    lines = [f" {marks[name]}{name:<10}{what}" for name, what in COMMANDS.items()]
    start = next(name for name in ("simulate", "node", "account") if marks[name] == " ")
    end = [f"Start with:  fedsink {start} {'mode=central' if start == 'simulate' else '--help'}"]
    if start == "simulate":
        end += ['Completion:  eval "$(fedsink --shell-completion install=bash)"']
    if absent:
        lines += ["", " *needs more than fedsink-core, which is installed here, and says what"]
    return "\n".join(
        [
            "fedsink: image generators learnt from data that stays with its owners.",
            "",
            "Usage: fedsink COMMAND [key=value …]        (fedsink COMMAND --help says more)",
            "",
            *lines,
            "",
            "  --version  print the version",
            "  --debug    with any command: show the traceback of an error",
            "",
            *end,
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 0, 1 (failed), 2 (bad input), 130 (interrupted) or 141."""
    # A shell shows 141 for a command whose reader went away (128 + SIGPIPE).
    arguments = list(sys.argv[1:] if argv is None else argv)
    quieten_flower()
    standard: tuple[Any, Any] = sys.stdout, sys.stderr
    for stream in standard:
        if getattr(stream, "errors", None) == "strict":  # ε is not in every encoding
            stream.reconfigure(errors="replace")
    debug = "--debug" in arguments
    # Without a handler Python would print warnings itself.
    logging.getLogger("fedsink").addHandler(
        logging.StreamHandler() if debug else logging.NullHandler()
    )
    arguments = [a for a in arguments if a != "--debug"]
    try:
        try:
            code = _dispatch(arguments, debug)
        finally:  # Hydra exits by itself where it has something to show
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not (streams := _unread()):
            raise
        for stream in streams:
            # Python writes the buffered text when it exits, and would fail on the broken pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        code = 141
    sys.exit(code)


def _unread() -> list[TextIO]:
    """Lists the standard streams that are a pipe without a reader, or a closed terminal."""
    unread = []
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
                unread.append(stream)
    return unread


def _dispatch(arguments: list[str], debug: bool) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command == "--version":
        from fedsink import __version__

        print(f"fedsink {__version__}")
        return 0
    if command in ("-sc", "--shell-completion"):
        return _guarded(command, lambda: complete(arguments), debug)
    if command not in COMMANDS:
        from fedsink.registry import did_you_mean

        hint = did_you_mean(command, COMMANDS)
        print(
            f"fedsink: unknown command {command!r}.{hint} There are {', '.join(COMMANDS)}.",
            file=sys.stderr,
        )
        return 2

    def run() -> int:
        module = importlib.import_module(f"fedsink.commands.{command}")
        if {"-h", "--help"} & set(rest) or (not rest and command not in ALONE):
            print(module.HELP if isinstance(module.HELP, str) else module.HELP())
            return 0
        return int(module.run(rest, debug=debug))

    return _guarded(command, run, debug)


def complete(arguments: Sequence[str]) -> int:
    """Answers `fedsink --shell-completion install=bash|query=bash`; Hydra, after `simulate`."""
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
    from fedsink.conf.loading import application

    def never(config: object) -> None:
        raise RuntimeError("completion runs no task")

    before, sys.argv = sys.argv, ["fedsink", *arguments]
    try:
        application(never)()
    finally:
        sys.argv = before
    return 0


def _guarded(command: str, run: Callable[[], int], debug: bool) -> int:
    from fedsink.errors import FedsinkError

    try:
        return run()
    except KeyboardInterrupt:
        print("\nfedsink: interrupted.", file=sys.stderr)
        return 130
    except FedsinkError as error:
        if debug:
            raise
        from fedsink.reporting.displays import printable

        print(f"fedsink: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if debug or (isinstance(error, BrokenPipeError) and _unread()):
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"fedsink: {where}{error.strerror or error}.", file=sys.stderr)
        return 1
    except Exception as error:
        if debug:
            raise
        if sentence := missing_package(error, f"fedsink {command}"):
            print(f"fedsink: {sentence}", file=sys.stderr)
            return 2
        print(
            f"fedsink: {type(error).__name__}: {str(error) or 'no message'} "
            "(a defect, or a machine out of resources; --debug shows the traceback)",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    main()
