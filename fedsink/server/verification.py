"""Verifies what a run's folder, or a published generator, says of its privacy, without the data.

`verdict_on` trusts nobody who made the folder: it computes ε again from the plan, and compares
every entry of privacy.json, the files' sums, and what nodes have signed.
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
from fedsink.protocol.charge_statement import ChargeStatement
from fedsink.server.folder import SUMMED, SUMS, RunFolder, own_file, read_sums, sha256_of
from fedsink.server.recorded import RecordedRun, cautions
from fedsink.strategies.restated import Restated, agree, restated
from fedsink.values import read_json

SIGNED, CONSISTENT, UNPROTECTED, REFUSED = "signed", "consistent", "unprotected", "refused"

_SENTENCES = {
    "mechanism", "accountant_library", "sample_secrecy", "noise_meaning", "protected",
    "not_protected", "assumptions", "assumption", "reason", "source",
}  # fmt: skip
_PLAIN = {"plan", "method", "fedsink", "training", "paper", "run"}
"""Entries of privacy.json that no plan gives, and that promise nothing."""
_VOUCHED = {
    "participation": "who missed messages",
    "start": "that the weights before round 1 saw public data alone",
    "public": "that the data are public",
}
"""Entries of privacy.json that no plan gives, and what they say."""
_DEPLOYED, _REPRODUCIBLE = "node", "reproducible"


@dataclass
class Verdict:
    """The verdict on one run, with its reasons.

    Attributes:
        verdict: `SIGNED`, `CONSISTENT`, `UNPROTECTED` or `REFUSED`.
        reasons: sentences, each of which alone refuses the promise.
        gaps: what is missing for `SIGNED`, sentences; only where keys are given.
        unvouched: what nobody but the sender vouches for, in parts of a sentence.
        notes: warnings, sentences.
        signed, named: how many of the nodes that should have signed, and how many should.
        promise: ε, δ, unit and adjacency, computed from the plan.
        epsilons: ε by accountant.
        left_out: why, by accountants that have no answer.
        files: SHA-256 of the files that were compared.
        nodes: what nodes have signed, a table for each.
    """

    verdict: str = REFUSED
    reasons: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    unvouched: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    signed: int = 0
    named: int = 0
    promise: dict[str, Any] = field(default_factory=dict)
    epsilons: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as JSON values."""
        return {"format": "fedsink verdict 2", "fedsink": __version__, **vars(self)}


def verdict_on(path: Path, known: Mapping[str, str] | None = None) -> Verdict:
    """Returns the verdict on a run folder or a published generator.

    Guarantees:
        - `SIGNED` needs a valid statement on this run and plan by every known key, and a promise
          of no less than the largest of them.
        - No entry that a sender can write takes the place of a statement.
        - Nothing outside the folder is read, and nothing is written.
        - Whatever the folder's files hold gives a verdict.

    Args:
        path: the folder, with privacy.json.
        known: names of nodes by their public keys (``ed25519:…``), from elsewhere than the folder;
            None: nobody vouches for keys.

    Raises:
        ConfigError: the folder has no privacy.json.
    """
    folder, verdict = RunFolder(path), Verdict()
    if not own_file(folder.privacy):
        raise ConfigError(
            f"{path} has no {folder.privacy.name}: name the folder of a run, or one with its "
            "generator and what lay beside it."
        )
    stated = _table(folder.privacy, verdict)
    plan = None if stated is None else _check_numbers(folder, stated, verdict)
    _check_files(folder, verdict)
    if stated is None or plan is None:
        return verdict
    _check_nodes(folder, stated, plan, known, verdict)
    if not verdict.reasons:
        verdict.verdict = CONSISTENT if known is None or verdict.gaps else SIGNED
        if not plan.epsilons or stated.get("noise") == _REPRODUCIBLE:
            verdict.verdict = UNPROTECTED
    return verdict


def _table(path: Path, verdict: Verdict) -> dict[str, Any] | None:
    """Returns a file's JSON object; None, with a reason, where it is none."""
    try:
        if isinstance(table := read_json(path.read_bytes()), dict):
            return table
        raise ValueError("it is no JSON object")
    except (ValueError, OSError) as error:
        verdict.reasons.append(f"{path.name} is damaged: {str(error)[:80]}.")
        return None


def _check_numbers(
    folder: RunFolder, stated: Mapping[str, Any], verdict: Verdict
) -> Restated | None:
    """Compares privacy.json with what its plan gives."""
    try:
        plan = restated(stated)
    except (FedsinkError, RecursionError, OverflowError, MemoryError) as error:
        verdict.reasons.append(f"privacy.json cannot be verified: {_sentence(error)}")
        return None
    same = stated.get("fedsink") == __version__
    for where, expected, found in _differences(plan.entries, stated):
        if not same and _SENTENCES.intersection(where.split(".")):
            verdict.unvouched = ["the words of privacy.json, which are of another version"]
        elif where not in _PLAIN | _VOUCHED.keys():
            verdict.reasons.append(
                f"privacy.json states {where} = {_short(found)}, and its plan gives "
                f"{_short(expected)}."
            )
    if verdict.reasons and not same:
        verdict.notes.append(f"It says that fedsink {_short(stated.get('fedsink'))} wrote it.")
    verdict.unvouched += [what for name, what in _VOUCHED.items() if name in stated]
    verdict.epsilons, verdict.left_out = dict(plan.epsilons), dict(plan.left_out)
    names = ("model", "epsilon", "delta", "unit", "adjacency", "accountant")
    verdict.promise = {name: plan.entries.get(name) for name in names} | {"run": stated.get("run")}
    config: Mapping[str, Any] = {"data": {"nominal_records": plan.records}}
    with suppress(CheckpointError, ConfigError):  # only cautions rest on it
        config = RecordedRun(folder).config if own_file(folder.config) else config
    verdict.notes += cautions(plan.entries, config)
    return plan


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
        elif not path.is_file():
            if name == "report.html":
                verdict.notes += ["report.html was not handed over."] if name in sums else []
            else:
                verdict.reasons.append(f"{name} is missing.")
        else:
            verdict.files[name] = sha256_of(path)
            if name not in sums:
                verdict.reasons.append(f"{name} is not in {SUMS}.")
            elif sums[name] != verdict.files[name]:
                verdict.reasons.append(f"{name} was changed: it has another SHA-256 than there.")


def _check_nodes(
    folder: RunFolder,
    stated: Mapping[str, Any],
    plan: Restated,
    known: Mapping[str, str] | None,
    verdict: Verdict,
) -> None:
    """Compares what nodes have signed with the promise, and says what nobody has signed."""
    statements = _statements(folder, verdict)
    vouching: dict[int, bool] = {}  # client → was charged, by statements that count
    for statement, key in statements:
        name = (known or {}).get(key)
        client = f"The node of client {statement.client}"
        verdict.reasons += [f"{client} {why}." for why in _contradictions(statement, stated, plan)]
        lacking = [f"{client} {why}." for why in _lacking(statement, plan)]
        if name is not None:
            verdict.gaps += lacking
            if not lacking:
                vouching[statement.client] = bool(statement.charges)
        charges = statement.charges
        verdict.nodes.append(
            {"client": statement.client, "key": key, "name": name, "noise": statement.noise,
             "day": statement.day, "rounds": sum(c.rounds for c in charges),
             "epsilon": max((c.epsilon or 0.0 for c in charges), default=0.0),
             "delta": max((c.delta for c in charges), default=0.0)}
        )  # fmt: skip
    for what, counts in (
        ("of client", Counter(statement.client for statement, _ in statements)),
        ("by the key", Counter(key for _, key in statements)),
    ):
        several = (f"{what} {value}" for value, count in counts.items() if count > 1)
        verdict.reasons += [f"Several statements are {one}." for one in several]
    if statements and stated.get("noise") != _DEPLOYED:
        verdict.reasons.append("Nodes have signed, and privacy.json states another noise.")
    if known is not None:
        _count(plan, known, {key for _, key in statements}, vouching, verdict)
    others = plan.clients - len(vouching)
    verdict.unvouched += [
        what
        for what, said in (
            ("that this generator is that run's", verdict.files),
            ("that the plan was carried out, and that its noise is secret", known is None),
            ("whose keys signed", known is None and statements),
            (f"what {others} of {plan.clients} clients released", known is not None and others),
        )
        if said
    ]
    if stated["noise"] == _REPRODUCIBLE:
        verdict.notes.append(
            "The noise is computed from a published seed, and whoever knows it can subtract it: ε "
            "describes the mechanism, and no record of this run is protected by it."
        )


def _statements(folder: RunFolder, verdict: Verdict) -> list[tuple[ChargeStatement, str]]:
    """Returns the valid statements with the keys that signed them."""
    if folder.nodes.is_symlink():
        verdict.reasons.append("nodes.json is a link: hand over the file.")
    if not own_file(folder.nodes) or (table := _table(folder.nodes, verdict)) is None:
        return []
    found = []
    if not isinstance(listed := table.get("nodes"), list):
        verdict.reasons.append("nodes.json is damaged: it has no list of nodes.")
        listed = []
    for number, signed in enumerate(listed, 1):
        try:
            found.append(ChargeStatement.verified(signed))
        except (ValueError, BadSignatureError) as error:
            verdict.reasons.append(f"Statement {number} in nodes.json is not valid: {error}.")
    return sorted(found, key=lambda pair: pair[0].client)


def _contradictions(
    statement: ChargeStatement, stated: Mapping[str, Any], plan: Restated
) -> Iterator[str]:
    """Yields what contradicts the promise in one statement."""
    if statement.run != stated.get("run"):
        yield f"signed for the run {_short(statement.run)}, not {_short(stated.get('run'))}"
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


def _lacking(statement: ChargeStatement, plan: Restated) -> Iterator[str]:
    """Yields what one statement leaves open."""
    if any(charge.epsilon is None for charge in statement.charges):
        yield "counts Rényi costs, which state no ε of a run"
    masked = plan.entries.get("noise_share", {}).get("masked", False)
    if masked and statement.charges and statement.aggregation != "masked":
        yield f"answers without masks, too: its rule is {_short(statement.aggregation)}"


def _count(
    plan: Restated,
    known: Mapping[str, str],
    signers: set[str],
    vouching: Mapping[int, bool],
    verdict: Verdict,
) -> None:
    """Counts who has signed, and names the gaps."""
    verdict.signed, verdict.named = len(vouching), len(known)
    verdict.gaps += [
        f"No statement is there by {name}: its owner prints one by fedsink ledger statement."
        for key, name in known.items()
        if key not in signers
    ]
    if "noise_share" in plan.entries:  # a node's ε rests on the noise of the others
        verdict.named = max(len(known), plan.clients)
        if len(vouching) < plan.clients:
            verdict.gaps.append("The clients share their noise, and not all of them have signed.")
        for members, fewest in {plan.cohort(client) for client in vouching}:
            charged = sum(vouching.get(k, True) for k in members)
            if 0 < charged < fewest:
                verdict.reasons.append(
                    f"{charged} clients of the cohort of client {members[0]} were charged, and its "
                    f"sums need {fewest} shares of the noise."
                )
    if plan.entries.get("shuffling", {}).get("epsilon") is not None:
        verdict.gaps.append("No node vouches for a shuffler, or for the number of its reports.")


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:300].rstrip('.')}."
