"""`fedsink audit`: the ε that canaries prove, beside the claimed ε."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsink.audit.distinguisher import Finding
from fedsink.audit.plays import FEWEST_TRIALS, audit
from fedsink.clients.answers.base import Answer
from fedsink.clients.answers.registry import find_answer
from fedsink.commands.command_keys import Parser, choice, parse, real, whole
from fedsink.data.maps import PointBall
from fedsink.errors import ConfigError
from fedsink.files import write_atomic
from fedsink.privacy import (
    ADJACENCIES,
    LOCAL_MECHANISMS,
    BatchClip,
    CriticClip,
    JointSchedule,
    PrivacyPlan,
    RecordClip,
    ReproducibleKey,
    local_mechanism,
)
from fedsink.privacy.clips import CLIPS
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.reporting.displays import format_table

_CLIPS = RecordClip.name, BatchClip.name, CriticClip.name

HELP = f"""Usage: fedsink audit mode=central [key=value …]
       fedsink audit mode=ldp [key=value …]

Plays the answer of a node on two data sets that differ in a canary, the worst record for it, and
prints the ε that the replies exclude (lower bounds, all together with the given confidence) next to
the ε that a ledger is charged (an upper bound). Exit code 1: a bound exceeds a claim, or a reply
holds more than its noised values. A bound below the claim refutes nothing and proves no privacy.
"most" is the largest bound that so few plays could prove.

  threshold   log((a − δ/s)/(1 − a)) where guesses are made at a rate s and a of them are right
              (Clopper–Pearson); needs no assumption, and many plays: it is weak for Gaussian noise.
  Gaussian    2Φ⁻¹(a) against μ = √rounds/σ: exact at rate 1, finds small faults.
  1 run       each of `canaries` records is there by a toss; Steinke, Nasr, Jagielski (2023),
              Theorem 5.2.

  trials=4000     half of the plays (mode=ldp: 10000); a quarter chooses the test, and a toss the
                  data set of each of the others
  confidence=0.95, seed=0, json=FILE
  eps=1           of the claim; the noise follows from it
  delta=1e-5      not with mechanism=laplace
  answer=NAME     of the messages train.NAME, a package's too (mode=central: dp_sinkhorn, or gs_wgan
                  with clip=critic; mode=ldp: privatize_once)

mode=central, whose plays are also made at rate 1 with the same σ:
  rounds=4, rate=0.2 (clip=critic: 1)
  clip=record     or {" or ".join(_CLIPS[1:])}
  critics=4       of the client, with clip=critic; adjacency={", ".join(ADJACENCIES)}
  canaries=1000   also audits one run with so many (left out: it does not); clip=record
  clients=1       so many share one noise (noise.share=secure_aggregation): the server sees the sum
                  of their integers, and colluders=0 of them tell it theirs; the time grows with m

mode=ldp: two records a diameter apart, on a line and, from beyond the ball, in the plane; and two
labels. Maps of images are not audited.
  mechanism=laplace or any other: {", ".join(LOCAL_MECHANISMS)}

Example: fedsink audit mode=central eps=1 rate=1 clip=batch
         fedsink audit mode=central eps=1 rate=1 clients=10 colluders=3
         fedsink audit mode=central eps=10 clip=critic critics=20
         fedsink audit mode=ldp mechanism=gaussian"""

_MODES = {
    "central": (
        "clip", "critics", "adjacency", "rounds", "rate", "canaries", "clients", "colluders",
    ),
    "ldp": ("mechanism",),
}  # fmt: skip


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Prints the table; 1 where a claim is refuted."""
    parsers: dict[str, Parser] = {
        "mode": str, "answer": str, "eps": real, "delta": real, "confidence": real,
        "trials": whole(FEWEST_TRIALS), "clip": str, "critics": whole(1),
        "adjacency": choice(*ADJACENCIES), "rounds": whole(1), "rate": real, "canaries": whole(2),
        "clients": whole(1), "colluders": whole(0), "mechanism": str, "seed": whole(0),
        "json": _writable,
    }  # fmt: skip
    keys = parse(arguments, parsers)
    mode, seed, file = keys.pop("mode", None), keys.pop("seed", 0), keys.pop("json", None)
    if mode not in _MODES:
        raise ConfigError(f"mode must be {' or '.join(_MODES)}, received {mode!r}.")
    for other, names in _MODES.items():
        for name in names:
            if other != mode and name in keys:
                raise ConfigError(f"{name} has no meaning with mode={mode}: leave it out.")
    answer, plan = _central(keys) if mode == "central" else _local(keys)
    result = audit(answer, plan, ReproducibleKey(seed), **keys)
    print(format_table([_row(finding) for finding in result.findings]))
    for finding in result.findings:
        if finding.unresolved:
            print(
                f"{finding.audited} ({finding.method}) cannot refute ε = {finding.claim:.3g}: the "
                f"most they could prove is {finding.resolution:.3g}."
            )
    print(f"Replies hold {'more than' if result.leaks else 'nothing but'} their noised values.")
    if file is not None:
        stored = {
            "mode": mode,
            "answer": answer.name,
            "plan": plan.to_dict(),
            "seed": seed,
            "findings": [finding.to_dict() for finding in result.findings],
            "leaks": list(result.leaks),
        }
        write_atomic(file, (json.dumps(stored, indent=1, ensure_ascii=False) + "\n").encode())
    return _verdict(result.findings, result.leaks)


def _central(keys: dict[str, Any]) -> tuple[type[Answer], PrivacyPlan]:
    """Takes the keys of the mechanism; returns the answer and its plan."""
    name = keys.pop("clip", RecordClip.name)
    if name not in _CLIPS:
        raise ConfigError(f"clip must be {', '.join(_CLIPS[:-1])} or {_CLIPS[-1]}, not {name!r}.")
    if not (critics := name == CriticClip.name) and "critics" in keys:
        raise ConfigError(f"critics has no meaning with clip={name}: leave it out.")
    clip = CriticClip(0.1, keys.pop("critics", 4)) if critics else CLIPS[name](1.0)
    plan = PrivacyPlan.solve(
        eps=keys.pop("eps", 1.0),
        rate=keys.pop("rate", 0.2 if clip.sampled else 1.0),
        rounds=keys.pop("rounds", 4),
        delta=keys.pop("delta", 1e-5),
        clip=clip,
        schedule=JointSchedule(),
        adjacency=keys.pop("adjacency", ADJACENCIES[0]),
    )
    return _answer(keys, "gs_wgan" if critics else "dp_sinkhorn", local=False), plan


def _local(keys: dict[str, Any]) -> tuple[type[Answer], LocalPlan]:
    """Takes the keys of the mechanism; returns the answer and its plan on [−1, 1]."""
    name = keys.pop("mechanism", LOCAL_MECHANISMS.own[0])
    if name not in LOCAL_MECHANISMS:
        raise ConfigError(f"mechanism must be {' or '.join(LOCAL_MECHANISMS)}, received {name!r}.")
    mechanism = local_mechanism(name)
    if "delta" in keys and not mechanism.needs_delta:
        raise ConfigError(f"delta has no meaning with mechanism={name}: it is pure ε.")
    delta = keys.pop("delta", 1e-5 if mechanism.needs_delta else 0.0)
    keys.setdefault("trials", 10_000)
    plan = LocalPlan(name, PointBall(mechanism.norm, 1.0, 1), keys.pop("eps", 1.0), delta)
    return _answer(keys, "privatize_once", local=True), plan


def _answer(keys: dict[str, Any], default: str, *, local: bool) -> type[Answer]:
    answer = find_answer(f"train.{keys.pop('answer', default)}", None)
    if (answer.adjacency is not None) is not local:
        raise ConfigError(
            f"answer={answer.name} belongs to mode={'central' if local else 'ldp'}: choose that."
        )
    return answer


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
    """Returns a file in a folder that exists: an audit makes nothing else."""
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError("expected a file in an existing folder")
    return path
