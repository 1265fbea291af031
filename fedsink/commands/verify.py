"""`fedsink verify run=DIR`: a verdict on the promise of a run, without its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsink.commands.command_keys import flag, parse
from fedsink.errors import ConfigError

if TYPE_CHECKING:
    from fedsink.server.verification import Verdict

HELP = """Usage: fedsink verify run=DIR [peers=FILE] [json=true]

Examples:
  fedsink verify run=runs/2026-11-24/10-05-00-central
  fedsink verify run=received peers=hospitals.toml

Verifies the promise of a run from its folder, or from a published generator with what lies beside
it (privacy.json, SHA256SUMS, generator.safetensors, generator.json; of real nodes nodes.json):

- ε is computed again from the stored plan, by every accountant that has a bound, and every number
  of privacy.json is compared with what the plan gives;
- generator, report and promise are compared with their SHA-256;
- of a run on real nodes: each node has signed what it was charged, and that is what is promised.

No data are needed, and nothing outside the folder is read.

  peers  public keys of the nodes, which their owners told you (fedsink node key policy=FILE):
         a TOML file with a table [keys] of lines  NAME = "ed25519:…"
  json   true: the verdict as JSON, for a registry of deployments

Exit codes: 0 verified; 1 not verified, or nothing is protected; 2 a wrong request."""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints the verdict; returns 0 if the run is verified, else 1."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    keys = parse(arguments, {"run": Path, "peers": Path, "json": flag})
    if "run" not in keys:
        raise ConfigError("run= is missing; fedsink verify --help says what to give.")

    from fedsink.reporting.displays import printable
    from fedsink.server.verification import VERIFIED, read_peers, verdict_on

    known = read_peers(keys["peers"].expanduser()) if "peers" in keys else None
    folder = keys["run"].expanduser()
    verdict = verdict_on(folder, known)
    if keys.get("json", False):
        print(json.dumps(verdict.to_dict(), indent=2, ensure_ascii=False, sort_keys=True))
    else:
        print("\n".join(map(printable, _lines(verdict, folder))))
    return 0 if verdict.verdict == VERIFIED else 1


def _lines(verdict: Verdict, folder: Path) -> list[str]:
    promise = verdict.promise
    lines = [f"{verdict.verdict.upper()}: {folder}"]
    lines += [f"  ✗ {reason}" for reason in verdict.reasons]
    if promise.get("epsilon") is not None:
        lines += [
            f"The plan gives ε = {promise['epsilon']:.4g}, δ = {promise['delta']:.3g} "
            f"per {promise['unit']} ({promise['adjacency']}):",
            f"  by {promise['accountant']}; "
            + ", ".join(f"{name} {value:.4g}" for name, value in verdict.epsilons.items()),
        ]
    elif promise:
        lines.append("The plan has neither clip nor noise: every record may be learnt from it.")
    for node in verdict.nodes:
        name = node["name"] or "a key nobody vouched for"
        lines.append(
            f"  client {node['client']} was charged ε = {node['epsilon']:.4g} for "
            f"{node['rounds']} rounds, signed by {name} ({node['key']})"
        )
    if verdict.files:
        lines.append("Compared:")
        lines += [f"  {digest}  {name}" for name, digest in verdict.files.items()]
    return [*lines, *(f"Mind: {note}" for note in verdict.notes)]
