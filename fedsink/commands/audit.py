"""`fedsink audit`: what canaries prove about ε, beside what is claimed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsink.audit.finding import Finding
from fedsink.audit.gs_wgan import audit_critics
from fedsink.audit.ldp import audit_local, line_plan
from fedsink.audit.one_run import audit_one_run
from fedsink.audit.schema import audit_critic_schema, audit_schema
from fedsink.audit.transcripts import audit_transcripts
from fedsink.commands.keys import parse, real, whole
from fedsink.errors import ConfigError
from fedsink.evaluation import format_table
from fedsink.privacy import (
    LOCAL_MECHANISMS,
    BatchClip,
    Clip,
    CriticClip,
    JointSchedule,
    LaplaceMechanism,
    PrivacyPlan,
    RecordClip,
    ReproducibleKey,
    local_mechanism,
)
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.reporting.output_files import write_atomic

HELP = """Usage: fedsink audit mode=central [eps=1] [delta=1e-5] [rounds=4] [rate=0.2] [clip=record]
                                  [trials=4000] [canaries=1000]
       fedsink audit mode=central clip=critic [critics=4] [adjacency=add-remove] [eps=1]
                                  [delta=1e-5] [rounds=4] [trials=4000]
       fedsink audit mode=ldp [mechanism=laplace] [eps=1] [delta=1e-5] [trials=10000]
       and for all [confidence=0.95] [seed=0] [json=FILE]

Runs the clients' own code on canaries and prints the ε that their replies exclude (a lower bound,
each with the given confidence) beside the ε that is claimed (an upper bound). Exit code 1: a bound
exceeds a claim, or a reply holds more than its noised gradient. A bound below the claim refutes
nothing and proves no privacy. "most" is the largest bound that so few trials could prove.

mode=central  σ is solved from eps, rate and rounds. clip=record, clip=batch or clip=critic.
  transcripts `trials` runs with and as many without one worst-case record, at the plan's rate and
              at rate 1 with the same σ; the time grows with trials·rounds.
  threshold   log((TPR − δ)/FPR) and its mirror image, Clopper–Pearson; needs no assumption, and
              many trials: it is weak for Gaussian noise.
  Gaussian    Φ⁻¹(TPR) − Φ⁻¹(FPR) against μ = √rounds/σ: exact at rate 1, finds small faults.
  1 run       each of `canaries` records is in by a toss; Steinke, Nasr, Jagielski (2023),
              Theorem 5.2. Weak with clip=batch, where all canaries share one bound.
clip=critic   the critics of strategy=gs_wgan, each asked with probability `rate` (default 1):
              adjacency=add-remove, replace-one, user or client. A change of one critic's records
              turns its gradient round, all 2C. Runs are told apart along the known difference,
              and along a direction that half of them show.
mode=ldp      uploads of two records a diameter apart; mechanism=laplace or mechanism=gaussian.

Example: fedsink audit mode=central eps=1 rate=1 clip=batch
         fedsink audit mode=central eps=10 clip=critic critics=20"""

_COMMON = {"mode", "confidence", "seed", "json", "eps", "delta", "trials"}
_OF_CRITICS = {"critics", "adjacency"}
_OF_MODE = {
    "central": {"rounds", "rate", "clip", "canaries"} | _OF_CRITICS,
    "ldp": {"mechanism"},
}
_CLIPS: dict[str, Clip] = {"record": RecordClip(1.0), "batch": BatchClip(1.0)}


def run(arguments: Sequence[str], debug: bool = False) -> int:
    """Print the table; 1 where a claim is refuted."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    keys = parse(
        arguments,
        {
            "mode": str, "eps": real, "delta": real, "rounds": whole(1), "rate": real, "clip": str,
            "mechanism": str, "critics": whole(1), "adjacency": str, "trials": whole(8),
            "canaries": whole(2), "confidence": real, "seed": whole(0), "json": _writable,
        },
    )  # fmt: skip
    mode = keys.pop("mode", None)
    if mode not in _OF_MODE:
        raise ConfigError(f"mode must be central or ldp, received {mode!r}: add mode=central.")
    for name in keys:
        if name not in _COMMON | _OF_MODE[mode]:
            raise ConfigError(f"{name} has no meaning with mode={mode}: leave it out.")
    file = keys.pop("json", None)
    seed = keys.pop("seed", 0)
    keys.setdefault("confidence", 0.95)
    audit = _local if mode == "ldp" else _critics if _of_critics(keys) else _central
    plan, findings, leaks = audit(keys, ReproducibleKey(seed))
    print(format_table([_row(finding) for finding in findings]))
    for finding in findings:
        if finding.unresolved:
            print(
                f"{finding.audited} ({finding.method}) cannot refute ε = {finding.claim:.3g}: the "
                f"most they could prove is {finding.resolution:.3g}."
            )
    if mode == "central":
        print(f"Replies hold {'more than' if leaks else 'nothing but'} their noised gradient.")
    if file is not None:
        record = {
            "mode": mode,
            "plan": plan,
            "seed": seed,
            "findings": [finding.to_dict() for finding in findings],
            "leaks": list(leaks),
        }
        write_atomic(file, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return _verdict(findings, leaks)


def _of_critics(keys: dict[str, Any]) -> bool:
    """Whether the audit is of critics; refuses what has no meaning for its clip."""
    critics = keys.get("clip") == CriticClip.name
    if wrong := keys.keys() & ({"canaries"} if critics else _OF_CRITICS):
        raise ConfigError(
            f"{min(wrong)} has no meaning with clip={keys.get('clip', 'record')}: leave it out."
        )
    return critics


def _critics(
    keys: dict[str, Any], key: ReproducibleKey
) -> tuple[dict[str, Any], list[Finding], tuple[str, ...]]:
    critics = keys.get("critics", 4)
    plan = PrivacyPlan.solve(
        eps=keys.get("eps", 1.0),
        rate=keys.get("rate", 1.0),
        rounds=keys.get("rounds", 4),
        delta=keys.get("delta", 1e-5),
        clip=CriticClip(0.1, critics),
        schedule=JointSchedule(),
        adjacency=keys.get("adjacency", ADD_REMOVE),
    )
    findings = audit_critics(
        plan,
        key,
        critics=critics,
        trials=keys.get("trials", 4000),
        confidence=keys["confidence"],
    )
    return plan.to_dict(), findings, audit_critic_schema(plan, key, critics=critics)


def _central(
    keys: dict[str, Any], key: ReproducibleKey
) -> tuple[dict[str, Any], list[Finding], tuple[str, ...]]:
    clip = keys.get("clip", "record")
    if clip not in _CLIPS:
        raise ConfigError(f"clip must be record, batch or critic, received {clip!r}.")
    plan = PrivacyPlan.solve(
        eps=keys.get("eps", 1.0),
        rate=keys.get("rate", 0.2),
        rounds=keys.get("rounds", 4),
        delta=keys.get("delta", 1e-5),
        clip=_CLIPS[clip],
        schedule=JointSchedule(),
    )
    confidence = keys["confidence"]
    one_run = audit_one_run(plan, key, canaries=keys.get("canaries", 1000), confidence=confidence)
    trials = keys.get("trials", 4000)
    transcripts = audit_transcripts(plan, key, trials=trials, confidence=confidence)
    return plan.to_dict(), [*transcripts, one_run], audit_schema(plan, key)


def _local(
    keys: dict[str, Any], key: ReproducibleKey
) -> tuple[dict[str, Any], list[Finding], tuple[str, ...]]:
    mechanism = keys.get("mechanism", LaplaceMechanism.name)
    pure = mechanism in LOCAL_MECHANISMS and not local_mechanism(mechanism).needs_delta
    if pure and "delta" in keys:
        raise ConfigError(f"delta has no meaning with mechanism={mechanism}: it is pure ε.")
    delta = 0.0 if pure else keys.get("delta", 1e-5)
    plan = line_plan(mechanism, keys.get("eps", 1.0), delta)
    trials = keys.get("trials", 10_000)
    findings = audit_local(plan, key, trials=trials, confidence=keys["confidence"])
    return plan.to_dict(), findings, ()


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
