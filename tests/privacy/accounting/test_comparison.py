from __future__ import annotations

import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import solve_account
from fedsink.privacy.accounting.accountants import ACCOUNTANTS, poisson_gaussian_epsilon


def account(**changes):
    return solve_account(**({"rate": 0.2, "sigma": 2.0, "delta": 1e-5} | changes))


SETTING = {"rate": 0.2, "sigma": 2.0, "rounds": 300, "eps": 10.0}


@pytest.mark.medium
def test_the_accountants_stand_side_by_side():
    table = solve_account(rate=0.2, sigma=2.0, rounds=3000, delta=1e-5, classes=10)
    assert table == {a: poisson_gaussian_epsilon(0.2, 2.0, 300, 1e-5, a) for a in table}
    assert set(table) == {"pld", "prv", "rdp", "rdp-opacus", "rdp-classic"}
    assert table["pld"] < table["prv"] < table["rdp"] < table["rdp-classic"]
    assert table["rdp-opacus"] == pytest.approx(table["rdp"], rel=0.01)


@pytest.mark.medium
@pytest.mark.quick("rounds")
@pytest.mark.parametrize("name", ["rate", "sigma", "rounds"])
def test_what_is_left_out_is_solved_for_within_the_target_of_each_accountant(name):
    solved = solve_account(delta=1e-5, **(SETTING | {name: None}))
    assert {*solved, *solved.left_out} == set(ACCOUNTANTS)
    assert len(solved) >= 4
    for accountant, value in solved.items():
        found = SETTING | {name: value}
        implied = poisson_gaussian_epsilon(
            found["rate"], found["sigma"], found["rounds"], 1e-5, accountant
        )
        assert 9.9 < implied <= 10


@pytest.mark.slow
def test_delta_is_solved_for_when_eps_is_given():
    assert set(solve_account(**SETTING).left_out) == {"prv"}
    solved = solve_account(
        **SETTING, accountants=["pld", "prv", "rdp", "rdp-opacus", "rdp-classic"]
    )
    for accountant, delta in solved.items():
        assert poisson_gaussian_epsilon(0.2, 2.0, 300, delta, accountant) <= 10
        assert poisson_gaussian_epsilon(0.2, 2.0, 300, delta / 1.02, accountant) > 10
    with pytest.raises(PrivacyError, match=r"cost more than eps=0\.01 over 300 uses, whatever δ"):
        solve_account(**(SETTING | {"eps": 0.01}))
    assert set(solve_account(**(SETTING | {"eps": 1000.0})).values()) == {1e-12}


@pytest.mark.medium
def test_rounds_count_the_classes():
    some = {"accountants": ["pld", "rdp"]}
    joint = solve_account(rate=0.2, sigma=2.0, eps=10, delta=1e-5, **some)
    split = solve_account(rate=0.2, sigma=2.0, eps=10, delta=1e-5, classes=10, **some)
    assert split == {accountant: 10 * rounds for accountant, rounds in joint.items()}


@pytest.mark.parametrize("missing", [(), ("rate", "sigma"), ("rate", "sigma", "rounds", "eps")])
def test_exactly_one_value_must_be_left_out(missing):
    with pytest.raises(PrivacyError, match="exactly one of rate, sigma, rounds, eps and delta"):
        solve_account(delta=1e-5, **(SETTING | dict.fromkeys(missing)))


def test_bad_values_are_refused():
    with pytest.raises(PrivacyError, match="classes must be an integer ≥ 1, received 0"):
        account(rounds=300, classes=0)
    with pytest.raises(PrivacyError, match="rounds must be an integer ≥ 1, received 0"):
        account(rounds=0)
    with pytest.raises(PrivacyError, match="rounds must be at most 1e\\+09, received 1e\\+30"):
        account(rounds=10**30)
    with pytest.raises(PrivacyError, match="clip is record, batch, critic, received 'layer'"):
        account(rounds=300, clip="layer")
    with pytest.raises(PrivacyError, match="clients must be an integer ≥ 1, received 0"):
        account(rounds=300, clients=0)
    with pytest.raises(PrivacyError, match=r"delta must lie in \(0, 1\), received 0"):
        account(rounds=10, delta=0)


@pytest.mark.medium
def test_only_accountants_with_a_bound_are_run():
    table = account(rounds=300, classes=10, adjacency="replace-one")
    assert list(table) == ["pld"]


@pytest.mark.slow
def test_one_person_at_several_clients_composes_and_halves_the_rounds():
    setting = {"sigma": 2.291, "delta": 1e-5, "classes": 10, "accountants": ["pld"]}
    two = solve_account(rate=0.2, rounds=4000, clients=2, **setting)["pld"]
    assert two == pytest.approx(13.9, abs=0.05)
    one = solve_account(rate=0.2, eps=10, **setting)["pld"]
    assert solve_account(rate=0.2, eps=10, clients=2, **setting)["pld"] == one // 20 * 10


@pytest.mark.medium
def test_what_is_solved_for_keeps_the_target_under_other_adjacencies():
    for options in (
        {"adjacency": "client", "clip": "batch"},
        {"adjacency": "client", "capacity": 50},
        {"capacity": 190, "nominal_records": 600},
    ):
        how = {"delta": 1e-5, "classes": 10, "accountants": ["rdp"], **options}
        sigma = solve_account(rate=0.2, rounds=1000, eps=10, **how)["rdp"]
        cost = solve_account(rate=0.2, rounds=1000, sigma=sigma, **how)["rdp"]
        assert 9.95 < cost <= 10


@pytest.mark.medium
def test_a_person_at_many_clients_is_not_paid_for_by_less_than_a_use_at_each():
    with pytest.raises(PrivacyError, match="pays for less than one use at each of clients=100"):
        account(rate=0.1, eps=0.5, clients=100, accountants=["pld"])


@pytest.mark.parametrize(
    "setting",
    [
        {"sigma": 0.001, "rounds": 10},
        pytest.param({"eps": 1e-3, "rounds": 100}, marks=pytest.mark.medium),
    ],
)
def test_an_accountant_that_would_take_long_is_left_out_with_a_reason(setting):
    setting = {"rate": 0.1, "delta": 1e-5, **setting}
    found = solve_account(**setting)
    assert "pld" in found
    assert "prv" not in found
    if "sigma" in setting:
        assert set(found) == set(ACCOUNTANTS) - {"prv"}
        assert "points take long: accountant=prv runs it alone" in found.left_out["prv"]
        assert not solve_account(**setting, accountants=["rdp"]).left_out
    with pytest.raises(PrivacyError, match=r"the accountant prv has no answer at .*: take pld"):
        solve_account(**setting, accountants=["prv"])
