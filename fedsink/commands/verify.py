"""`fedsink verify run=DIR`: a verdict on the promise of a run, without its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsink import __version__
from fedsink.commands.command_keys import Parser, flag, parse

if TYPE_CHECKING:
    from fedsink.results.verification import Verdict

HELP = """Usage: fedsink verify run=DIR [peers=FILE] [json=true]

Verifies the promise of a run from its folder, or from a published generator with what lies beside
it (privacy.json, SHA256SUMS, generator.safetensors, generator.json; of real nodes nodes.json). No
data are needed, and nothing outside the folder is read. The first word is the verdict:

  signed       with peers=: every named key has signed what its node was charged for this run, or
               that it was charged nothing, and the promise is no less than the largest of them
  consistent   plan, numbers, words and files agree, and nobody but the sender vouches for them:
               every simulation; and with peers= a run that not all named keys have signed
  unprotected  the noise is from a published seed, or there is none
  refused      something contradicts something else; each reason is listed

  peers  public keys of the nodes, which their owners told you (fedsink node key policy=FILE):
         a TOML file with a table [keys] of lines  NAME = "ed25519:…"
  json   true: the verdict as JSON, for a registry of deployments

Exit code: 0 consistent without peers=, or signed with it; 1 another verdict; 2 a wrong request.

Example: fedsink verify run=received peers=hospitals.toml"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints the verdict; returns 0 if it is the best that was asked for, else 1."""
    parsers: dict[str, Parser] = {"run": Path, "peers": Path, "json": flag}
    keys = parse(arguments, parsers, of="verify", needs=("run",))

    from fedsink.protocol.signing import read_keys, shown_key
    from fedsink.reporting.displays import printable
    from fedsink.results.verification import CONSISTENT, SIGNED, verdict_on

    vouched = None
    if path := keys.get("peers"):
        names = read_keys(f"peers={path}", path.expanduser(), "keys")
        vouched = {shown_key(key): name for key, name in names.items()}
    folder = keys["run"].expanduser()
    verdict = verdict_on(folder, vouched)
    if keys.get("json", False):
        table = {"format": "fedsink verdict 2", "fedsink": __version__, **vars(verdict)}
        print(json.dumps(table, indent=2, ensure_ascii=False, sort_keys=True))
    else:
        print("\n".join(map(printable, _lines(verdict, folder))))
    return 0 if verdict.verdict == (CONSISTENT if vouched is None else SIGNED) else 1


def _lines(verdict: Verdict, folder: Path) -> list[str]:
    promise, counted = verdict.promise, f", {verdict.signed} of {verdict.named} signed"
    lines = [f"{verdict.verdict}{counted if verdict.named else ''}: {folder}"]
    lines += [f"  ✗ {reason}" for reason in verdict.reasons]
    lines += [f"  – {gap}" for gap in verdict.gaps]
    if promise.get("epsilon") is not None:
        lines += [
            f"The plan gives ε = {promise['epsilon']:.4g}, δ = {promise['delta']:.3g} "
            f"per {promise['unit']} ({promise['adjacency']}):",
            f"  by {promise['accountant']}; "
            + ", ".join(f"{name} {value:.4g}" for name, value in verdict.epsilons.items()),
        ]
    elif promise:
        lines.append("The plan has neither clip nor noise: every record may be learnt from it.")
    if promise:
        known = "; then ".join(verdict.starts)
        lines.append(
            f"The weights before round 1 are of a start: {known}."
            if known
            else "It knows of no start: an earlier plan that is left out cannot be found here."
        )
    lines += [f"  without {name}: {why}" for name, why in verdict.left_out.items()]
    for node in verdict.nodes:
        name = node["name"] or "a key nobody vouched for"
        lines.append(
            f"  client {node['client']} was charged ε = {node['epsilon']:.4g} for "
            f"{node['rounds']} rounds, noise {node['noise']}, signed on {node['day']} by {name} "
            f"({node['key']})"
        )
    if verdict.files:
        lines.append("Compared:")
        lines += [f"  {digest}  {name}" for name, digest in verdict.files.items()]
    if verdict.unvouched:
        lines.append(f"Nobody but the sender vouches for this: {'; '.join(verdict.unvouched)}.")
    return [*lines, *(f"Mind: {note}" for note in verdict.notes)]
