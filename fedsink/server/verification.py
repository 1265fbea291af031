"""Verifies what a run's folder, or a published generator, says of its privacy, without the data.

`verdict_on` trusts nobody who made the folder: it computes ε again from the plan, compares every
number of privacy.json with it, the files with their sums, and what nodes have signed with both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsink import __version__
from fedsink.errors import BadSignatureError, CheckpointError, ConfigError, FedsinkError
from fedsink.protocol.charge_statement import ChargeStatement
from fedsink.server.folder import SUMMED, SUMS, RunFolder, own_file, read_sums, sha256_of
from fedsink.strategies.restated import Restated, agree, restated

VERIFIED, UNPROTECTED, REFUTED = "verified", "nothing is protected", "not verified"

_SENTENCES = {
    "mechanism", "accountant_library", "sample_secrecy", "noise_meaning", "protected",
    "not_protected", "assumptions", "assumption", "reason", "source",
}  # fmt: skip
_SAID = {
    "mechanism", "method", "fedsink", "plan", "critics", "adjacencies", "training", "shuffling",
    "participation", "paper", "start", "public",
}  # fmt: skip
"""Entries of privacy.json that no plan gives."""

_IN_A_SHARE = {"share", "fixed_point", "values", "aggregation_trusted"}
_DEPLOYED, _REPRODUCIBLE = "node", "reproducible"


@dataclass
class Verdict:
    """The verdict on one run, with its reasons.

    Attributes:
        verdict: `VERIFIED`, `UNPROTECTED` or `REFUTED`.
        reasons: sentences, each of which alone forbids `VERIFIED`.
        notes: sentences on what the verdict rests on.
        promise: ε, δ, unit and adjacency, computed from the plan.
        epsilons: ε by accountant.
        files: SHA-256 of the files that were compared.
        nodes: what nodes have signed, a table for each client.
    """

    verdict: str = VERIFIED
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    promise: dict[str, Any] = field(default_factory=dict)
    epsilons: dict[str, float] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as JSON values, for a registry of deployments."""
        return {"format": "fedsink verdict 1", "fedsink": __version__, **vars(self)}


def verdict_on(path: Path, known: Mapping[str, str] | None = None) -> Verdict:
    """Returns the verdict on a run folder or a published generator.

    Guarantees:
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
    plan = None if stated is None else _check_numbers(stated, verdict)
    _check_files(folder, verdict)
    if stated is not None and plan is not None:
        _check_nodes(folder, stated, plan, known, verdict)
        _note_noise(stated, verdict)
    if verdict.reasons:
        verdict.verdict = REFUTED
    elif stated is None or plan is None or not plan.epsilons or _repeatable(stated):
        verdict.verdict = UNPROTECTED
    return verdict


def read_peers(path: Path) -> dict[str, str]:
    """Reads the table `[keys]` of a TOML file: names of nodes, each with its public key.

    Returns:
        Names by key.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    import tomllib

    from fedsink.protocol.signatures import read_key, shown_key

    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"peers={path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"peers={path} is no TOML file: {error}.") from None
    keys = table.get("keys")
    if set(table) != {"keys"} or not isinstance(keys, dict) or not keys:
        raise ConfigError(f'peers={path} must be a table [keys] with lines NAME = "ed25519:…".')
    names: dict[str, str] = {}
    for name, key in keys.items():
        try:
            shown = shown_key(read_key(str(key)))
        except ConfigError as error:
            raise ConfigError(f"peers={path}, {name}: {error}") from None
        if shown in names:
            raise ConfigError(f"peers={path}: {names[shown]} and {name} have one key.")
        names[shown] = name
    return names


def _table(path: Path, verdict: Verdict) -> dict[str, Any] | None:
    """Returns a file's JSON object; None, with a reason, where it is none."""
    try:
        table = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        table = None
    if not isinstance(table, dict):
        verdict.reasons.append(f"{path.name} is damaged: it is no JSON object.")
        return None
    return table


def _check_numbers(stated: Mapping[str, Any], verdict: Verdict) -> Restated | None:
    """Compares privacy.json with what its plan gives."""
    try:
        plan = restated(stated)
    except (FedsinkError, RecursionError, OverflowError, MemoryError) as error:
        verdict.reasons.append(f"privacy.json cannot be verified: {_sentence(error)}")
        return None
    words = []
    for where, expected, found in _differences(plan.entries, stated):
        if _SENTENCES.intersection(where.split(".")):
            words.append(where)
            continue
        verdict.reasons.append(
            f"privacy.json states {where} = {_short(found)}, and its plan gives {_short(expected)}."
        )
    # Another version may write other words.
    same = stated.get("fedsink") == __version__
    told = verdict.reasons if same else verdict.notes
    if words:
        told.append(
            f"The words of privacy.json under {', '.join(words)} are not fedsink {__version__}'s."
        )
    if more := sorted(set(_unexpected(plan.entries, stated)) - _SAID):
        told.append(
            f"privacy.json has entries that fedsink {__version__} does not write: "
            f"{_short(', '.join(more))}."
        )
    verdict.epsilons = dict(plan.epsilons)
    verdict.promise = {
        name: plan.entries.get(name) for name in ("model", "epsilon", "delta", "unit", "adjacency")
    } | {"method": stated.get("method"), "accountant": plan.entries.get("accountant")}
    return plan


def _unexpected(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yields the keys of stated tables that the expected ones do not have."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key, value in found.items():
            place = f"{where}.{key}".lstrip(".")
            if key in expected:
                yield from _unexpected(expected[key], value, place)
            else:
                yield place
    elif isinstance(expected, list | tuple) and isinstance(found, list):
        for number, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from _unexpected(one, other, f"{where}[{number}]")


def _differences(
    expected: Any, found: Any, where: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yields the places where a stated value is not the expected one."""
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping):
            yield where, expected, found
            return
        for key, value in expected.items():
            yield from _differences(value, found.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(expected, list | tuple):
        if not isinstance(found, list) or len(found) != len(expected):
            yield where, expected, found
            return
        for number, value in enumerate(expected):
            yield from _differences(value, found[number], f"{where}[{number}]")
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
        missing = f"{SUMS} is missing: nothing says which generator is meant."
        missing = missing if isinstance(error, FileNotFoundError) else _sentence(error)
        verdict.reasons.append(missing)
        return
    for name in SUMMED:
        path = folder.path / name
        if path.is_symlink():
            verdict.reasons.append(f"{name} is a link: hand over the file.")
            continue
        if not path.is_file():
            if name in sums and name == "report.html":
                verdict.notes.append("report.html was not handed over.")
            elif name in sums or name.startswith("generator"):
                verdict.reasons.append(f"{name} is missing.")
            continue
        verdict.files[name] = sha256_of(path)
        if name not in sums:
            verdict.reasons.append(f"{name} is not in {SUMS}.")
        elif sums[name] != verdict.files[name]:
            verdict.reasons.append(f"{name} was changed: it has another SHA-256 than the run's.")


def _check_nodes(
    folder: RunFolder,
    stated: Mapping[str, Any],
    plan: Restated,
    known: Mapping[str, str] | None,
    verdict: Verdict,
) -> None:
    """Compares what nodes have signed with the promise."""
    deployed = stated.get("noise") == _DEPLOYED
    if not own_file(folder.nodes):
        if deployed:
            verdict.reasons.append("nodes.json is missing: no node says what it was charged.")
        else:
            verdict.notes.append(
                "One party simulated all clients, so that no node has signed: the numbers follow "
                "from one another, and that the plan was carried out is the sender's word."
            )
        return
    table = _table(folder.nodes, verdict)
    if table is None:
        return
    listed = table.get("nodes")
    statements = _statements(listed if isinstance(listed, list) else [], verdict)
    clients = plan.entries["clients"]
    clients = len(clients) if isinstance(clients, list) else int(clients)
    absent = _absent(stated, plan, clients)
    _check_everybody(absent, statements, clients, verdict)
    for statement, key in statements:
        name = f"The node of client {statement.client}"
        for reason in _charged_wrongly(statement, stated, plan, clients, absent):
            verdict.reasons.append(f"{name} {reason}.")
        if known is not None and key not in known:
            verdict.reasons.append(f"{name} signed with {key}, which is none of the known keys.")
        verdict.nodes.append(
            {
                "client": statement.client,
                "key": key,
                "name": None if known is None else known.get(key),
                "epsilon": max((c.epsilon or 0.0 for c in statement.charges), default=0.0),
                "delta": max((c.delta for c in statement.charges), default=0.0),
                "rounds": sum(c.rounds for c in statement.charges),
            }
        )
    if known is None and statements:
        verdict.notes.append(
            "Nodes signed with keys that nobody vouched for, and a sender could have made them: "
            "ask each owner for the line of fedsink node key, and give them as peers=FILE."
        )


def _statements(listed: Sequence[object], verdict: Verdict) -> list[tuple[ChargeStatement, str]]:
    """Returns the valid statements with the keys that signed them."""
    found = []
    for number, signed in enumerate(listed, 1):
        try:
            found.append(ChargeStatement.verified(signed))
        except (ValueError, BadSignatureError) as error:
            verdict.reasons.append(f"Statement {number} in nodes.json is not valid: {error}.")
    return sorted(found, key=lambda pair: pair[0].client)


def _check_everybody(
    absent: Collection[int],
    statements: Sequence[tuple[ChargeStatement, str]],
    clients: int,
    verdict: Verdict,
) -> None:
    """Refuses missing and doubled statements, and statements on other runs."""
    numbers = Counter(statement.client for statement, _ in statements)
    missing = [k for k in range(clients) if k not in numbers]
    if unsigned := [k for k in missing if k not in absent]:
        verdict.reasons.append(f"No statement is there of {_of_clients(unsigned)}.")
    if excused := [k for k in missing if k in absent]:
        verdict.notes.append(
            f"No statement is there of {_of_clients(excused)}, which answered nothing, as "
            "privacy.json says."
        )
    if doubled := [k for k, count in numbers.items() if count > 1]:
        verdict.reasons.append(f"Several statements are there of {_of_clients(doubled)}.")
    for key, count in Counter(key for _, key in statements).items():
        if count > 1:
            verdict.reasons.append(f"{count} statements are signed with one key, {key}.")
    if len(runs := {statement.run for statement, _ in statements}) > 1:
        verdict.reasons.append(f"The statements are on {len(runs)} different runs.")
    verdict.promise["run"] = next(iter(runs)) if len(runs) == 1 else None


def _charged_wrongly(
    statement: ChargeStatement,
    stated: Mapping[str, Any],
    plan: Restated,
    clients: int,
    absent: Collection[int],
) -> Iterator[str]:
    """Yields what contradicts the promise in one statement."""
    if not 0 <= statement.client < clients:
        yield f"is none of the run's {clients}"
    if statement.clients != clients:
        yield f"says that {statement.clients} clients take part, and privacy.json {clients}"
    if not statement.charges and statement.client not in absent:
        yield "charged nothing for this run, and privacy.json says that it answered"
    most = _most(plan)
    for charge in statement.charges:
        own = {key: value for key, value in charge.plan.items() if key not in _IN_A_SHARE}
        for where, expected, found in _differences(stated["plan"], own):
            yield f"was charged for another plan: {where} is {_short(found)}, not {expected!r}"
        adjacency = plan.entries.get("adjacency_name", plan.entries["adjacency"])
        if charge.adjacency != adjacency:
            yield f"was charged under {charge.adjacency[:40]}, not {adjacency}"
        if charge.epsilon is not None and charge.epsilon > most * (1 + 1e-4):
            yield f"was charged ε = {charge.epsilon:.4g}, more than the {most:.4g} that is promised"
        delta, rounds = plan.entries["delta"], plan.entries["rounds"]
        if delta is None:
            yield "was charged for a plan that protects nothing"
        elif charge.delta > 2 * delta * (1 + 1e-4):  # 2δ: a plan that may end early
            yield f"was charged δ = {charge.delta:.4g}, more than twice the {delta:.4g} promised"
        if charge.rounds > rounds:
            yield f"answered {charge.rounds:.0f} rounds of a plan of {rounds}"


def _most(plan: Restated) -> float:
    """Returns the largest ε that a node may have been charged: nodes account by pld."""
    entries = plan.entries
    bounds = [entries["epsilon"] or 0.0, plan.epsilons.get("pld", 0.0)]
    # A node that vouches for no aggregation is charged for its reply seen alone.
    return max(*bounds, entries.get("epsilon_without_aggregator", 0.0))


def _absent(stated: Mapping[str, Any], plan: Restated, clients: int) -> frozenset[int]:
    """Returns the clients that answered no message in which they were asked, by privacy.json."""
    taken = stated.get("participation")
    if not isinstance(taken, dict) or not isinstance(taken.get("missed"), list):
        return frozenset()
    every = taken.get("messages")
    return frozenset(
        entry["client"]
        for entry in taken["missed"]
        if isinstance(entry, dict)
        and isinstance(entry.get("client"), int)
        and isinstance(entry.get("messages"), int)
        and isinstance(every, int)
        and 0 <= entry["client"] < clients
        and entry["messages"] >= min(every, plan.asked(entry["client"]))
    )


def _repeatable(stated: Mapping[str, Any]) -> bool:
    return stated.get("noise") == _REPRODUCIBLE


def _note_noise(stated: Mapping[str, Any], verdict: Verdict) -> None:
    if _repeatable(stated):
        verdict.notes.append(
            "The noise is computed from a published seed, and whoever knows it can subtract it: ε "
            "describes the mechanism, and no record of this run is protected by it."
        )
    if verdict.files:
        verdict.notes.append(
            "Only SHA256SUMS, which the sender wrote, says that this generator is the run's."
        )
    said = sorted(_SAID.intersection(stated) - {"plan", "fedsink"})
    verdict.notes.append(f"Entries of privacy.json that no plan gives: {', '.join(said)}.")


def _of_clients(numbers: Sequence[int]) -> str:
    some = ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
    return f"client{'' if len(numbers) == 1 else 's'} {some}"


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:300].rstrip('.')}."
