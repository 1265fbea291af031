from __future__ import annotations

import math
import re

import pytest

from fedsink.conf.acting import compose_config
from fedsink.configuration import Configuration
from fedsink.errors import ConfigError, FedsinkError, PrivacyError
from fedsink.privacy import (
    ADJACENCIES,
    BatchClip,
    Cost,
    CriticClip,
    JointSchedule,
    NoiseShare,
    PickSchedule,
    PrivacyPlan,
    RowClip,
    TurnSchedule,
    UnprotectedPlan,
)
from fedsink.privacy.accounting.accountants import gaussian_epsilon
from fedsink.strategies.gs_wgan import GSWGANSettings, gs_wgan_epsilon
from fedsink.strategies.methods import settings_of


def settings(*overrides: str) -> GSWGANSettings:
    chosen = settings_of(config("strategy=gs_wgan", *overrides), "run")
    assert isinstance(chosen, GSWGANSettings)
    return chosen


def config(*overrides: str) -> Configuration:
    return Configuration.read(compose_config(["mode=central", "data=digits", *overrides]))


def plan(*overrides: str) -> PrivacyPlan:
    chosen = settings(*overrides).plan
    assert isinstance(chosen, PrivacyPlan)
    return chosen


@pytest.mark.medium
def test_the_clip_is_the_critics_without_a_word() -> None:
    assert config("strategy=gs_wgan").clip == "critic"
    assert (config().clip, config("clip=batch").clip) == ("record", "batch")
    chosen = settings("strategy.critics=7", "strategy.bound=0.5")
    assert chosen.plan.clip == CriticClip(0.5, 7)
    assert chosen.critics.training.critics == 7
    assert (chosen.plan.rate, chosen.plan.schedule) == (1.0, JointSchedule())
    for clip in ("record", "batch"):
        with pytest.raises(ConfigError, match=f"leave out clip={clip}"):
            settings(f"clip={clip}")


@pytest.mark.parametrize("data", ["digits", "mnist", "fashion_mnist", "half_circle"])
def test_every_dataset_has_a_recipe(data: str) -> None:
    assert 9.9 < settings(f"data={data}").plan.epsilon() <= 10.0


@pytest.mark.medium
def test_a_method_has_values_of_its_own_for_a_dataset() -> None:
    """Holds whatever the recipe of the dataset says for other methods."""
    assert config("strategy=gs_wgan", "data=mnist").recipe["view"]["radius"] == 10
    assert config("data=mnist").recipe["view"]["radius"] == 14


@pytest.mark.medium
def test_any_two_of_eps_sigma_and_rounds_give_the_third() -> None:
    """R uses are one Gaussian of multiplier σ/√R: no error of an accountant."""
    assert plan("eps=10", "rounds=20").noise_multiplier == pytest.approx(2.236, rel=1e-3)
    assert plan("sigma=2.2361", "eps=10").rounds == 20
    assert plan("sigma=2.2361", "rounds=20").epsilon() == pytest.approx(10.0, abs=0.01)
    assert plan("eps=1", "rounds=300").noise_multiplier == pytest.approx(64.62, rel=1e-3)


@pytest.mark.medium
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user"])
def test_all_adjacencies_of_records_cost_the_same(adjacency: str) -> None:
    chosen = settings("sigma=2.2361", "rounds=20", f"adjacency={adjacency}")
    stated = chosen.statement("reproducible")
    assert stated["epsilon"] == pytest.approx(10.0, abs=0.01)
    assert stated["adjacency_name"] == adjacency
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user"}
    assert stated["unit"] == ("user" if adjacency == "user" else "record")
    assert "No sampling is assumed" in stated["sample_secrecy"]
    assert stated["epsilon_unamplified"] == stated["epsilon"]
    assert "subsampling" not in stated["not_protected"]
    assert "larger guarantee" not in stated["not_protected"]
    assert stated["rounds_per_record"] == 20


@pytest.mark.medium
def test_critics_may_be_asked_in_secret_and_privacy_json_says_what_that_assumes() -> None:
    chosen = settings("rate=0.2", "rounds=20", "eps=10")
    stated = chosen.statement("reproducible")
    assert (stated["rate"], chosen.plan.rate) == (0.2, 0.2)
    assert 9.9 < stated["epsilon"] <= 10.0
    assert stated["epsilon_unamplified"] > 20.0
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user"}
    assert stated["mechanism"].startswith("Poisson-subsampled Gaussian on the sum of critics'")
    assert "All are trained, asked or not" in stated["sample_secrecy"]
    assert "Which critics are asked has to stay secret" in stated["not_protected"]
    assert "which critics were asked: against whoever learns it" in str(chosen.notice(stated))


@pytest.mark.medium
def test_clients_as_units_are_asked_in_secret_for_nothing() -> None:
    """No amplification is claimed, so the plan assumes none either."""
    chosen = settings("rate=0.2", "rounds=20", "eps=10", "adjacency=client", "strategy.critics=1")
    stated = chosen.statement("reproducible")
    assert stated["epsilon_unamplified"] == stated["epsilon"]
    assert chosen.plan.noise_multiplier == pytest.approx(2.236, rel=1e-3)
    assert "Which critics are asked" not in stated["not_protected"]


@pytest.mark.medium
def test_a_client_costs_a_multiplier_of_as_many_critics() -> None:
    one = plan("adjacency=client", "strategy.critics=1", "sigma=2", "rounds=20")
    three = plan("adjacency=client", "strategy.critics=3", "sigma=6", "rounds=20")
    assert three.epsilon() == pytest.approx(one.epsilon())
    of_record = plan("strategy.critics=3", "sigma=2", "rounds=20")
    assert of_record.epsilon() == pytest.approx(one.epsilon())
    stated = settings("adjacency=client", "strategy.critics=1").statement("reproducible")
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user", "client"}
    assert (stated["unit"], stated["critics"]) == ("client", 1)
    stated = settings("adjacency=client", "strategy.critics=3").statement("reproducible")
    assert set(stated["adjacencies"]) == {"client"}


@pytest.mark.medium
def test_turns_divide_the_uses() -> None:
    chosen = plan("clients=50", "strategy.turns=50", "rounds=1000", "eps=10")
    assert chosen.schedule == TurnSchedule(50)
    assert chosen.uses == 20
    assert chosen.noise_multiplier == pytest.approx(2.236, rel=1e-3)
    with pytest.raises(ConfigError, match="turns=11 leaves rounds in which none of clients=10"):
        settings("strategy.turns=11")


@pytest.mark.medium
def test_noise_may_be_shared_by_those_who_answer_together() -> None:
    chosen = settings("clients=9", "strategy.turns=2", "noise.share=secure_aggregation")
    assert chosen.share == NoiseShare("secure_aggregation")
    assert [chosen.noise_of(client)[0] for client in (0, 1)] == [5, 4]
    stated = chosen.statement("reproducible")
    assert [cohort["clients"] for cohort in stated["noise_share"]["cohorts"]] == [4, 5]
    notice = chosen.notice(stated)
    assert notice is not None
    assert "noise.share=secure_aggregation" in notice


def test_without_privacy_nothing_is_clipped_or_noised() -> None:
    chosen = settings("eps=inf", "rounds=30", "strategy.turns=2")
    assert chosen.plan == UnprotectedPlan(1.0, 30, "critic", TurnSchedule(2))
    assert chosen.statement("reproducible")["epsilon"] is None


PUBLISHED = ("strategy.published=true", "strategy.critics=1", "strategy.rows=32", "clients=1000")


def test_the_published_form_has_the_published_clip_noise_and_picks() -> None:
    chosen = settings(*PUBLISHED, "strategy.row_sigma=1.07", "rounds=20000", "seed=1",
                      "strategy.bound=0.5")  # fmt: skip
    plan = chosen.plan
    assert isinstance(plan, PrivacyPlan)
    assert (plan.clip, plan.schedule, plan.rate) == (RowClip(0.5, 32), PickSchedule(1000, 1), 1.0)
    assert plan.noise_multiplier == pytest.approx(1.07 / math.sqrt(32))
    assert plan.noise_std == pytest.approx(2 * 0.5 * 1.07)
    assert plan.uses == 36
    assert plan.epsilon() == pytest.approx(637, abs=0.6)


@pytest.mark.medium
@pytest.mark.quick("user")
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user", "client"])
def test_privacy_json_of_the_published_form_says_what_is_proved_and_what_is_claimed(
    adjacency: str,
) -> None:
    chosen = settings(*PUBLISHED, "strategy.row_sigma=1.07", "rounds=20000", "seed=1",
                      f"adjacency={adjacency}")  # fmt: skip
    stated = chosen.statement("reproducible")
    assert stated["epsilon"] == stated["clients"][7]["epsilon"]
    assert stated["epsilon"] == gaussian_epsilon(stated["sigma"] / math.sqrt(36), 1e-5)
    assert stated["epsilon"] == pytest.approx(637, abs=0.6)
    assert stated["epsilon_published"] == pytest.approx(9.993, abs=1e-3)
    assert stated["epsilon_published_meaning"] == "the paper's claim (Theorem A.1), not proved"
    assert (stated["clip"], stated["schedule"], stated["pick_seed"]) == ("row", "pick", 1)
    assert stated["row_sigma"] == pytest.approx(1.07)
    assert stated["noise_std"] == pytest.approx(2.14)
    assert stated["sensitivity"] == pytest.approx(2 * math.sqrt(32))
    assert (stated["rounds_per_record"], stated["critics"]) == (36, 1)
    assert "each row of which is clipped by itself" in stated["mechanism"]
    assert set(stated["adjacencies"]) == {"add-remove", "replace-one", "user", "client"}
    notice = chosen.notice(stated)
    assert notice is not None
    assert "ε = 637.4 is what can be proved; 9.993 is the paper's claim (Theorem A.1)" in notice
    for other, promise in (
        (settings(), r"ε = [\d.]+, δ = 1e-05 per record\."),
        (settings("eps=inf", *PUBLISHED), None),
    ):
        stated = other.statement("reproducible")
        assert "epsilon_published" not in stated
        notice = other.notice(stated)
        assert notice is None if promise is None else re.fullmatch(promise, notice or "")


@pytest.mark.slow
def test_the_published_form_may_be_calibrated_to_an_epsilon_that_holds() -> None:
    chosen = settings(*PUBLISHED, "eps=10", "rounds=2000")
    stated = chosen.statement("reproducible")
    assert 9.99 < stated["epsilon"] <= 10
    assert stated["noise_std"] == pytest.approx(2 * stated["row_sigma"])
    claimed = gs_wgan_epsilon(stated["row_sigma"], uses=64_000, critics=1000, delta=1e-5)
    assert stated["epsilon_published"] == claimed < 0.5
    solved = settings(*PUBLISHED, "eps=10", f"strategy.row_sigma={stated['row_sigma']}").plan
    assert solved.rounds >= 2000
    assert solved.uses == chosen.plan.uses
    secret, seeded = (settings(*PUBLISHED, f"seed={seed}").plan for seed in ("null", "0"))
    assert secret == seeded


@pytest.mark.medium
def test_without_privacy_the_published_form_picks_clients_alone() -> None:
    chosen = settings(*PUBLISHED, "eps=inf", "rounds=30")
    assert chosen.plan == UnprotectedPlan(1.0, 30, "row", PickSchedule(1000))


@pytest.mark.medium
def test_the_reduced_published_run_is_what_its_name_says() -> None:
    chosen = settings("experiment=gs_wgan_published_digits", "seed=0")
    plan = chosen.plan
    assert (plan.clip, plan.schedule, plan.rounds) == (RowClip(1.0, 30), PickSchedule(100), 1500)
    stated = chosen.statement("reproducible")
    assert stated["row_sigma"] == pytest.approx(1.07)
    assert (stated["rounds_per_record"], round(stated["epsilon"])) == (25, 436)
    assert stated["epsilon_published"] == pytest.approx(33.06, abs=0.01)


@pytest.mark.medium
@pytest.mark.quick("*noise.share*", "*capacity=5*", "*row_sigma=0*", "*adjacency=*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["strategy.critics=2"],
            "excludes strategy.critics=2: a client has one critic, so set",
        ),
        (["strategy.turns=5"], "excludes strategy.turns=5: clients are picked at random"),
        (["noise.share=secure_aggregation"], "excludes noise.share=secure_aggregation: one"),
        (
            ["strategy.critic.mismatch=0.5"],
            "excludes strategy.critic.mismatch=0.5: its critics",
        ),
        (["policy=x.toml"], "excludes policy=x.toml: a node under a policy never answers it"),
        (["adjacency=nobody"], "adjacency 'nobody' is unknown"),
        (["rate=0.001"], "clip=row has only rate=1"),
        (["capacity=5"], "clip=row draws no batch of records, so capacity=5"),
        (["strategy.row_sigma=1", "sigma=1"], "strategy.row_sigma=1 and sigma=1 both state"),
        (["strategy.row_sigma=0"], "strategy.row_sigma must be null or a positive number"),
        (["strategy.row_sigma=1", "eps=inf"], "eps=inf adds no noise, so strategy.row_sigma=1 has"),
        (["strategy.row_sigma=9", "eps=1", "rounds=20000"], "cost ε = .*, not eps=1: leave one"),
        (["strategy.rows=0"], "strategy.rows must be a whole number of at least 1"),
        (["noise.tolerate_dropouts=1"], "noise.tolerate_dropouts=1 belongs to noise.share"),
        (["strategy.published=1"], "strategy.published is true or false, not 1"),
        (["strategy.published=false", "strategy.row_sigma=1"], "or set strategy.published=true"),
    ],
    ids=str,
)
def test_what_the_published_form_has_not_is_refused_by_name(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(FedsinkError, match=message):
        settings(*PUBLISHED, *overrides)


def test_critics_are_described_by_the_configuration() -> None:
    chosen = settings("strategy.critic.kind=convolution", "strategy.critic.hidden=4",
                      "strategy.critic.late=0.5", "conditional=false")  # fmt: skip
    assert (chosen.critics.kind, chosen.critics.hidden, chosen.critics.classes) == (
        "convolution", 4, 1,
    )  # fmt: skip
    assert chosen.critics.training.late == 0.5


@pytest.mark.quick("*capacity=5*", "*rate=1.5*", "*adjacency=*", "*critics=0*", "*turns=0*")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["capacity=5"], "clip=critic draws no batch of records"),
        (["rate=1.5"], "rate must lie in"),
        (["adjacency=nobody"], "adjacency"),
        (["mechanism.name=laplace"], "mode=central noises gradients"),
        (["shuffler=trusted"], "shuffler=trusted belongs to mode=ldp"),
        (["strategy.rows=0"], "strategy.rows must be"),
        (["strategy.fakes=2.5"], "strategy.fakes must be"),
        (["strategy.critics=0"], "critics must be"),
        (["strategy.critics=20000"], "critics must be at most 16384"),
        (["strategy.turns=0"], "turns must be"),
        (["strategy.critic.kind=forest"], "A critic is a perceptron or a convolution"),
        (["strategy.critic.hidden=99999"], "the critics' width must be"),
        (["strategy.critic.scale=0"], "the scale of a critic's coordinates"),
        (["strategy.critic.batch=0"], "batch must be"),
        (["+strategy.critic.depth=3"], "Unknown key strategy.critic.depth"),
        (["strategy.critics=16000", "strategy.critic.hidden=300"], "weights, where"),
        (["strategy.critics=16000", "strategy.critic.batch=9999"], "pairs in the first round"),
        (["+strategy.depth=3"], "Unknown key strategy.depth"),
        (["eps=inf", "sigma=1"], "eps=inf adds no noise"),
        (["eps=inf", "noise.share=secure_aggregation"], "has nothing to share"),
    ],
    ids=str,
)
def test_wrong_values_are_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(FedsinkError, match=message):
        settings(*overrides)


ROUNDS, ROWS, CRITICS, DELTA, SIGMA = 20_000, 32, 1000, 1e-5, 1.07


def test_the_published_epsilon_is_reproduced():
    claimed = gs_wgan_epsilon(SIGMA, uses=ROUNDS * ROWS, critics=CRITICS, delta=DELTA)
    assert claimed == pytest.approx(9.993, abs=1e-3)


def test_the_published_federated_epsilon_is_reproduced():
    claimed = gs_wgan_epsilon(SIGMA, uses=30_000 * ROWS, critics=CRITICS, delta=DELTA)
    assert claimed == pytest.approx(12.7, abs=0.05)


@pytest.mark.medium
@pytest.mark.quick("add-remove-329")
@pytest.mark.parametrize(("adjacency", "proved"), [("add-remove", 329), ("replace-one", 347)])
def test_rows_that_are_selected_together_cost_what_one_gaussian_of_all_of_them_does(
    adjacency, proved
):
    """Clipped row by row, 32 rows move by √32 times the sensitivity of one."""
    cost = Cost(BatchClip(1.0), JointSchedule(), adjacency)
    found = cost.epsilon(1 / CRITICS, SIGMA / math.sqrt(ROWS), ROUNDS, DELTA)
    assert found == pytest.approx(proved, abs=0.6)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("schedule", "uses", "proved"),
    [(TurnSchedule(CRITICS), 20, 379), (PickSchedule(CRITICS, 1), 36, 637)],
    ids=["in turn", "picked"],
)
def test_clients_that_the_server_chooses_cost_their_uses(schedule, uses, proved, adjacency):
    """Holds for every unit: no choice is secret, and a client has one critic."""
    clip = RowClip(1.0, ROWS)
    sigma = SIGMA / math.sqrt(ROWS)
    plan = PrivacyPlan(1.0, sigma, ROUNDS, clip, schedule, DELTA, adjacency=adjacency)
    assert plan.noise_std == pytest.approx(2 * clip.bound * SIGMA)
    assert plan.uses == plan.event.count == uses
    assert plan.epsilon() == pytest.approx(proved, abs=0.6)
    assert plan.published


@pytest.mark.medium
def test_more_uses_less_noise_and_fewer_critics_cost_more():
    costs = [
        gs_wgan_epsilon(SIGMA, uses=1000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA, uses=2000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA / 2, uses=2000, critics=CRITICS, delta=DELTA),
        gs_wgan_epsilon(SIGMA / 2, uses=2000, critics=CRITICS // 2, delta=DELTA),
    ]
    assert costs == sorted(costs)
    assert len(set(costs)) == 4


def test_bad_values_are_refused():
    for options, message in (
        ({"sigma": 0.0}, "sigma must be a finite number > 0"),
        ({"uses": 0}, "uses must be an integer"),
        ({"critics": 0}, "critics must be an integer"),
        ({"delta": 1.0}, "delta must lie in"),
    ):
        values = {"sigma": 1.0, "uses": 10, "critics": 10, "delta": 1e-5} | options
        with pytest.raises(PrivacyError, match=message):
            gs_wgan_epsilon(values.pop("sigma"), **values)
