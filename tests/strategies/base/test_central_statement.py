from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fedsink.privacy import (
    ADJACENCIES,
    LOCAL_NOISE,
    BatchClip,
    ClassSchedule,
    JointSchedule,
    NoiseShare,
    PrivacyPlan,
    RecordClip,
    UnprotectedPlan,
)
from fedsink.privacy.adjacency import describe
from fedsink.privacy.integer_gaussian import FixedPoint, IntegerGaussian
from fedsink.strategies.base.central_statement import (
    SampleOfRecords,
    central_statement,
    notice,
    unprotected_statement,
)

_BATCH = PrivacyPlan(0.1, 2.0, 100, BatchClip(0.5), ClassSchedule(10), 1e-5)
_RECORD = PrivacyPlan(0.1, 2.0, 100, RecordClip(0.5), ClassSchedule(10), 1e-5)
_SHARED = NoiseShare("secure_aggregation")
_SAMPLE = SampleOfRecords("Poisson-subsampled Gaussian on sums")


@pytest.mark.medium
@pytest.mark.parametrize("adjacency", sorted(set(ADJACENCIES) - {"user"}))
def test_epsilon_is_stated_with_unit_adjacency_and_accountant(adjacency):
    plan = replace(_BATCH, adjacency=adjacency)
    stated = central_statement(plan, 3, "secret", _SAMPLE)
    assert stated["epsilon"] == plan.epsilon("pld")
    assert (stated["adjacency"], stated["adjacency_name"]) == (describe(adjacency), adjacency)
    assert stated["unit"] == ("client" if adjacency == "client" else "record")
    assert (stated["accountant"], stated["accountant_library"]) == ("pld", "dp-accounting")
    assert [(c["client"], c["epsilon"]) for c in stated["clients"]] == [
        (k, stated["epsilon"]) for k in range(3)
    ]
    assert ("client as a whole" in stated["not_protected"]) == (adjacency != "client")
    assert ("Replacing one record" in stated["not_protected"]) == (adjacency == "add-remove")
    json.dumps(stated)


def test_a_clip_of_ones_own_is_named_with_whose_word_it_is():
    class Mine(RecordClip):
        name = "mine"

    assert "clip_promised_by" not in central_statement(_RECORD, 3, "secret", _SAMPLE)
    stated = central_statement(replace(_RECORD, clip=Mine(0.5)), 3, "secret", _SAMPLE)
    assert stated["clip"] == "mine"
    assert stated["epsilon"] == central_statement(_RECORD, 3, "secret", _SAMPLE)["epsilon"]
    assert stated["clip_promised_by"].startswith(f"{__name__}.")
    assert "Mine, on the word of who wrote it" in stated["clip_promised_by"]


def test_whoever_starts_a_run_reads_what_is_left_without_amplification():
    stated = central_statement(_BATCH, 3, "secret", _SAMPLE)
    said = notice(stated, LOCAL_NOISE, 3, _SAMPLE)
    assert said is not None
    for key in ("epsilon", "epsilon_unamplified"):
        assert f"ε = {stated[key]:.4g}" in said
    hidden = replace(_BATCH, capacity=900, nominal_records=2000)
    said = notice(central_statement(hidden, 3, "secret", _SAMPLE), LOCAL_NOISE, 3, _SAMPLE)
    assert said is not None
    assert "secret" not in said


def test_another_accountant_is_named_with_its_library():
    stated = central_statement(_BATCH, 1, "secret", _SAMPLE, "rdp-opacus")
    assert stated["epsilon"] == _BATCH.epsilon("rdp-opacus")
    assert stated["accountant_library"] == "Opacus"


def test_without_a_capacity_the_unamplified_epsilon_stands_beside_it():
    stated = central_statement(_BATCH, 1, "reproducible", _SAMPLE)
    assert stated["capacity"] is None
    assert stated["epsilon_unamplified"] == _BATCH.epsilon_unamplified() > stated["epsilon"]
    assert stated["sample_secrecy"].startswith("Not enforced")


def test_with_a_capacity_it_does_not_and_the_overflow_is_stated():
    plan = replace(_BATCH, clip=RecordClip(1.0), capacity=60, nominal_records=300)
    stated = central_statement(plan, 1, "secret", _SAMPLE)
    assert "epsilon_unamplified" not in stated
    assert (stated["capacity"], stated["nominal_records"]) == (60, 300)
    assert 0 < stated["delta_overflow"] == plan.overflow < 1e-5
    assert "fixed capacity of 60 records" in stated["sample_secrecy"]


@pytest.mark.parametrize("kind", ["reproducible", "secret", "secure", "node"])
def test_every_kind_of_noise_is_explained(kind):
    stated = central_statement(_BATCH, 1, kind, _SAMPLE)
    assert stated["noise"] == kind
    assert stated["noise_meaning"].endswith(".")


def _stated(clients: int, share: NoiseShare = _SHARED) -> dict[str, Any]:
    """privacy.json of shared noise, on 24 values of 32 bits."""
    sizes = share.cohorts(_RECORD.schedule, clients)
    one = IntegerGaussian.finest(
        _RECORD, sizes, size=24, bits=32, radius=_RECORD.clip.reach(50),
        tolerate_dropouts=share.tolerate_dropouts,
    )  # fmt: skip
    integers = [replace(one, parts=m - share.tolerate_dropouts) for m in sizes]
    return central_statement(_RECORD, clients, "secret", _SAMPLE, share=share, integers=integers)


@pytest.mark.medium
def test_the_runs_epsilon_is_the_curators_and_that_of_a_reply_stands_beside_it():
    stated = _stated(100)
    assert stated["epsilon"] == _RECORD.epsilon()
    alone = replace(_RECORD, noise_multiplier=2.0 * (1 / 10) ** 0.5)
    assert stated["epsilon_without_aggregator"] == alone.epsilon() > 3 * stated["epsilon"]
    (cohort,) = stated["noise_share"]["cohorts"]
    assert (cohort["clients"], cohort["sharers"]) == (10, 10)
    assert cohort["noise_std"] == pytest.approx(stated["noise_std"] / 10**0.5, rel=1e-3)
    assert cohort["noise_std"] > stated["noise_std"] / 10**0.5
    json.dumps(stated)


@pytest.mark.medium
def test_the_integers_are_stated():
    stated = _stated(100)
    shared = stated["noise_share"]
    gamma, S = shared["granularity"], _RECORD.sensitivity
    assert (shared["bits"], shared["values"], shared["radius"]) == (32, 24, 50 * S)
    assert shared["sensitivity"] == pytest.approx(S + gamma * 24**0.5)
    assert 0 < shared["epsilon_divergence"] < 1e-60
    one = IntegerGaussian(_RECORD, 10, FixedPoint(gamma, 32, 50 * S), 24)
    of_all = 100 * 10 * one.wrap_probability(10)  # rounds and cohorts
    assert shared["wrap_probability"] == pytest.approx(of_all, rel=1e-9, abs=0)
    assert 0 < of_all < 1e-12
    assert shared["epsilon"] == stated["epsilon"]


@pytest.mark.medium
def test_colluders_are_priced():
    """One, a tenth, a third and all others of a cohort of 60."""
    found = _stated(600)
    colluders = found["noise_share"]["colluders"]
    assert [one["clients"] for one in colluders] == [1, 6, 20, 59]
    for one in colluders:
        assert one["sigma"] == pytest.approx(2.0 * (1 - one["clients"] / 60) ** 0.5)
        left = replace(_RECORD, noise_multiplier=one["sigma"])
        assert one["epsilon"] == left.epsilon() > found["epsilon"]
    assert colluders[-1]["epsilon"] == found["epsilon_without_aggregator"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("clients", "hidden"),
    [
        (35, {1: False, 2: False}),
        (90, {1: True, 3: False}),
        (100, {1: True, 4: False}),
        (1000, {1: True, 10: True, 34: False}),
    ],
)
def test_masks_that_no_longer_hold_count_as_none(clients, hidden):
    """A third of cohorts of 3 and 4, of 9, of 10 and of 100, of which masks bear a tenth."""
    stated = _stated(clients, NoiseShare("secure_aggregation", masked=True))
    alone = stated["epsilon_without_aggregator"]
    found = {
        one["clients"]: one["epsilon"] < alone for one in stated["noise_share"]["colluders"][:-1]
    }
    assert found == hidden


@pytest.mark.medium
def test_tolerated_shares_count_as_gone_beside_colluders():
    stated = _stated(100, NoiseShare("secure_aggregation", 4))
    assert stated["epsilon"] == _RECORD.epsilon()
    colluders = stated["noise_share"]["colluders"]
    assert [one["clients"] for one in colluders] == [1, 4, 5]
    assert colluders[0]["sigma"] == pytest.approx(2.0 * (5 / 6) ** 0.5)
    assert stated["noise_share"]["tolerate_dropouts"] == 4


@pytest.mark.medium
def test_every_assumption_is_named_and_the_text_promises_no_more():
    stated = _stated(100)
    assumed = stated["noise_share"]["assumptions"]
    assert set(assumed) == {"aggregation", "collusion", "dropout", "integers"}
    assert "sum of a cohort's replies" in stated["protected"]
    assert "server included" not in stated["protected"]
    assert "their ε compose)" not in stated["not_protected"]
    assert "those of one cohort change one sum" in stated["not_protected"]


@pytest.mark.parametrize(("clients", "share"), [(100, LOCAL_NOISE), (10, _SHARED), (3, _SHARED)])
def test_where_every_client_adds_the_whole_noise_the_statement_is_the_local_one(clients, share):
    stated = central_statement(_RECORD, clients, "secret", _SAMPLE, share=share)
    assert stated == central_statement(_RECORD, clients, "secret", _SAMPLE)
    assert "server included" in stated["protected"]
    assert "their ε compose" in stated["not_protected"]


@pytest.mark.slow
def test_one_line_says_what_holds_for_whom():
    stated = _stated(105)
    alone, epsilon = stated["epsilon_without_aggregator"], stated["epsilon"]
    first = stated["noise_share"]["colluders"][0]
    line = notice(stated, _SHARED, 105, _SAMPLE)
    assert line is not None
    assert line.startswith(
        f"noise.share=secure_aggregation: ε = {epsilon:.3g} holds for sums of 10 or 11 replies "
        f"(32 bits); ε = {first['epsilon']:.3g} against the server and 1 of them; "
    )
    bare = stated["epsilon_unamplified"]
    assert f"ε = {alone:.3g} for a reply alone; it counts on a secret, " in line
    assert line.endswith(f": against whoever learns it ε = {bare:.4g}.")


def test_one_line_says_where_nothing_is_gained():
    stated = central_statement(_RECORD, 10, "secret", _SAMPLE, share=_SHARED)
    line, local = notice(stated, _SHARED, 10, _SAMPLE), notice(stated, LOCAL_NOISE, 10, _SAMPLE)
    assert line is not None
    assert line.endswith(
        " noise.share=secure_aggregation changes nothing here: with clients=10 and "
        "tolerate_dropouts=0 every client adds the whole noise."
    )
    assert line.partition(" noise.share=")[0] == local
    plan = replace(_RECORD, schedule=JointSchedule())
    local = notice(central_statement(plan, 10, "secret", _SAMPLE), LOCAL_NOISE, 10, _SAMPLE)
    assert local is not None
    assert "noise.share" not in local


def test_the_statement_promises_nothing_and_is_json():
    plan = UnprotectedPlan(0.1, 100, "batch", ClassSchedule(10))
    stated = json.loads(json.dumps(unprotected_statement(plan, 3), allow_nan=False))
    assert (stated["epsilon"], stated["delta"]) == (None, None)
    assert [(c["client"], c["epsilon"]) for c in stated["clients"]] == [(k, None) for k in range(3)]
    assert stated["protected"] == "Nothing."
    assert stated["not_protected"].startswith("Every record")
    assert (stated["clip"], stated["noise"], stated["noise_std"]) == ("none", "none", 0.0)
    assert "ε = ∞" in stated["mechanism"]


@pytest.mark.parametrize("clients", [1, 10, 11, 10**3, 10**5, 10**6, 10**12])
def test_a_statement_has_a_constant_size(clients):
    """Up to ten clients are told one by one, more of them as a range."""
    plan = UnprotectedPlan(0.1, 100, "batch", ClassSchedule(10))
    for stated in (
        central_statement(_BATCH, clients, "secret", _SAMPLE),
        unprotected_statement(plan, clients),
    ):
        assert len(json.dumps(stated, indent=2)) < 4_000
        names = [entry["client"] for entry in stated["clients"]]
        assert names == ([*range(clients)] if clients <= 10 else [f"0-{clients - 1}"])
        assert {entry["epsilon"] for entry in stated["clients"]} == {stated["epsilon"]}


def test_it_has_the_keys_of_a_statement_that_promises_something():
    protecting = PrivacyPlan(0.1, 2.0, 100, BatchClip(0.5), ClassSchedule(10), 1e-5)
    plan = UnprotectedPlan(0.1, 100, "batch", ClassSchedule(10))
    assert set(unprotected_statement(plan, 3)) == set(
        central_statement(protecting, 3, "secret", _SAMPLE)
    )
