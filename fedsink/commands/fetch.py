"""`fedsink fetch`: the results of a deployed run, for a submitter who was cut off from it."""

from __future__ import annotations

from collections.abc import Sequence

from fedsink.commands.command_keys import Parser, parse
from fedsink.deployment.server_folder import deployed_name
from fedsink.deployment.submission import app_at, new_folder, submit

HELP = """\
fedsink fetch: get the results of a deployed run that has ended.

Usage: fedsink fetch app=DIR superlink=NAME run=NAME [folder=DIR]

  app, superlink  as for fedsink deploy
  run             the name that fedsink deploy printed first
  folder          where the results are put; left out: runs/NAME

No node is asked, and nothing is charged.

Example: fedsink fetch app=deploy superlink=lab run=2026-11-22-10-00-00-1f2e3d"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Asks the server; prints the run folder in the last line of standard output."""
    parsers: dict[str, Parser] = dict.fromkeys(("app", "superlink", "folder"), str)
    parsers["run"] = deployed_name
    keys = parse(arguments, parsers, of="fetch", needs=("app", "superlink", "run"))
    folder = new_folder(keys.get("folder") or f"runs/{keys['run']}")
    run_config = {"action": "fetch", "name": keys["run"], "config": "{}"}
    return submit(app_at(keys["app"]), keys["superlink"], run_config, folder, everything=debug)
