"""Verifies what a run's folder, or a published generator, says of its privacy, without the data.

Nobody who made the folder is trusted: ε is computed again from the plan, and compared with every
entry of privacy.json; so are the files with their sums, and the plan with what nodes have signed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsink import __version__
from fedsink.errors import BadSignatureError, CheckpointError, ConfigError, FedsinkError
from fedsink.protocol.signing import ChargeStatement
from fedsink.results.restated import Restatement, agree, restated
from fedsink.server.folder import (
    SUMMED,
    SUMS,
    RecordedRun,
    RunFolder,
    cautions,
    own_file,
    read_sums,
    sha256_of,
)
from fedsink.strategies.base.private_start import STARTED, is_public
from fedsink.values import Config

SIGNED, CONSISTENT, UNPROTECTED, REFUSED = "signed", "consistent", "unprotected", "refused"

_SENTENCES = {
    "mechanism", "accountant_library", "sample_secrecy", "noise_meaning", "protected",
    "not_protected", "assumptions", "assumption", "reason", "source",
}  # fmt: skip
_PLAIN = {"plan", "start", "method", "fedsink", "training", "paper", "run"}
"""Entries of privacy.json that no plan gives, and that promise nothing."""
_VOUCHED = {
    "participation": "who missed messages",
    "public": "that the data are public",
    "assumed_public": "that what was read off the records is public",
    "clip_promised_by": "that somebody's own clip looks at each gradient alone",
}
"""Entries of privacy.json that no plan gives, and what they say."""
_DEPLOYED, _REPRODUCIBLE = "node", "reproducible"


@dataclass
class Verdict:
    """The verdict on one run, with its reasons in sentences."""

    verdict: str = REFUSED
    reasons: list[str] = field(default_factory=list)  # each alone refuses the promise
    gaps: list[str] = field(default_factory=list)  # what is missing for `SIGNED`
    unvouched: list[str] = field(default_factory=list)  # parts of a sentence
    notes: list[str] = field(default_factory=list)  # warnings
    signed: int = 0  # nodes that have signed, of `named` nodes that should have
    named: int = 0
    promise: dict[str, Any] = field(default_factory=dict)  # computed from the plan
    epsilons: dict[str, float] = field(default_factory=dict)  # by accountant
    left_out: dict[str, str] = field(default_factory=dict)  # why, by accountant
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of what was compared
    nodes: list[dict[str, Any]] = field(default_factory=list)  # what each has signed
    starts: list[str] = field(default_factory=list)  # what trained before, the first one first


def verdict_on(path: Path, keys: Mapping[str, str] | None = None) -> Verdict:
    """Returns the verdict on a folder with privacy.json: a run's, or a published generator's.

    `keys` has the names of nodes by their public keys (``ed25519:…``), from elsewhere than the
    folder; None: nobody vouches for keys.

    Guarantees:
        - `SIGNED` needs a valid statement on this run and plan by every known key, and a promise
          of no less than the largest of them.
        - No entry that a sender can write takes the place of a statement.
        - Nothing outside the folder is read, and nothing is written.
        - Whatever the folder's files hold gives a verdict.
    """
    run, verdict = RecordedRun(RunFolder(path)), Verdict()
    if not own_file(run.folder.privacy):
        raise ConfigError(
            f"{path} has no privacy.json: name the folder of a run, or one with its generator and "
            "what lay beside it."
        )
    try:
        privacy = run.privacy or {}
        plan = restated(privacy)
    except (FedsinkError, OSError, RecursionError, OverflowError, MemoryError) as error:
        verdict.reasons.append(f"privacy.json cannot be verified: {_sentence(error)}")
        _check_files(run.folder, verdict)
        return verdict
    same = privacy.get("fedsink") == __version__
    for where, expected, found in _differences(plan.entries, privacy):
        if not same and _SENTENCES.intersection(where.split(".")):
            verdict.unvouched = ["the words of privacy.json, which are of another version"]
        elif where not in _PLAIN | _VOUCHED.keys():
            verdict.reasons.append(
                f"privacy.json states {where} = {_short(found)}, and its plan gives "
                f"{_short(expected)}."
            )
    if verdict.reasons and not same:
        verdict.notes.append(f"It says that fedsink {_short(privacy.get('fedsink'))} wrote it.")
    verdict.unvouched += [what for name, what in _VOUCHED.items() if name in privacy]
    _check_start(run, verdict)
    verdict.epsilons, verdict.left_out = dict(plan.epsilons), dict(plan.left_out)
    names = ("model", "epsilon", "delta", "unit", "adjacency", "accountant")
    verdict.promise = {name: plan.entries.get(name) for name in names} | {"run": privacy.get("run")}
    config: Config = {"data": {"nominal_records": plan.records}}
    with suppress(CheckpointError, ConfigError):  # only cautions rest on it
        config = run.config if own_file(run.folder.config) else config
    verdict.notes += cautions(plan.entries, config)
    if privacy.get("noise") == _REPRODUCIBLE:
        verdict.notes.append(
            "The noise is computed from a published seed, and whoever knows it can subtract it: ε "
            "describes the mechanism, and no record of this run is protected by it."
        )
    _check_files(run.folder, verdict)
    _check_nodes(run, plan, keys, verdict)
    if not verdict.reasons:
        verdict.verdict = CONSISTENT if keys is None or verdict.gaps else SIGNED
        if not plan.epsilons or privacy.get("noise") == _REPRODUCIBLE:
            verdict.verdict = UNPROTECTED
    return verdict


def _differences(expected: Any, found: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields the places where a stated value is not the expected one, or is not expected."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in (*expected, *(found.keys() - expected.keys())):
            place = f"{where}.{key}".lstrip(".")
            if key in expected and key in found:
                yield from _differences(expected[key], found[key], place)
            else:
                yield place, expected.get(key), found.get(key)
    elif isinstance(expected, list | tuple) and isinstance(found, list):
        if len(found) != len(expected):
            yield where, expected, found
        for number, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from _differences(one, other, f"{where}[{number}]")
    elif isinstance(expected, int | float) and not isinstance(expected, bool):
        if not agree(expected, found):
            yield where, expected, found
    elif expected != found or type(expected) is not type(found):
        yield where, expected, found


def _check_start(run: RecordedRun, verdict: Verdict) -> None:
    """Says which starts the folder states, and refuses one that it has and does not state."""
    start, own = (run.privacy or {}).get("start"), RunFolder(run.folder.path / STARTED)
    asked = False
    with suppress(CheckpointError, ConfigError):
        asked = own_file(run.folder.config) and run.config.get("start") is not None
    if start is None:
        if asked or own.path.exists():
            verdict.reasons.append(
                "The run began with a start, and privacy.json states none: nothing says what the "
                "weights before round 1 had seen."
            )
        return
    if own_file(own.privacy) and not own.path.is_symlink():
        lies: Config = {}
        with suppress(CheckpointError):
            lies = RecordedRun(own).privacy or {}
        names = ("data_sha256",) if is_public(start) else ("plan", "method", "noise", "start")
        lies = lies.get("public", {}) if is_public(start) else lies
        if any(lies.get(name) != start.get(name) for name in names):
            verdict.reasons.append(f"The folder {STARTED}/ holds another start than is stated.")
    while start is not None:
        public = is_public(start)
        words, of = ("public data", "data") if public else ("the same records by", "method")
        verdict.starts.insert(0, f"{words} {_short(start.get(of))}")
        start = None if public else start.get("start")
    if verdict.starts[0].startswith("public"):
        verdict.unvouched.append("that the first start saw public data alone")


def _check_files(folder: RunFolder, verdict: Verdict) -> None:
    """Compares the files with their sums."""
    try:
        sums = read_sums(folder.path)
    except (CheckpointError, OSError) as error:
        why = f"{SUMS} is missing: nothing says which generator is meant."
        verdict.reasons.append(why if isinstance(error, FileNotFoundError) else _sentence(error))
        return
    for name in SUMMED:
        path = folder.path / name
        if path.is_symlink():
            verdict.reasons.append(f"{name} is a link: hand over the file.")
        elif path.is_file():
            verdict.files[name] = sha256_of(path)
            if sums.get(name) != verdict.files[name]:
                verdict.reasons.append(f"{name} was changed: {SUMS} has another SHA-256, or none.")
        elif name != "report.html":
            verdict.reasons.append(f"{name} is missing.")
        elif name in sums:
            verdict.notes.append("report.html was not handed over.")


def _check_nodes(
    run: RecordedRun, plan: Restatement, keys: Mapping[str, str] | None, verdict: Verdict
) -> None:
    """Compares what nodes have signed with the promise, and says what nobody has signed."""
    statements, listed, privacy = (
        list[tuple[ChargeStatement, str]](),
        list[Any](),
        run.privacy or {},
    )
    if run.folder.nodes.is_symlink():
        verdict.reasons.append("nodes.json is a link: hand over the file.")
    try:
        listed = run.statements
    except (CheckpointError, OSError) as error:
        verdict.reasons.append(_sentence(error))
    for number, signed in enumerate(listed, 1):
        try:
            statements.append(ChargeStatement.verified(signed))
        except (ValueError, BadSignatureError) as error:
            verdict.reasons.append(f"Statement {number} in nodes.json is not valid: {error}.")
    statements.sort(key=lambda pair: pair[0].client)
    vouching: dict[int, bool] = {}  # client → was charged, by statements that count
    masked = plan.entries.get("noise_share", {}).get("masked", False)
    for statement, key in statements:
        node, name = f"The node of client {statement.client}", (keys or {}).get(key)
        charges = statement.charges
        verdict.reasons += [f"{node} {why}." for why in _contradictions(statement, privacy, plan)]
        lacking = []
        if any(charge.epsilon is None for charge in charges):
            lacking.append(f"{node} counts Rényi costs, which state no ε of a run.")
        if masked and charges and statement.aggregation != "masked":
            rule = _short(statement.aggregation)
            lacking.append(f"{node} answers without masks, too: its rule is {rule}.")
        if name is not None:
            verdict.gaps += lacking
            if not lacking:
                vouching[statement.client] = bool(charges)
        verdict.nodes.append(
            {"client": statement.client, "key": key, "name": name, "noise": statement.noise,
             "day": statement.day, "rounds": sum(c.rounds for c in charges),
             "epsilon": max((c.epsilon or 0.0 for c in charges), default=0.0),
             "delta": max((c.delta for c in charges), default=0.0)}
        )  # fmt: skip
    signers = {key for _, key in statements}
    counts = Counter(f"of client {statement.client}" for statement, _ in statements)
    counts.update(f"by the key {key}" for _, key in statements)
    verdict.reasons += [f"Several statements are {one}." for one, n in counts.items() if n > 1]
    if statements and privacy.get("noise") != _DEPLOYED:
        verdict.reasons.append("Nodes have signed, and privacy.json states another noise.")
    if verdict.files:
        verdict.unvouched.append("that this generator is that run's")
    if keys is None:
        verdict.unvouched.append("that the plan was carried out, and that its noise is secret")
        verdict.unvouched += ["whose keys signed"] if statements else []
        return
    if others := plan.clients - len(vouching):
        verdict.unvouched.append(f"what {others} of {plan.clients} clients released")
    verdict.signed, verdict.named = len(vouching), len(keys)
    verdict.gaps += [
        f"No statement is there by {name}: its owner prints one by fedsink ledger statement."
        for key, name in keys.items()
        if key not in signers
    ]
    if "noise_share" in plan.entries:  # a node's ε rests on the noise of the others
        verdict.named = max(len(keys), plan.clients)
        if len(vouching) < plan.clients:
            verdict.gaps.append("The clients share their noise, and not all of them have signed.")
        for members, fewest in {plan.cohort(k) for k in vouching if 0 <= k < plan.clients}:
            charged = sum(vouching.get(k, True) for k in members)
            if 0 < charged < fewest:
                verdict.reasons.append(
                    f"{charged} clients of the cohort of client {members[0]} were charged, and its "
                    f"sums need {fewest} parts of the noise."
                )
    if plan.entries.get("shuffling", {}).get("epsilon") is not None:
        verdict.gaps.append("No node vouches for a shuffler, or for the number of its reports.")


def _contradictions(
    statement: ChargeStatement, privacy: Config, plan: Restatement
) -> Iterator[str]:
    """Yields what contradicts the promise in one statement."""
    if statement.run != privacy.get("run"):
        yield f"signed for the run {_short(statement.run)}, not {_short(privacy.get('run'))}"
    if statement.clients != plan.clients:
        yield f"says that {statement.clients} clients take part, and privacy.json {plan.clients}"
    if not 0 <= statement.client < plan.clients:
        yield f"is none of the run's {plan.clients}"
        return
    if statement.charges and not plan.epsilons:
        yield "was charged for a plan that protects nothing"
        return
    adjacency = plan.entries.get("adjacency_name", plan.entries["adjacency"])
    for charge in statement.charges:
        trusted = charge.plan.get("aggregation_trusted") is True
        expected, most = plan.charged(statement.client, trusted)
        for where, value, found in _differences(expected, charge.plan):
            yield f"was charged for another plan: {where} is {_short(found)}, not {_short(value)}"
        if charge.adjacency != adjacency:
            yield f"was charged under {_short(charge.adjacency)}, not {adjacency}"
        if charge.epsilon is not None and charge.epsilon > most * (1 + 1e-4):
            yield f"was charged ε = {charge.epsilon:.4g}, more than the {most:.4g} that is promised"
        delta, rounds = plan.entries["delta"], plan.entries["rounds"]
        if charge.delta > 2 * delta * (1 + 1e-4):  # 2δ: a plan that may end early
            yield f"was charged δ = {charge.delta:.4g}, more than twice the {delta:.4g} promised"
        if charge.rounds > rounds:
            yield f"answered {charge.rounds:.0f} rounds of a plan of {rounds}"


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:300].rstrip('.')}."
