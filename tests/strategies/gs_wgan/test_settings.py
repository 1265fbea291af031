from __future__ import annotations

import pytest

from fedsink.configuration import Configuration
from fedsink.errors import ConfigError, FedsinkError
from fedsink.privacy import (
    CriticClip,
    JointSchedule,
    NoiseShare,
    PrivacyPlan,
    TurnSchedule,
    UnprotectedPlan,
)
from fedsink.server.compose import compose_config
from fedsink.strategies import GSWGANSettings
from fedsink.strategies.registry import settings_of


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


def test_a_method_has_values_of_its_own_for_a_dataset() -> None:
    """Whatever the recipe of the dataset says for other methods."""
    assert config("strategy=gs_wgan", "data=mnist").recipe["view"]["radius"] == 10
    assert config("data=mnist").recipe["view"]["radius"] == 14


def test_any_two_of_eps_sigma_and_rounds_give_the_third() -> None:
    """R uses are one Gaussian of multiplier σ/√R: no error of an accountant."""
    assert plan("eps=10", "rounds=20").noise_multiplier == pytest.approx(2.236, rel=1e-3)
    assert plan("sigma=2.2361", "eps=10").rounds == 20
    assert plan("sigma=2.2361", "rounds=20").epsilon() == pytest.approx(10.0, abs=0.01)
    assert plan("eps=1", "rounds=300").noise_multiplier == pytest.approx(64.62, rel=1e-3)


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


def test_turns_divide_the_uses() -> None:
    chosen = plan("clients=50", "strategy.turns=50", "rounds=1000", "eps=10")
    assert chosen.schedule == TurnSchedule(50)
    assert chosen.uses == 20
    assert chosen.noise_multiplier == pytest.approx(2.236, rel=1e-3)
    with pytest.raises(ConfigError, match="turns=11 leaves rounds in which none of clients=10"):
        settings("strategy.turns=11")


def test_noise_may_be_shared_by_those_who_answer_together() -> None:
    chosen = settings("clients=9", "strategy.turns=2", "noise.share=secure_aggregation")
    assert chosen.share == NoiseShare("secure_aggregation")
    assert [chosen.sharers(client) for client in (0, 1)] == [5, 4]
    stated = chosen.statement("reproducible")
    assert [cohort["clients"] for cohort in stated["noise_share"]["cohorts"]] == [4, 5]
    notice = chosen.notice(stated)
    assert notice is not None
    assert "noise.share=secure_aggregation" in notice


def test_without_privacy_nothing_is_clipped_or_noised() -> None:
    chosen = settings("eps=inf", "rounds=30", "strategy.turns=2")
    assert chosen.plan == UnprotectedPlan(1.0, 30, "critic", TurnSchedule(2))
    assert chosen.statement("reproducible")["epsilon"] is None


def test_critics_are_described_by_the_configuration() -> None:
    chosen = settings("strategy.critic.kind=convolution", "strategy.critic.hidden=4",
                      "strategy.critic.late=0.5", "conditional=false")  # fmt: skip
    assert (chosen.critics.kind, chosen.critics.hidden, chosen.critics.classes) == (
        "convolution", 4, 1,
    )  # fmt: skip
    assert chosen.critics.training.late == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["capacity=5"], "clip=critic draws no batch of records"),
        (["rate=0.5"], "clip=critic has rate=1 alone"),
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


def test_the_fused_engine_plays_another_method() -> None:
    with pytest.raises(ConfigError, match="needs engine=local, ray or flower, not engine=fused"):
        settings().check_engine("fused")
