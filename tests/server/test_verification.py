"""A verdict on folders that honest and dishonest senders hand over."""

from __future__ import annotations

import copy
import json
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
from fedsink.configuration import Configuration
from fedsink.errors import ConfigError
from fedsink.protocol.charge_statement import ChargeStatement, StatedCharge
from fedsink.protocol.identity_key import NodeIdentityKey
from fedsink.server.folder import note_sums, sha256_of
from fedsink.server.verification import (
    REFUTED,
    UNPROTECTED,
    VERIFIED,
    Verdict,
    read_peers,
    verdict_on,
)
from fedsink.strategies.methods import settings_of

CENTRAL = ("clients=2", "rounds=20", "sigma=1.5")
KEYS = [NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes([k] * 32))) for k in range(4)]
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
    return json.dumps(settings_of(config, "run").stated(noise))


def promised(*overrides: str, noise: str = "secret") -> dict[str, Any]:
    """privacy.json of a run."""
    stated: dict[str, Any] = json.loads(_promised(overrides, noise))
    return stated


def signed(stated: dict[str, Any], client: int, key: int | None = None, **other: Any) -> Any:
    """The statement of an honest node; `other` replaces what it says."""
    own = {name: other.pop(name) for name in list(other) if name in StatedCharge.__annotations__}
    charge = {
        "adjacency": stated.get("adjacency_name", stated["adjacency"]),
        "plan": stated["plan"],
        "epsilon": stated["epsilon"],
        "delta": stated["delta"],
        "rounds": stated["rounds"],
    }
    said = {"run": "run", "node": "name", "client": client, "clients": 2} | other
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


def refuted(verdict: Verdict, *words: str) -> bool:
    """True if there is one reason, with these words."""
    reasons = verdict.reasons
    return (
        verdict.verdict == REFUTED
        and len(reasons) == 1
        and all(word in reasons[0] for word in words)
    )


@pytest.mark.medium
@pytest.mark.quick("class", "gs_wgan", "ldp")
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_run_of_each_method_is_verified(handed: Callable[..., Path], name: str) -> None:
    stated = promised(*HONEST[name])
    verdict = verdict_on(handed(stated))
    assert verdict.reasons == []
    assert verdict.verdict == VERIFIED
    assert verdict.promise["epsilon"] == pytest.approx(stated["epsilon"])
    own = verdict.epsilons.get(stated["accountant"], verdict.epsilons.get("summation"))
    assert own == pytest.approx(stated["epsilon"], rel=1e-4)
    json.dumps(verdict.to_dict(), allow_nan=False)


@pytest.mark.parametrize("overrides", [("eps=inf",), ("eps=inf", "strategy=gs_wgan")])
def test_a_run_without_noise_protects_nothing(
    handed: Callable[..., Path], overrides: tuple[str, ...]
) -> None:
    stated = promised("clients=2", "rounds=20", *overrides)
    verdict = verdict_on(handed(stated))
    assert (verdict.verdict, verdict.reasons) == (UNPROTECTED, [])
    assert refuted(verdict_on(handed({**stated, "epsilon": 3.0})), "epsilon = 3.0", "nothing")


def test_noise_of_a_published_seed_protects_nothing(handed: Callable[..., Path]) -> None:
    verdict = verdict_on(handed(promised(*CENTRAL, noise="reproducible")))
    assert (verdict.verdict, verdict.reasons) == (UNPROTECTED, [])
    assert "published seed" in verdict.notes[1]


@pytest.mark.parametrize("mode", ["central", "ldp"])
def test_each_number_that_is_changed_is_a_reason(handed: Callable[..., Path], mode: str) -> None:
    stated = promised(*(CENTRAL if mode == "central" else HONEST["ldp"]))
    numbers = {key for key, value in stated.items() if isinstance(value, int | float)}
    assert {"epsilon", "delta", "sigma", "sensitivity", "rounds"} <= numbers
    for name in numbers:
        for factor in (0.99, 1.01):
            changed = {**stated, name: stated[name] * factor or factor}
            word = "names" if name == "clients" else f"states {name} ="
            assert refuted(verdict_on(handed(changed)), word), name


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
def test_a_changed_word_is_a_reason(handed: Callable[..., Path], entry: dict[str, Any]) -> None:
    assert verdict_on(handed({**promised(*CENTRAL), **entry})).verdict == REFUTED


@pytest.mark.parametrize("entry", ["epsilon", "local_epsilon", "reports", "delta"])
def test_a_changed_shuffler_is_a_reason(handed: Callable[..., Path], entry: str) -> None:
    stated = promised(*HONEST["shuffled"])
    stated["shuffling"][entry] *= 2
    assert any("shuffling." in reason for reason in verdict_on(handed(stated)).reasons)
    stated["shuffling"][entry] = "many"
    assert verdict_on(handed(stated)).verdict == REFUTED


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["central", "ldp", "shared"])
def test_an_entry_that_no_plan_gives_is_a_reason(handed: Callable[..., Path], mode: str) -> None:
    stated = promised(*(CENTRAL if mode == "central" else HONEST[mode]))
    said = "privacy.json has entries that fedsink"
    assert refuted(verdict_on(handed({**stated, "epsilon_certified": 0.1})), said, "_certified")
    inner = copy.deepcopy(stated)
    if mode == "ldp":
        inner["map"]["epsilon"] = 0.1
        place = "map.epsilon"
    else:
        inner["clients"][1]["epsilon_certified"] = 0.1
        place = "clients[1].epsilon_certified"
    assert refuted(verdict_on(handed(inner)), said, place)
    other = verdict_on(handed({**inner, "fedsink": "99"}))  # a later version may say more
    assert other.verdict == VERIFIED
    assert any(place in note for note in other.notes)


def test_the_sender_s_words_are_named(handed: Callable[..., Path]) -> None:
    notes = verdict_on(handed(promised(*HONEST["gs_wgan"]))).notes
    told = "Entries of privacy.json that no plan gives: adjacencies, critics, mechanism, method."
    assert notes[-1] == told


@pytest.mark.parametrize("name", ["nodes.json", "report.html", "generator.safetensors"])
def test_a_link_is_not_followed(
    handed: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    elsewhere.write_text("secret")
    stated = promised(*CENTRAL, noise="node")
    folder = handed(stated, [signed(stated, 0), signed(stated, 1)])
    (folder / name).unlink()
    (folder / name).symlink_to(elsewhere)
    verdict = verdict_on(folder)
    assert f"{name} is a link: hand over the file." in verdict.reasons
    assert sha256_of(elsewhere) not in json.dumps(verdict.to_dict())


def test_what_is_no_file_of_sums_ends_at_once(handed: Callable[..., Path]) -> None:
    sums = handed(promised(*CENTRAL)) / "SHA256SUMS"
    sums.unlink()
    os.mkfifo(sums)
    assert refuted(verdict_on(sums.parent), "is no file of sums")
    sums.unlink()
    sums.symlink_to("/dev/zero")
    assert refuted(verdict_on(sums.parent), "is no file of sums")
    sums.unlink()
    sums.write_text("\n" * (1 << 17))
    assert refuted(verdict_on(sums.parent), "is no file of sums")


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
def test_a_changed_plan_is_a_reason(
    handed: Callable[..., Path], mode: str, entry: str, value: Any
) -> None:
    stated = promised(*(CENTRAL if mode == "central" else HONEST["ldp"]))
    stated["plan"][entry] = value
    assert verdict_on(handed(stated)).verdict == REFUTED


@pytest.mark.parametrize("name", ["generator.safetensors", "generator.json", "report.html"])
def test_a_changed_file_is_a_reason(handed: Callable[..., Path], name: str) -> None:
    folder = handed(promised(*CENTRAL))
    (folder / name).write_text("another")
    assert refuted(verdict_on(folder), f"{name} was changed")
    (folder / name).unlink()
    verdict = verdict_on(folder)
    assert (verdict.verdict == VERIFIED) == (name == "report.html")


def test_without_sums_or_promise_nothing_is_verified(handed: Callable[..., Path]) -> None:
    folder = handed(promised(*CENTRAL))
    (folder / "SHA256SUMS").unlink()
    assert refuted(verdict_on(folder), "SHA256SUMS is missing")
    (folder / "SHA256SUMS").write_text("rubbish")
    assert refuted(verdict_on(folder), "Line 1 of")
    (folder / "privacy.json").unlink()
    with pytest.raises(ConfigError, match=r"has no privacy\.json"):
        verdict_on(folder)


@pytest.mark.parametrize("overrides", [CENTRAL, HONEST["ldp"]], ids=["central", "ldp"])
def test_what_all_nodes_signed_is_verified(
    handed: Callable[..., Path], overrides: tuple[str, ...]
) -> None:
    stated = promised(*overrides, noise="node")
    folder = handed(stated, [signed(stated, 1), signed(stated, 0)])
    verdict = verdict_on(folder)
    assert (verdict.verdict, verdict.reasons) == (VERIFIED, [])
    assert "nobody vouched for" in verdict.notes[0]
    assert [node["client"] for node in verdict.nodes] == [0, 1]
    assert verdict.promise["run"] == "run"
    known = verdict_on(folder, NAMES)
    assert known.verdict == VERIFIED
    assert not [note for note in known.notes if "vouched" in note]
    assert [node["name"] for node in known.nodes] == ["hospital 0", "hospital 1"]


def _nodes(stated: dict[str, Any], name: str) -> list[Any] | None:
    """Statements of which one is wrong, by what is wrong."""
    fine, other = signed(stated, 0), signed(stated, 1)
    altered = copy.deepcopy(other)
    altered["statement"]["charges"][0]["epsilon"] = 0.1
    plan = {**stated["plan"], "rounds": 2}
    second = {
        "altered": altered,
        "by another": {**other, "key": KEYS[2].shown},
        "malformed": {"statement": 3},
        "another run": signed(stated, 1, run="other"),
        "another plan": signed(stated, 1, plan=plan),
        "another adjacency": signed(stated, 1, adjacency="client"),
        "more": signed(stated, 1, epsilon=2 * stated["epsilon"]),
        "more δ": signed(stated, 1, delta=2.5 * stated["delta"]),
        "more rounds": signed(stated, 1, rounds=21),
        "other clients": signed(stated, 1, clients=3),
        "nothing": signed(stated, 1, charges=()),
        "two": other,
        "one key": signed(stated, 1, key=0),
    }
    if name == "twice":
        return [fine, other, signed(stated, 1, key=2)]
    if name == "a third":
        return [fine, other, signed(stated, 2)]
    return {"removed": [fine], "none": None, "empty": []}.get(name, [fine, second.get(name)])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("removed", "No statement is there of client 1."),
        ("empty", "No statement is there of clients 0, 1."),
        ("none", "nodes.json is missing"),
        ("altered", "its signature is not by its key"),
        ("by another", "its signature is not by its key"),
        ("malformed", "it is malformed"),
        ("another run", "on 2 different runs"),
        ("another plan", "another plan: rounds is 2, not 20"),
        ("another adjacency", "was charged under client, not add-remove"),
        ("more", "more than the"),
        ("other clients", "says that 3 clients take part"),
        ("nothing", "charged nothing for this run"),
        ("more δ", "was charged δ = 2.5e-05, more than twice the 1e-05 promised"),
        ("more rounds", "answered 21 rounds of a plan of 20"),
        ("one key", "2 statements are signed with one key"),
        ("twice", "Several statements are there of client 1."),
        ("a third", "is none of the run's 2"),
    ],
)
def test_a_wrong_statement_is_a_reason(handed: Callable[..., Path], name: str, words: str) -> None:
    stated = promised(*CENTRAL, noise="node")
    verdict = verdict_on(handed(stated, _nodes(stated, name)))
    assert verdict.verdict == REFUTED
    assert [reason for reason in verdict.reasons if words in reason], verdict.reasons


def test_a_key_that_nobody_knows_is_a_reason(handed: Callable[..., Path]) -> None:
    stated = promised(*CENTRAL, noise="node")
    folder = handed(stated, [signed(stated, 0), signed(stated, 1, key=3)])
    known = {KEYS[k].shown: str(k) for k in range(2)}
    assert refuted(verdict_on(folder, known), "none of the known keys", KEYS[3].shown)


@pytest.mark.parametrize(
    ("name", "messages", "asked"), [("class", 2, 2), ("ldp", 800, 1), ("gs_wgan in turns", 20, 10)]
)
def test_a_client_that_never_answered_needs_no_statement(
    handed: Callable[..., Path], name: str, messages: int, asked: int
) -> None:
    stated = promised(*HONEST[name], noise="node")
    for missed, verdict in ((asked, VERIFIED), (asked - 1, REFUTED)):
        taken = {"messages": messages, "missed": [{"client": 1, "messages": missed}]}
        folder = handed({**stated, "participation": taken}, [signed(stated, 0)])
        assert verdict_on(folder).verdict == verdict


def test_a_node_that_vouches_for_no_aggregation_is_charged_for_its_reply_alone(
    handed: Callable[..., Path],
) -> None:
    stated = promised(*HONEST["shared"], noise="node")
    alone = stated["epsilon_without_aggregator"]
    shared = stated["noise_share"]
    grid = {name: shared[name] for name in ("granularity", "bits", "radius")}
    plan = {
        **stated["plan"], "share": 2, "fixed_point": grid, "values": shared["values"],
        "aggregation_trusted": False,
    }  # fmt: skip
    for factor, verdict in ((1.0, VERIFIED), (1.1, REFUTED)):
        nodes = [
            ChargeStatement(
                "run", "name", k, 20,
                (StatedCharge("add-remove", plan, factor * alone, 1e-5, 20),),
            ).signed(NodeIdentityKey(Ed25519PrivateKey.from_private_bytes(bytes([k] * 32))))
            for k in range(20)
        ]  # fmt: skip
        assert verdict_on(handed(stated, nodes)).verdict == verdict


def test_a_charge_for_a_run_that_protects_nothing_is_a_reason(handed: Callable[..., Path]) -> None:
    stated = promised("eps=inf", "clients=2", "rounds=20", noise="node")
    charge = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "add-remove"}
    nodes = [signed(stated, k, **charge) for k in range(2)]
    verdict = verdict_on(handed(stated, nodes))
    assert verdict.verdict == REFUTED
    assert any("was charged for a plan that protects nothing" in r for r in verdict.reasons)


def test_an_accountant_that_takes_for_ever_is_a_reason(handed: Callable[..., Path]) -> None:
    stated = promised(*HONEST["prv"])
    stated["plan"]["rounds"] = 1_000_000
    assert refuted(verdict_on(handed(stated)), "prv takes too long for more than 20,000 uses")


def test_long_whole_numbers_in_a_plan_are_no_traceback(handed: Callable[..., Path]) -> None:
    stated = promised(*HONEST["ldp"])
    for place in (stated["plan"]["map"]["shape"], stated["plan"], stated["plan"]["map"]):
        before = copy.copy(place)
        for name in range(len(place)) if isinstance(place, list) else list(place):
            place[name] = 10**400
            verdict = verdict_on(handed(stated)).verdict
            assert verdict == (VERIFIED if name == "classes" else REFUTED)  # ε holds for any number
            place[name] = before[name]


def test_long_whole_numbers_are_no_traceback(handed: Callable[..., Path]) -> None:
    stated = promised(*CENTRAL, noise="node")
    assert refuted(verdict_on(handed({**stated, "epsilon": 10**400}, _nodes(stated, "two"))), "100")
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
def test_hostile_values_give_a_verdict(handed: Callable[..., Path], data: st.DataObject) -> None:
    stated = promised(*data.draw(st.sampled_from([CENTRAL, HONEST["ldp"]])), noise="node")
    nodes = [signed(stated, 0), signed(stated, 1)]
    place = data.draw(st.sampled_from([stated, stated["plan"], *nodes, nodes[0]["statement"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(_HOSTILE)
    verdict = verdict_on(handed(stated, nodes))
    assert verdict.verdict in (VERIFIED, REFUTED, UNPROTECTED)
    json.dumps(verdict.to_dict())


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\udcff", "1" * 5000])
@pytest.mark.parametrize("name", ["privacy.json", "nodes.json"])
def test_a_damaged_file_is_a_reason(handed: Callable[..., Path], name: str, text: str) -> None:
    stated = promised(*CENTRAL, noise="node")
    folder = handed(stated, [signed(stated, 0), signed(stated, 1)])
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    note_sums(folder)
    assert refuted(verdict_on(folder), f"{name} is damaged")


def test_peers_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_text(f'[keys]\na = "{KEYS[0].shown}"\n"ward 2" = "{KEYS[1].shown}"\n')
    assert read_peers(path) == {KEYS[0].shown: "a", KEYS[1].shown: "ward 2"}
    for text, words in (
        ("[keys]", "must be a table"), ("[other]\na = 1", "must be a table"), ("{", "is no TOML"),
        ('[keys]\na = "x"', "toml, a: 'x' is no public key"),
        (f'[keys]\na = "{KEYS[0].shown}"\nb = "{KEYS[0].shown}"', "a and b have one key"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_peers(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_peers(tmp_path / "none.toml")
