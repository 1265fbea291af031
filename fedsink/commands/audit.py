"""`fedsink audit`: the ε that canaries prove, beside the claimed ε."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedsink.audit.dp_sinkhorn import DPSinkhornAudit
from fedsink.audit.finding import Finding
from fedsink.audit.gs_wgan import GSWGANAudit
from fedsink.audit.method import MethodAudit
from fedsink.audit.privatize_once import PrivatizeOnceAudit
from fedsink.commands.command_keys import Parser, parse, parsers_of, whole
from fedsink.errors import ConfigError
from fedsink.privacy import (
    ReproducibleKey,
)
from fedsink.registry import Registry
from fedsink.reporting.displays import format_table
from fedsink.reporting.output_files import write_atomic

METHODS: Registry[type[MethodAudit]] = Registry(
    "method",
    {method.name: method for method in (DPSinkhornAudit, GSWGANAudit, PrivatizeOnceAudit)},
)
"""The methods that can be audited, in the order of the help."""

_HELP = """Usage: {usage}
       and for all [confidence=0.95] [seed=0] [json=FILE]

Runs the clients' own code on canaries and prints the ε that their replies exclude (a lower bound,
each with the given confidence) next to the ε that is claimed (an upper bound). Exit code 1: a bound
exceeds a claim, or a reply holds more than its noised gradient. A bound below the claim refutes
nothing and proves no privacy. "most" is the largest bound that so few trials could prove.

mode=central  σ is solved from eps, rate and rounds. {clips}.
{explanations}

Example: {examples}"""


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints the table; 1 where a claim is refuted."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(_help())
        return 0
    keys = parse(arguments, _parsers())
    mode, seed, file = keys.pop("mode", None), keys.pop("seed", 0), keys.pop("json", None)
    result = _method(mode, keys)(**keys).run(ReproducibleKey(seed))
    leaks = result.leaks or ()
    print(format_table([_row(finding) for finding in result.findings]))
    for finding in result.findings:
        if finding.unresolved:
            print(
                f"{finding.audited} ({finding.method}) cannot refute ε = {finding.claim:.3g}: the "
                f"most they could prove is {finding.resolution:.3g}."
            )
    if result.leaks is not None:
        print(f"Replies hold {'more than' if leaks else 'nothing but'} their noised gradient.")
    if file is not None:
        stored = {
            "mode": mode,
            "plan": result.plan,
            "seed": seed,
            "findings": [finding.to_dict() for finding in result.findings],
            "leaks": list(leaks),
        }
        write_atomic(file, (json.dumps(stored, indent=1, ensure_ascii=False) + "\n").encode())
    return _verdict(result.findings, leaks)


def _help() -> str:
    methods = METHODS.values()
    *clips, last = [f"clip={clip}" for method in methods for clip in method.clips]
    commands = [f"fedsink audit {example}" for method in methods for example in method.examples]
    return _HELP.format(
        usage="\n       ".join(f"fedsink audit {method.usage}" for method in methods),
        clips=f"{', '.join(clips)} or {last}",
        explanations="\n".join(method.explanation for method in methods),
        examples="\n         ".join(commands),
    )


def _parsers() -> dict[str, Parser]:
    """The parsers of the keys of all methods."""
    parsers: dict[str, Parser] = {"mode": str}
    for method in METHODS.values():
        parsers |= parsers_of(method)
    return parsers | {"seed": whole(0), "json": _writable}


def _method(mode: str | None, keys: Mapping[str, Any]) -> type[MethodAudit]:
    """The method of a mode and clip; refuses keys that have no meaning for it."""
    methods = [method for method in METHODS.values() if method.mode == mode]
    if not methods:
        modes = " or ".join(dict.fromkeys(method.mode for method in METHODS.values()))
        raise ConfigError(f"mode must be {modes}, received {mode!r}: add mode=central.")
    _refuse_others(keys, methods, f"mode={mode}")
    by_clip = {clip: method for method in methods for clip in method.clips}
    if not by_clip:
        return methods[0]
    *others, last = by_clip
    clip = keys.get("clip", next(iter(by_clip)))
    if clip not in by_clip:
        raise ConfigError(f"clip must be {', '.join(others)} or {last}, received {clip!r}.")
    _refuse_others(keys, [by_clip[clip]], f"clip={clip}")
    return by_clip[clip]


def _refuse_others(
    keys: Mapping[str, Any], methods: Sequence[type[MethodAudit]], choice: str
) -> None:
    """Refuses a key that none of the methods has."""
    known = {field.name for method in methods for field in fields(method)}
    for name in keys:
        if name not in known:
            raise ConfigError(f"{name} has no meaning with {choice}: leave it out.")


def _row(finding: Finding) -> dict[str, object]:
    return {
        "audited": finding.audited,
        "method": finding.method,
        "ε claimed": finding.claim,
        "ε proved": finding.bound,
        "most": finding.resolution,
        "confidence": f"{finding.confidence:g}",
    }


def _verdict(findings: Sequence[Finding], leaks: Sequence[str]) -> int:
    for finding in findings:
        if finding.violated:
            print(
                f"fedsink: a claim is refuted: {finding.audited} ({finding.method}) prove "
                f"ε ≥ {finding.bound:.3g}, and {finding.claim:.3g} was claimed; the chance of that "
                f"with a correct mechanism is at most {1.0 - finding.confidence:.2g}.",
                file=sys.stderr,
            )
    for leak in leaks:
        print(f"fedsink: {leak}", file=sys.stderr)
    return 1 if leaks or any(finding.violated for finding in findings) else 0


def _writable(text: str) -> Path:
    """A file in a folder that exists: an audit makes nothing else."""
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError("expected a file in an existing folder")
    return path
