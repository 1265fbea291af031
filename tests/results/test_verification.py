"""A verdict on folders that honest and dishonest senders hand over."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration, noise_entries
from fedsink.errors import ConfigError
from fedsink.privacy import ACCOUNTANTS, PrivacyPlan
from fedsink.privacy.accounting.amplification import shuffling_statement
from fedsink.protocol.signing import ChargeStatement, NodeIdentityKey, StatedCharge
from fedsink.results.verification import (
    CONSISTENT,
    REFUSED,
    SIGNED,
    UNPROTECTED,
    Verdict,
    verdict_on,
)
from fedsink.server.folder import note_sums, sha256_of
from fedsink.strategies.base.central_statement import central_statement
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from fedsink.strategies.methods import settings_of

CENTRAL = ("clients=2", "rounds=20", "sigma=1.5")
KEYS = [NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes([k] * 32))) for k in range(6)]
NAMES = {key.shown: f"hospital {k}" for k, key in enumerate(KEYS)}

HONEST = {
    "class": CENTRAL,
    "joint": ("conditional=false", *CENTRAL),
    "batch": ("clip=batch", *CENTRAL),
    "capacity": ("capacity=auto", *CENTRAL),
    "client": ("adjacency=client", "clip=batch", *CENTRAL),
    "replace-one": ("adjacency=replace-one", *CENTRAL),
    "rdp": ("accountant=rdp", *CENTRAL),
    "prv": ("accountant=prv", *CENTRAL),
    "shared": ("clients=20", "rounds=20", "sigma=2", "noise.share=secure_aggregation"),
    "masked": (
        "clients=5",
        "rounds=3",
        "sigma=2",
        "strategy.schedule=joint",
        "noise.share=secure_aggregation",
        "noise.tolerate_dropouts=1",
        "noise.masked=true",
    ),
    "parameters": ("strategy=parameter_gradient", *CENTRAL),
    "gs_wgan": ("strategy=gs_wgan", *CENTRAL),
    "gs_wgan at a rate": ("strategy=gs_wgan", "rate=0.5", *CENTRAL),
    "gs_wgan in turns": ("strategy=gs_wgan", "strategy.turns=2", *CENTRAL),
    "gs_wgan published": ("experiment=gs_wgan_published_digits",),
    "ldp": ("mode=ldp", "clients=2"),
    "ldp without labels": ("mode=ldp", "clients=2", "conditional=false"),
    "ldp gaussian": ("mode=ldp", "clients=2", "mechanism=gaussian", "delta=1e-5"),
    "shuffled": ("mode=ldp", "clients=2", "shuffler=trusted", "eps=2"),
    "shuffled in vain": ("mode=ldp", "clients=2", "shuffler=trusted"),
}


@cache
def _promised(overrides: tuple[str, ...], noise: str) -> str:
    config = Configuration.read(compose_config(overrides))
    return json.dumps(settings_of(config, "run").privacy_entries(noise))


def promised(*overrides: str, noise: str = "secret") -> dict[str, Any]:
    """privacy.json of a run; of nodes with its name."""
    stated: dict[str, Any] = json.loads(_promised(overrides, noise))
    return stated | ({"run": "run"} if noise == "node" else {})


def named(count: int) -> dict[str, str]:
    """What an officer knows of the nodes' keys."""
    return {KEYS[k].shown: f"hospital {k}" for k in range(count)}


def signed(stated: dict[str, Any], client: int, key: int | None = None, **other: Any) -> Any:
    """The statement of an honest node; `other` replaces what it says."""
    of_charge = {*StatedCharge.__annotations__, "spread", "trusted"}
    own = {name: other.pop(name) for name in list(other) if name in of_charge}
    shared = stated.get("noise_share", {})
    spread = {
        "share": shared["cohorts"][0]["sharers"],
        "fixed_point": {name: shared[name] for name in ("granularity", "bits", "radius")},
        "values": shared["values"],
        "aggregation_trusted": own.pop("trusted", True),
    } if shared else {}  # fmt: skip
    charge = {
        "adjacency": stated.get("adjacency_name", stated["adjacency"]),
        "plan": {**stated["plan"], **spread, **own.pop("spread", {})},
        "epsilon": stated["epsilon"],
        "delta": stated["delta"],
        "rounds": stated["rounds"],
    }
    clients = stated["clients"]
    said = {
        "run": "run",
        "client": client,
        "clients": clients if isinstance(clients, int) else len(clients),
        "noise": "secret",
        "aggregation": "masked" if shared.get("masked") else "trusted",
        "day": "2026-11-27",
    } | other
    charges = said.pop("charges", (StatedCharge(**charge | own),))
    return ChargeStatement(**said, charges=charges).signed(KEYS[client if key is None else key])


@pytest.fixture
def handed(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder that a sender hands over."""

    def make(stated: dict[str, Any], nodes: list[Any] | None = None) -> Path:
        (tmp_path / "privacy.json").write_text(json.dumps(stated))
        for name in ("generator.safetensors", "generator.json", "report.html"):
            (tmp_path / name).write_text(name)
        if nodes is not None:
            (tmp_path / "nodes.json").write_text(json.dumps({"nodes": nodes}))
        note_sums(tmp_path)
        return tmp_path

    return make


def refused(verdict: Verdict, *words: str) -> bool:
    """True if there is one reason, with these words."""
    reasons = verdict.reasons
    return (
        verdict.verdict == REFUSED
        and len(reasons) == 1
        and all(word in reasons[0] for word in words)
    )


@pytest.mark.medium
@pytest.mark.quick("class", "gs_wgan", "ldp")
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_run_of_each_method_is_verified(handed, name):
    stated = promised(*HONEST[name])
    verdict = verdict_on(handed(stated))
    assert verdict.reasons == []
    assert verdict.verdict == CONSISTENT
    assert verdict.promise["epsilon"] == pytest.approx(stated["epsilon"])
    own = verdict.epsilons.get(stated["accountant"], verdict.epsilons.get("summation"))
    assert own == pytest.approx(stated["epsilon"], rel=1e-4)
    json.dumps(vars(verdict), allow_nan=False)


@pytest.mark.parametrize("overrides", [("eps=inf",), ("eps=inf", "strategy=gs_wgan")])
def test_a_run_without_noise_protects_nothing(handed, overrides):
    stated = promised("clients=2", "rounds=20", *overrides)
    verdict = verdict_on(handed(stated))
    assert (verdict.verdict, verdict.reasons) == (UNPROTECTED, [])
    assert refused(verdict_on(handed({**stated, "epsilon": 3.0})), "epsilon = 3.0", "nothing")
    del stated["noise"]
    assert refused(verdict_on(handed(stated)), "noise = nothing, and its plan gives none")


@pytest.mark.medium
def test_noise_of_a_published_seed_protects_nothing(handed):
    verdict = verdict_on(handed(promised(*CENTRAL, noise="reproducible")))
    assert (verdict.verdict, verdict.reasons) == (UNPROTECTED, [])
    assert "published seed" in verdict.notes[0]


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_each_number_that_is_changed_is_a_reason(handed, mode):
    stated = promised(*(CENTRAL if mode == "central" else HONEST["ldp"]))
    numbers = {key for key, value in stated.items() if isinstance(value, int | float)}
    assert {"epsilon", "delta", "sigma", "sensitivity", "rounds"} <= numbers
    for name in numbers:
        for factor in (0.99, 1.01):
            changed = {**stated, name: stated[name] * factor or factor}
            word = "names" if name == "clients" else f"states {name} ="
            assert refused(verdict_on(handed(changed)), word), name


@pytest.mark.parametrize(
    "entry",
    [
        {"adjacency_name": "client"}, {"unit": "client"}, {"schedule": "joint"},
        {"clip": "batch"}, {"capacity": 7}, {"protected": "Everybody and everything."},
        {"clients": [{"client": 0, "epsilon": 0.1, "rate": 0.2, "sigma": 1.5,
                      "uses_per_record": 2}]},
    ],
    ids=lambda entry: next(iter(entry)),
)  # fmt: skip
def test_a_changed_word_is_a_reason(handed, entry):
    assert verdict_on(handed({**promised(*CENTRAL), **entry})).verdict == REFUSED


@pytest.mark.parametrize("entry", ["epsilon", "local_epsilon", "reports", "delta"])
def test_a_changed_shuffler_is_a_reason(handed, entry):
    stated = promised(*HONEST["shuffled"])
    stated["shuffling"][entry] *= 2
    assert any("shuffling." in reason for reason in verdict_on(handed(stated)).reasons)
    stated["shuffling"][entry] = "many"
    assert verdict_on(handed(stated)).verdict == REFUSED


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["central", "ldp", "shared"])
def test_an_entry_that_no_plan_gives_is_a_reason(handed, mode):
    stated = promised(*(CENTRAL if mode == "central" else HONEST[mode]))
    certified = verdict_on(handed({**stated, "epsilon_certified": 0.1}))
    assert refused(certified, "epsilon_certified = 0.1, and its plan gives nothing")
    inner = copy.deepcopy(stated)
    if mode == "ldp":
        inner["map"]["epsilon"] = 0.1
        place = "map.epsilon"
    else:
        inner["clients"][-1]["epsilon_certified"] = 0.1
        place = f"clients[{len(inner['clients']) - 1}].epsilon_certified"
    assert refused(verdict_on(handed(inner)), place)
    other = verdict_on(handed({**inner, "fedsink": "99"}))
    assert refused(other, place)
    assert "says that fedsink 99 wrote it" in other.notes[0]


MANY = ("clients=1000000", "rounds=20", "sigma=1.5")


@pytest.mark.parametrize("overrides", [MANY, ("eps=inf", *MANY[:2])], ids=["noise", "none"])
def test_a_million_clients_are_verified_as_one_range_or_as_several(handed, overrides):
    stated = promised(*overrides)
    (entry,) = stated["clients"]
    assert len(json.dumps(stated, indent=2)) < 20_000
    verdict = CONSISTENT if stated["epsilon"] else UNPROTECTED
    ranges = ["0-999999"], [0, "1-999998", 999999], ["0-4", "5-999999"]
    for names in ranges:
        stated["clients"] = [{**entry, "client": name} for name in names]
        found = verdict_on(handed(stated))
        assert (found.verdict, found.reasons) == (verdict, [])
    stated["clients"][1]["rate"] = 0.9
    assert refused(verdict_on(handed(stated)), "clients[1].rate = 0.9")


def test_an_entry_for_each_of_many_clients_is_read_as_before(handed):
    stated = promised("clients=1000", *MANY[1:])
    (entry,) = stated["clients"]
    stated["clients"] = [{**entry, "client": client} for client in range(1000)]
    assert verdict_on(handed(stated)).verdict == CONSISTENT
    stated["clients"][700]["sigma"] *= 2
    assert refused(verdict_on(handed(stated)), "clients[700].sigma")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["0-999999999999"], "'0-999999999999' is not its next one"),
        ([f"0-{10**15 - 1}"], "is not its next one"),
        (["0-10000000"], "is not its next one"),
        (["0-50", "50-99"], "'50-99' is not its next one"),
        (["50-99", "0-49"], "'0-49' is not its next one"),
        (["99-0"], "'99-0' is not its next one"),
        ([0, 0], "'0' is not its next one"),
        ([1, 0], "'0' is not its next one"),
        ([-1, 0], "'-1' is not its next one"),
        ([0.0, 1.0], "'0.0' is not its next one"),
        ([None], "'None' is not its next one"),
        ([[0, 1]], "'[0, 1]' is not its next one"),
        (["1-99"], "it leaves out clients"),
        (["0-49", "51-99"], "it leaves out clients"),
        ([1], "it leaves out clients"),
        ([0, 2], "it leaves out clients"),
        ([], "it names '0' clients"),
    ],
    ids=str,
)
def test_hostile_ranges_are_a_reason(handed, names, words):
    stated = promised(*CENTRAL)
    entry = stated["clients"][0]
    stated["clients"] = [{**entry, "client": name} for name in names]
    assert refused(verdict_on(handed(stated)), "privacy.json cannot be verified", words)


@pytest.mark.parametrize("count", [10**15, 10**7 + 1, 0, -1, 2.0, True, "2", [0], math.nan, None])
def test_a_hostile_number_of_clients_is_a_reason(handed, count):
    stated = promised(*HONEST["ldp"]) | {"clients": count}
    assert refused(verdict_on(handed(stated)), "privacy.json cannot be verified", "it names")


def test_words_of_another_version_are_the_sender_s(handed):
    stated = {**promised(*CENTRAL), "protected": "Everybody and everything."}
    assert refused(verdict_on(handed(stated)), "protected = Everybody and everything")
    verdict = verdict_on(handed({**stated, "fedsink": "99"}))
    assert (verdict.verdict, verdict.reasons) == (CONSISTENT, [])
    assert "the words of privacy.json, which are of another version" in verdict.unvouched


@pytest.mark.medium
def test_what_only_the_sender_says_is_one_sentence(handed):
    of_run = "that this generator is that run's"
    carried = "that the plan was carried out, and that its noise is secret"
    verdict = verdict_on(handed(promised(*HONEST["gs_wgan"])))
    assert (verdict.unvouched, verdict.notes) == ([of_run, carried], [])
    more = {"start": {"data_sha256": "0"}, "participation": {}}
    said = verdict_on(handed(promised(*CENTRAL) | more)).unvouched
    assert said[:2] == [
        "who missed messages",
        "that the first start saw public data alone",
    ]
    stated = promised(*CENTRAL, noise="node")
    folder = handed(stated, [signed(stated, 0), signed(stated, 1)])
    assert verdict_on(folder).unvouched == [of_run, carried, "whose keys signed"]
    assert verdict_on(folder, named(2)).unvouched == [of_run]
    assert verdict_on(folder, named(1)).unvouched == [of_run, "what 1 of 2 clients released"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*CENTRAL, "delta=0.01", "capacity=auto"), "δ = 0.01 is no less"),
        (("clients=2", "rounds=1", "sigma=100", "delta=0.01"), "ε = 0 does not say"),
    ],
)  # fmt: skip
def test_a_delta_that_pays_alone_is_said(handed, overrides, words):
    verdict = verdict_on(handed(promised(*overrides)))
    assert verdict.verdict == CONSISTENT
    assert [note for note in verdict.notes if words in note]


@pytest.mark.medium
def test_a_delta_of_a_run_that_samples_no_batch_of_a_size_is_said(handed):
    """Its plan names no number of records, and config.yaml does; a damaged one says nothing."""
    folder = handed(promised(*CENTRAL, "delta=0.01"))
    notes = []
    for text in (
        "data:\n  nominal_records: 1437\n",
        "data: [1437]\n",
        "data: {nominal_records: x",
        "",
    ):
        (folder / "config.yaml").write_text(text)
        verdict = verdict_on(folder)
        assert verdict.verdict == CONSISTENT
        notes.append([note for note in verdict.notes if "one record in 1,437" in note])
    assert [len(said) for said in notes] == [1, 0, 0, 0]


@pytest.mark.medium
def test_an_accountant_that_has_no_answer_is_left_out(handed):
    """ε is some thousands, for which the grid of prv has no memory; it does not start."""
    stated = promised("clients=2", "rounds=20", "sigma=0.012")
    verdict = verdict_on(handed(stated))
    assert stated["epsilon"] > 5000
    assert (verdict.verdict, verdict.reasons) == (CONSISTENT, [])
    assert set(verdict.left_out) == {"prv"}
    assert verdict.left_out["prv"]
    assert set(verdict.epsilons) == {"pld", "rdp", "rdp-opacus", "rdp-classic"}
    stated |= {"accountant": "prv", "accountant_library": ACCOUNTANTS["prv"].library}
    assert refused(verdict_on(handed(stated)), "cannot be verified")


@pytest.mark.parametrize("name", ["nodes.json", "report.html", "generator.safetensors"])
def test_a_link_is_not_followed(handed, tmp_path_factory, name):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    elsewhere.write_text("secret")
    stated = promised(*CENTRAL, noise="node")
    folder = handed(stated, [signed(stated, 0), signed(stated, 1)])
    (folder / name).unlink()
    (folder / name).symlink_to(elsewhere)
    verdict = verdict_on(folder)
    assert f"{name} is a link: hand over the file." in verdict.reasons
    assert sha256_of(elsewhere) not in json.dumps(vars(verdict))


def test_what_is_no_file_of_sums_ends_at_once(handed):
    sums = handed(promised(*CENTRAL)) / "SHA256SUMS"
    sums.unlink()
    os.mkfifo(sums)
    assert refused(verdict_on(sums.parent), "is no file of sums")
    sums.unlink()
    sums.symlink_to("/dev/zero")
    assert refused(verdict_on(sums.parent), "is no file of sums")
    sums.unlink()
    sums.write_text("\n" * (1 << 17))
    assert refused(verdict_on(sums.parent), "is no file of sums")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("mode", "entry", "value"),
    [
        ("central", "noise_multiplier", 30.0),
        ("central", "rounds", 10),
        ("central", "rate", 0.01),
        ("central", "delta", 1e-3),
        ("central", "adjacency", "replace-one"),
        ("central", "mode", "ldp"),
        ("ldp", "epsilon", 1.0),
        ("ldp", "label_epsilon", 1.0),
        ("ldp", "mechanism", "gaussian"),
    ],
)
def test_a_changed_plan_is_a_reason(handed, mode, entry, value):
    stated = promised(*(CENTRAL if mode == "central" else HONEST["ldp"]))
    stated["plan"][entry] = value
    assert verdict_on(handed(stated)).verdict == REFUSED


@pytest.mark.parametrize("name", ["generator.safetensors", "generator.json", "report.html"])
def test_a_changed_file_is_a_reason(handed, name):
    folder = handed(promised(*CENTRAL))
    (folder / name).write_text("another")
    assert refused(verdict_on(folder), f"{name} was changed")
    (folder / name).unlink()
    verdict = verdict_on(folder)
    assert (verdict.verdict == CONSISTENT) == (name == "report.html")


def test_without_sums_or_promise_nothing_is_verified(handed):
    folder = handed(promised(*CENTRAL))
    (folder / "SHA256SUMS").unlink()
    assert refused(verdict_on(folder), "SHA256SUMS is missing")
    (folder / "SHA256SUMS").write_text("rubbish")
    assert refused(verdict_on(folder), "Line 1 of")
    (folder / "privacy.json").unlink()
    with pytest.raises(ConfigError, match=r"has no privacy\.json"):
        verdict_on(folder)


KINDS = {"central": CENTRAL, "ldp": HONEST["ldp"], "gs_wgan": HONEST["gs_wgan"]}
SHARED = (
    "clients=4", "rounds=4", "sigma=2", "strategy.schedule=joint",
    "noise.share=secure_aggregation", "noise.tolerate_dropouts=1",
)  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_what_all_named_nodes_signed_is_signed(handed, kind):
    stated = promised(*KINDS[kind], noise="node")
    count = stated["clients"] if kind == "ldp" else len(stated["clients"])
    folder = handed(stated, [signed(stated, k) for k in reversed(range(count))])
    verdict = verdict_on(folder, named(count))
    assert (verdict.verdict, verdict.reasons, verdict.gaps) == (SIGNED, [], [])
    assert (verdict.signed, verdict.named) == (count, count)
    assert [node["name"] for node in verdict.nodes] == [f"hospital {k}" for k in range(count)]
    assert verdict.promise["run"] == "run"
    assert verdict_on(folder).verdict == CONSISTENT


def test_a_node_that_was_away_signs_later(handed):
    """Until then it is a gap, whatever privacy.json says of who took part; SHA256SUMS stays."""
    stated = promised(*CENTRAL, noise="node")
    for missed in (0, 1, 2, 800, -1):
        taken = {"messages": missed, "missed": [{"client": 1, "messages": missed}]}
        folder = handed({**stated, "participation": taken}, [signed(stated, 0)])
        verdict = verdict_on(folder, named(2))
        assert (verdict.verdict, verdict.signed, verdict.named) == (CONSISTENT, 1, 2)
        assert "hospital 1: its owner prints one by fedsink ledger statement" in verdict.gaps[0]
        assert verdict_on(folder).verdict == CONSISTENT
    table = json.loads((folder / "nodes.json").read_text())
    for entry in (signed(stated, 1), signed(stated, 1, charges=())):
        (folder / "nodes.json").write_text(json.dumps({"nodes": [*table["nodes"], entry]}))
        assert verdict_on(folder, named(2)).verdict == SIGNED


@pytest.mark.medium
@pytest.mark.parametrize("masked", [False, True])
def test_shared_noise_needs_every_client_and_enough_shares(handed, masked):
    stated = promised(*SHARED, *(("noise.masked=true",) if masked else ()), noise="node")
    nodes = [signed(stated, k) for k in range(4)]
    assert verdict_on(handed(stated, nodes), named(4)).verdict == SIGNED
    partly = verdict_on(handed(stated, nodes), named(3))
    assert (partly.verdict, partly.signed, partly.named) == (CONSISTENT, 3, 4)
    nodes[0] = signed(stated, 0, charges=())
    assert verdict_on(handed(stated, nodes), named(4)).verdict == SIGNED  # one may be missing
    nodes[1] = signed(stated, 1, charges=())
    assert "2 clients of the cohort" in verdict_on(handed(stated, nodes), named(4)).reasons[0]
    for stranger in (-1, 4, 10**9):
        folder = handed(stated, [*nodes[2:], signed(stated, stranger, key=0)])
        assert verdict_on(folder, named(4)).verdict == REFUSED
    trusting = [signed(stated, k, aggregation="trusted") for k in range(4)]
    verdict = verdict_on(handed(stated, trusting), named(4))
    assert verdict.verdict == (CONSISTENT if masked else SIGNED)
    assert verdict.signed == (0 if masked else 4)


@pytest.mark.medium
def test_a_node_that_vouches_for_no_aggregation_is_charged_for_its_reply_alone(handed):
    stated = promised(*SHARED, noise="node")
    alone = stated["epsilon_without_aggregator"]
    for factor, verdict in ((1.0, SIGNED), (1.1, REFUSED)):
        nodes = [signed(stated, k, trusted=False, epsilon=factor * alone) for k in range(4)]
        assert verdict_on(handed(stated, nodes), named(4)).verdict == verdict
    nodes = [signed(stated, k, epsilon=alone) for k in range(4)]  # and says that it is of the sum
    assert verdict_on(handed(stated, nodes), named(4)).verdict == REFUSED


def test_renyi_costs_are_no_epsilon_of_a_run(handed):
    stated = promised(*CENTRAL, noise="node")
    nodes = [signed(stated, 0), signed(stated, 1, epsilon=None)]
    verdict = verdict_on(handed(stated, nodes), named(2))
    assert (verdict.verdict, verdict.signed, len(verdict.gaps)) == (CONSISTENT, 1, 1)


def _altered(stated: dict[str, Any]) -> Any:
    values = signed(stated, 1)
    values["statement"]["charges"][0]["epsilon"] = 0.1
    return values


WRONG: dict[str, tuple[Callable[[dict[str, Any]], list[Any]], str]] = {
    "altered": (lambda p: [_altered(p)], "its signature is not by its key"),
    "by another": (
        lambda p: [{**signed(p, 1), "key": KEYS[2].shown}], "its signature is not by its key",
    ),
    "malformed": (lambda p: [{**signed(p, 1), "statement": 3}], "it is malformed"),
    "of another format": (
        lambda p: [{**signed(p, 1), "format": "1"}], "it is no fedsink charge statement 2",
    ),
    "another run": (lambda p: [signed(p, 1, run="other")], "the run other, not run"),
    "another plan": (
        lambda p: [signed(p, 1, spread={"rounds": 2})], "another plan: rounds is 2, not 20",
    ),
    "a share": (lambda p: [signed(p, 1, spread={"share": 4})], "share is 4, not nothing"),
    "trusted": (
        lambda p: [signed(p, 1, spread={"aggregation_trusted": True})],
        "aggregation_trusted is True, not nothing",
    ),
    "another adjacency": (
        lambda p: [signed(p, 1, adjacency="client")], "was charged under client, not add-remove",
    ),
    "more": (lambda p: [signed(p, 1, epsilon=2 * p["epsilon"])], "more than the"),
    "more delta": (
        lambda p: [signed(p, 1, delta=2.5 * p["delta"])],
        "was charged δ = 2.5e-05, more than twice the 1e-05 promised",
    ),
    "more rounds": (lambda p: [signed(p, 1, rounds=21)], "answered 21 rounds of a plan of 20"),
    "other clients": (lambda p: [signed(p, 1, clients=3)], "says that 3 clients take part"),
    "one key": (lambda p: [signed(p, 1, key=0)], "Several statements are by the key"),
    "twice": (lambda p: [signed(p, 1), signed(p, 1, key=2)], "Several statements are of client 1."),
    "a third": (lambda p: [signed(p, 1), signed(p, 2)], "is none of the run's 2"),
    "of the other run too": (
        lambda p: [signed(p, 1), signed(p, 1, run="other")], "the run other, not run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_statement_is_a_reason(handed, name):
    stated = promised(*CENTRAL, noise="node")
    made, words = WRONG[name]
    folder = handed(stated, [signed(stated, 0), *made(stated)])
    for known in (None, named(2)):
        verdict = verdict_on(folder, known)
        assert verdict.verdict == REFUSED
        assert [reason for reason in verdict.reasons if words in reason], verdict.reasons


@pytest.mark.medium
def test_a_charge_for_a_run_that_protects_nothing_is_a_reason(handed):
    stated = promised("eps=inf", "clients=2", "rounds=20", noise="node")
    charge = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "add-remove"}
    nodes = [signed(stated, k, **charge) for k in range(2)]
    verdict = verdict_on(handed(stated, nodes), named(2))
    assert verdict.verdict == REFUSED
    assert any("was charged for a plan that protects nothing" in r for r in verdict.reasons)


def _less(stated: dict[str, Any], factor: float = 4.0) -> None:
    """A promise of less that is consistent in itself: that of a plan with more noise."""
    plan = PrivacyPlan.from_dict({k: v for k, v in stated["plan"].items() if k != "mode"})
    plan = plan.with_noise(factor)
    sample = DPSinkhornSettings.sample
    stated |= central_statement(plan, len(stated["clients"]), stated["noise"], sample)
    stated["plan"] = {"mode": "central", **plan.to_dict()}


def _absent(stated: dict[str, Any], messages: int, *clients: int) -> None:
    missed = [{"client": k, "messages": messages} for k in clients]
    stated["participation"] = {"messages": messages, "missed": missed}


def _nobody(stated: dict[str, Any], nodes: list[Any]) -> None:
    nodes.clear()


def _without_1(stated: dict[str, Any], nodes: list[Any]) -> None:
    del nodes[1]


FORGED: dict[str, tuple[Any, ...]] = {
    # The whole promise is smaller, and nobody is said to have answered.
    "less, all absent": (
        "central", lambda p, n: _less(p), lambda p, n: _absent(p, 2, 0, 1), _nobody,
    ),
    "less, no messages": (
        "central", lambda p, n: _less(p), lambda p, n: _absent(p, 0, 0, 1), _nobody,
    ),
    "less, fewer than none": (
        "central", lambda p, n: _less(p), lambda p, n: _absent(p, -1, 0, 1), _nobody,
    ),
    "less, one absent": (
        "central", lambda p, n: _less(p), lambda p, n: _absent(p, 2, 1), _without_1,
    ),
    "less": ("central", lambda p, n: _less(p)),
    "less by secure noise": (
        "central", lambda p, n: p.update(noise="secure"), lambda p, n: _less(p), _nobody,
    ),
    # A word drops the demand.
    "secure, none signed": ("central", lambda p, n: p.update(noise_entries("secure")), _nobody),
    "secret, one signed": ("central", lambda p, n: p.update(noise_entries("secret")), _without_1),
    "secret, all signed": ("central", lambda p, n: p.update(noise_entries("secret"))),
    "a published seed as secret": ("seed", lambda p, n: p.update(noise_entries("secret"))),
    "a published seed as nodes'": ("seed", lambda p, n: p.update(noise_entries("node"))),
    "a published seed, signed": ("central", lambda p, n: p.update(noise_entries("reproducible"))),
    "ε = ∞ as 1": ("inf", lambda p, n: p.update(epsilon=1.0, delta=1e-5)),
    "ε = ∞": ("inf",),
    # The share of the noise.
    "a quarter of the noise for all of it": (
        "shared",
        lambda p, n: [p.pop(k) for k in ("noise_share", "epsilon_without_aggregator")],
        lambda p, n: _less(p, 1.0),
    ),
    "another granularity": (
        "shared", lambda p, n: n.__setitem__(0, signed(p, 0, spread={"fixed_point": {"bits": 8}})),
    ),
    "other values": ("shared", lambda p, n: n.__setitem__(0, signed(p, 0, spread={"values": 1}))),
    "a smaller share": ("shared", lambda p, n: n.__setitem__(0, signed(p, 0, spread={"share": 8}))),
    "masks that nodes do not want": (
        "masked", lambda p, n: n.__setitem__(0, signed(p, 0, aggregation="trusted")),
    ),
    "masks said of a trusted sum": ("shared", lambda p, n: p["noise_share"].update(masked=True)),
    "two of three shares": (
        "shared", lambda p, n: [n.__setitem__(k, signed(p, k, charges=())) for k in (0, 1)],
    ),
    "an invented sharer": ("shared", lambda p, n: n.__setitem__(3, signed(p, 3, key=5))),
    # What no plan gives.
    "an adjacency that costs more": (
        "gs_wgan", lambda p, n: p["adjacencies"].update(client="one client"),
    ),
    "adjacencies of another method": (
        "central", lambda p, n: p.update(adjacencies={"client": "one client"}),
    ),
    "a certificate": ("ldp", lambda p, n: p.update(epsilon_certified=0.1)),
    "more critics": ("gs_wgan", lambda p, n: p.update(critics=10**6)),
    "a shuffler of many": (
        "shuffled", lambda p, n: p.update(shuffling=shuffling_statement(2.0, 0.0, 10**9, 1e-9)),
    ),
    "a shuffler in the central mode": ("central", lambda p, n: p.update(shuffling={"epsilon": 0})),
    "everybody is protected": ("ldp", lambda p, n: p.update(protected="Everybody.")),
    "a later version": ("ldp", lambda p, n: p.update(fedsink="99", epsilon=0.1)),
    # Other runs, other nodes.
    "another run of the plan": (
        "central", lambda p, n: n.__setitem__(1, signed(p, 1, run="other")),
    ),
    "no name of the run": ("central", lambda p, n: p.pop("run")),
    "an invented key": ("central", lambda p, n: n.__setitem__(1, signed(p, 1, key=3))),
    "one node for two": ("central", lambda p, n: n.__setitem__(1, signed(p, 1, key=0))),
    "another client's number": ("central", lambda p, n: n.__setitem__(1, signed(p, 0, key=1))),
    "a larger charge": (
        "gs_wgan", lambda p, n: n.__setitem__(1, signed(p, 1, epsilon=p["epsilon"] * 1.001)),
    ),
    "a second plan": (
        "ldp",
        lambda p, n: n.__setitem__(
            1,
            signed(
                p, 1,
                charges=[
                    StatedCharge("replace-one", p["plan"], p["epsilon"], 0.0, 1),
                    StatedCharge("replace-one", p["plan"] | {"epsilon": 9.0}, 10.0, 0.0, 1),
                ],
            ),
        ),
    ),
}  # fmt: skip
_BEGINNINGS = {
    **{kind: (overrides, "node") for kind, overrides in KINDS.items()},
    "seed": (CENTRAL, "reproducible"),
    "inf": (("eps=inf", "clients=2", "rounds=20"), "node"),
    "shared": (SHARED, "node"),
    "masked": ((*SHARED, "noise.masked=true"), "node"),
    "shuffled": ((*HONEST["ldp"], "eps=2"), "node"),
}


@pytest.mark.medium
@pytest.mark.quick("less*", "secret*", "no name*", "a second plan", "adjacencies*")
@pytest.mark.parametrize("name", FORGED)
def test_no_forged_folder_reads_signed(handed, name):
    kind, *changes = FORGED[name]
    overrides, noise = _BEGINNINGS[kind]
    stated = promised(*overrides, noise=noise)
    count = stated["clients"] if isinstance(stated["clients"], int) else len(stated["clients"])
    nodes = [] if noise != "node" or kind == "inf" else [signed(stated, k) for k in range(count)]
    if nodes:
        assert verdict_on(handed(stated, nodes), named(count)).verdict == SIGNED
    for change in changes:
        change(stated, nodes)
    verdict = verdict_on(handed(stated, nodes), named(count))
    assert verdict.verdict in (CONSISTENT, UNPROTECTED, REFUSED)
    assert verdict.reasons or verdict.gaps


@pytest.mark.parametrize("name", ["privacy.json", "nodes.json"])
def test_two_values_of_one_key_are_none(handed, name):
    stated = promised(*CENTRAL, noise="node")
    folder = handed(stated, [signed(stated, 0), signed(stated, 1)])
    text = (folder / name).read_text()
    (folder / name).write_text(f'{{"epsilon": 0.1, "nodes": [], {text[1:]}')
    note_sums(folder)
    assert refused(verdict_on(folder, named(2)), f"{name} is damaged", "twice")


def test_long_whole_numbers_in_a_plan_are_no_traceback(handed):
    stated = promised(*HONEST["ldp"])
    for place in (stated["plan"]["map"]["shape"], stated["plan"], stated["plan"]["map"]):
        before = copy.copy(place)
        for name in range(len(place)) if isinstance(place, list) else list(place):
            place[name] = 10**400
            verdict = verdict_on(handed(stated)).verdict
            assert verdict == (CONSISTENT if name == "classes" else REFUSED)  # ε holds for any
            place[name] = before[name]


def test_long_whole_numbers_are_no_traceback(handed):
    stated = promised(*CENTRAL, noise="node")
    nodes = [signed(stated, 0), signed(stated, 1)]
    assert refused(verdict_on(handed({**stated, "epsilon": 10**400}, nodes)), "100")
    for name in ("epsilon", "delta", "rounds"):
        values = signed(stated, 1)
        values["statement"]["charges"][0][name] = 10**400
        verdict = verdict_on(handed(stated, [signed(stated, 0), values]))
        assert "malformed" in verdict.reasons[0]


_HOSTILE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9),
    st.sampled_from([[], {}, [{}], {"name": "class"}, 10**400, -1, 1e308, "pld", [1, [2]]]),
)  # fmt: skip


@pytest.mark.medium
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_hostile_values_give_a_verdict(handed, data):
    stated = promised(*data.draw(st.sampled_from([CENTRAL, HONEST["ldp"]])), noise="node")
    nodes = [signed(stated, 0), signed(stated, 1)]
    place = data.draw(st.sampled_from([stated, stated["plan"], *nodes, nodes[0]["statement"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(_HOSTILE)
    verdict = verdict_on(handed(stated, nodes))
    assert verdict.verdict in (SIGNED, CONSISTENT, REFUSED, UNPROTECTED)
    json.dumps(vars(verdict))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\udcff", "1" * 5000])
@pytest.mark.parametrize("name", ["privacy.json", "nodes.json"])
def test_a_damaged_file_is_a_reason(handed, name, text):
    stated = promised(*CENTRAL, noise="node")
    folder = handed(stated, [signed(stated, 0), signed(stated, 1)])
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    note_sums(folder)
    assert refused(verdict_on(folder), f"{name} is damaged")
