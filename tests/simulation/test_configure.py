"""Meaning of a configuration, and refusals before anything is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedsink.errors import ConfigError, FedsinkError
from fedsink.privacy import LOCAL_NOISE, NoiseShare, PrivacyPlan, capacity_for
from fedsink.simulation.engine import EngineSettings
from fedsink.simulation.experiment import Experiment
from fedsink.simulation.run_identity import RunIdentity
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings
from fedsink.strategies.privatize_once import PrivatizeOnceSettings
from fedsink.values import strictly

from .conftest import Compose, Configure, write_policy

_LEFT_OUT = object()


def _plan(configured: Configure, *overrides: str) -> PrivacyPlan:
    strategy = configured(*overrides, small=False).server.strategy
    assert isinstance(strategy, DPSinkhornSettings)
    return strategy.plan


@pytest.mark.medium
@pytest.mark.parametrize(
    ("given", "rounds", "sigma", "least", "most"),
    [
        ("eps=3", 3000, None, 0.99 * 3, 3),  # the recipe's rounds, and σ is solved for
        ("sigma=2.5", 3000, 2.5, 0, 10),  # not the recipe's ε: σ is larger than the recipe's
        ("eps=2 sigma=2.5", None, 2.5, 0.97 * 2, 2),  # the most rounds that fit
        ("eps=2 rounds=100", 100, None, 0.99 * 2, 2),
        ("sigma=1.712 rounds=2000", 2000, 1.712, 9.15, 9.17),
        ("eps=9.17 sigma=1.712 rounds=2000", 2000, 1.712, 9.15, 9.17),
    ],
)
def test_what_is_given_of_eps_sigma_and_rounds_gives_the_rest(
    configured: Configure, given: str, rounds: int | None, sigma: float | None,
    least: float, most: float,
) -> None:  # fmt: skip
    plan = _plan(configured, *given.split())
    assert plan.rounds == (rounds or plan.rounds)
    assert plan.noise_multiplier == (sigma or plan.noise_multiplier)
    assert least < plan.epsilon() <= most
    assert plan.rounds % 10 == 0  # whole turns of the class schedule


def test_nothing_given_means_the_recipe(configured: Configure) -> None:
    plan = _plan(configured)
    assert (plan.rate, plan.rounds, plan.delta) == (0.2, 3000, 1e-5)
    assert (plan.clip.name, plan.clip.bound) == ("record", 3.0)
    assert 9.9 < plan.epsilon() <= 10


@pytest.mark.medium
def test_the_other_clip_has_a_recipe_of_its_own(configured: Configure) -> None:
    plan = _plan(configured, "clip=batch", "rounds=20")
    assert (plan.rate, plan.clip.name, plan.clip.bound) == (0.08, "batch", 1.0)
    assert plan.clip.sensitivity == 2.0


@pytest.mark.medium
def test_the_joint_schedule_and_unconditional_runs_use_a_record_every_round(
    configured: Configure,
) -> None:
    assert _plan(configured, "rounds=20", "sigma=1").uses == 2
    assert _plan(configured, "rounds=20", "sigma=1", "strategy.schedule=joint").uses == 20
    assert _plan(configured, "rounds=20", "sigma=1", "conditional=false").uses == 20


def test_nominal_sizes_come_from_the_configuration(configured: Configure) -> None:
    strategy = configured("data.nominal_records=1000", "clients=4").server.strategy
    assert isinstance(strategy, DPSinkhornSettings)
    assert strategy.nominal_records == 250


@pytest.mark.medium
def test_local_mode_matches_cost_and_lam_to_the_mechanism(configured: Configure) -> None:
    strategy = configured("mode=ldp", "eps=35").server.strategy
    assert isinstance(strategy, PrivatizeOnceSettings)
    scale = strategy.plan.image_mechanism.scale
    assert (strategy.effective_cost, strategy.unmatched) == ("l1", False)
    assert strategy.effective_lam == pytest.approx(0.9 * scale)
    gaussian = configured("mode=ldp", "mechanism=gaussian").server.strategy
    assert isinstance(gaussian, PrivatizeOnceSettings)
    assert gaussian.effective_cost == "squared_l2"
    assert gaussian.effective_lam == pytest.approx(0.9 * 2 * gaussian.plan.image_mechanism.scale**2)


@pytest.mark.parametrize(
    ("overrides", "sensitivity"),
    [
        (("map=l1_ball", "map.radius=10"), 20),
        (("map=pixel_range",), 2 * 64),  # pixels in [-1, 1]
        (("mechanism=gaussian", "map=l2_ball", "map.radius=3"), 6),
        (("mechanism=gaussian", "map.block=4"), 2**0.5),
    ],
)
def test_the_papers_own_maps_can_be_chosen_beside_ours(
    configured: Configure, overrides: tuple[str, ...], sensitivity: float
) -> None:
    strategy = configured("mode=ldp", *overrides).server.strategy
    assert isinstance(strategy, PrivatizeOnceSettings)
    assert strategy.plan.map.sensitivity == pytest.approx(sensitivity, rel=1e-5)


@pytest.mark.medium
def test_the_run_and_its_name_travel_in_every_request(composed: Compose, tmp_path: Path) -> None:
    for mode in ("central", "ldp"):
        run = RunIdentity.fresh(1)
        assert Experiment.of(composed(f"mode={mode}"), run).server.strategy.run == run.name


@pytest.mark.medium
def test_the_accountant_solves_and_reports(configured: Configure) -> None:
    strategy = configured("eps=3", "accountant=rdp").server.strategy
    assert isinstance(strategy, DPSinkhornSettings)
    assert strategy.accountant == "rdp"
    assert 0.99 * 3 < strategy.plan.epsilon("rdp") <= 3
    assert strategy.plan.epsilon("pld") < 0.95 * 3


@pytest.mark.medium
def test_the_adjacency_is_the_one_that_the_plan_is_solved_under(configured: Configure) -> None:
    record = _plan(configured, "eps=3", "rounds=20")
    client = _plan(configured, "eps=3", "rounds=20", "clip=batch", "adjacency=client")
    assert (record.adjacency, client.adjacency) == ("add-remove", "client")
    assert 0.99 * 3 < client.epsilon() <= 3
    # All rounds of a client count, unsampled: much more noise.
    assert client.noise_multiplier > 3 * record.noise_multiplier


@pytest.mark.medium
def test_a_capacity_is_taken_or_computed_from_public_numbers(configured: Configure) -> None:
    assert _plan(configured, "sigma=2", "rounds=20").capacity is None
    stated = _plan(configured, "sigma=2", "rounds=20", "capacity=500")
    assert (stated.capacity, stated.nominal_records) == (500, 144)
    found = _plan(configured, "sigma=2", "rounds=20", "capacity=auto")
    assert found.capacity == capacity_for(0.2, 144, found.uses, found.delta)
    assert 0.2 * 144 < found.capacity < 144
    solved = _plan(configured, "sigma=2", "eps=3", "capacity=auto")
    assert solved.epsilon() <= 3


@pytest.mark.slow
def test_secure_noise_and_a_policy_reach_the_node(configured: Configure, tmp_path: Path) -> None:
    assert configured("noise=secure").node.noise == "secure"
    path = write_policy(tmp_path)
    node = configured(f"policy={path}", "clients=3").node
    assert (node.policy, node.noise, node.clients) == (path, "fast", 3)
    assert node.ledger == tmp_path / "state" / "ledger.sqlite"
    assert node.data.name == "digits"
    with pytest.raises(ConfigError, match=r"policy\.toml says noise\.backend='fast'"):
        configured(f"policy={path}", "noise=secure")
    with pytest.raises(ConfigError, match=r"data\.classes is .* but the policy .* state what"):
        configured(f"policy={path}", "data.classes=[a,b]")
    with pytest.raises(ConfigError, match=r"data\.range is \[0\.0, 9\.0\], but .* for null: state"):
        configured(f"policy={path}", "+data.range=[0,9]")
    with pytest.raises(ConfigError, match=r"leave out data\.clients_file=x\.csv"):
        configured(f"policy={path}", "+data.clients_file=x.csv")


@pytest.mark.medium
def test_a_share_of_the_noise_reaches_the_strategy_and_leaves_the_plan(
    configured: Configure,
) -> None:
    local = configured("clients=20").server.strategy
    shared = configured(
        "clients=20", "noise.share=secure_aggregation", "noise.tolerate_dropouts=1"
    ).server.strategy
    assert isinstance(local, DPSinkhornSettings)
    assert isinstance(shared, DPSinkhornSettings)
    assert (local.share, shared.share) == (LOCAL_NOISE, NoiseShare("secure_aggregation", 1))
    assert shared.plan == local.plan
    secure = configured("noise=secure", "noise.share=secure_aggregation")
    assert secure.node.noise == "secure"


@pytest.mark.medium
def test_a_shuffler_is_stated_beside_the_local_guarantee(configured: Configure) -> None:
    def stated(*overrides: str) -> dict[str, Any]:
        return configured("mode=ldp", *overrides).server.strategy.statement("node")

    assert "shuffling" not in stated()
    shuffling = stated("eps=35", "shuffler=trusted")["shuffling"]
    assert shuffling["local_epsilon"] == pytest.approx(35)
    assert (shuffling["epsilon"], shuffling["reports"]) == (None, 1437)  # far beyond the theorem
    small = stated("eps=1", "shuffler=trusted")["shuffling"]
    assert 0 < small["epsilon"] < 1


@pytest.mark.medium
def test_an_unmatched_lam_needs_the_word(configured: Configure) -> None:
    settings = configured("mode=ldp", "strategy.lam=0.5", "strategy.unmatched=true")
    assert isinstance(settings.server.strategy, PrivatizeOnceSettings)
    assert settings.server.strategy.effective_lam == pytest.approx(0.9 * 0.5)
    with pytest.raises(ConfigError, match=r"inverted by cost=l1 .* strategy\.unmatched=true"):
        configured("mode=ldp", "strategy.lam=0.5")


@pytest.mark.medium
@pytest.mark.quick(
    "eps=*", "rate=*", "sigma=0*", "capacity=*", "clients=*", "noise*", "mode=ldp eps*"
)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("eps=0", "eps must be a finite number > 0, received 0"),
        ("eps=-3", "received -3"),
        ("eps=nan", "received nan"),
        ("eps=abc", "received 'abc'"),
        ("eps=-inf", "eps must be a finite number > 0"),
        ("eps=inf sigma=1", "eps=inf adds no noise, so sigma=1"),
        ("eps=inf mode=ldp", "eps=inf belongs to mode=central"),
        ("eps=inf capacity=0", "capacity must be null, auto or a whole number"),
        ("eps=inf rate=0", "rate must lie in"),
        ("mode=ldp eps=0", "eps must be a positive number, not 0"),
        ("eps=3 sigma=1.712 rounds=2000", "not eps=3: leave one"),
        ("delta=0", "delta must lie in"),
        ("delta=1", "delta must lie in"),
        ("rate=0", "rate must lie in"),
        ("rate=1.5", "received 1.5"),
        ("sigma=-1", "sigma must be a finite number > 0, received -1"),
        ("sigma=0", "sigma must be a finite number > 0, received 0"),
        ("mode=ldp sigma=-1", "must be a finite number > 0, received -1"),
        ("rounds=0", "rounds must be"),
        ("rounds=2.5", "rounds must be"),
        ("mode=ldp rounds=0", "rounds must be a whole number of at least 1, not 0"),
        ("clients=0", "clients must be a whole number of at least 1, not 0"),
        ("clients=1.5", "clients must be a whole number of at least 1, not 1.5"),
        ("seed=-1", "seed must be a whole number of at least 0, not -1"),
        ("seed=1.5", "seed must be a whole number of at least 0, not 1.5"),
        ("seed=true", "seed must be a whole number of at least 0, not True"),
        ("observation.noise.std=-1", "noise.std must be a number of at least 0, not -1"),
        (
            "data=half_circle mode=ldp observation.deformation.std=0.1",
            "observation.* is for images (C, H, W), and the data's shape is (2,)",
        ),
        ("conditional=maybe", "conditional is true or false, not 'maybe'"),
        ("strategy.schedule=x", "strategy.schedule is class or joint, not 'x'"),
        ("strategy.solver=x", 'Unknown solver "x"'),
        ("strategy.backend=x", 'Unknown backend "x": choose one of native, geomloss, keops'),
        ("clip=batch strategy.backend=geomloss", "only the annealed schedule: set solver=annealed"),
        (
            "strategy.backend=geomloss strategy.solver=annealed",
            "strategy.backend=geomloss belongs to clip=batch",
        ),
        (
            "clip=batch capacity=20 strategy.backend=geomloss strategy.solver=annealed",
            "strategy.backend=geomloss has no fixed work: its time depends on the records, which "
            "capacity= is there to hide",
        ),
        ("mode=ldp strategy.backend=x", 'Unknown backend "x"'),
        ("mode=ldp strategy.backend=geomloss", "only the annealed schedule: set solver=annealed"),
        ("mode=ldp strategy.solver=x", 'Unknown solver "x"'),
        (
            "mode=ldp strategy.loss=noisy_w1 strategy.backend=geomloss strategy.solver=annealed",
            "strategy.loss=noisy_w1 is exact transport, which strategy.backend=geomloss does not",
        ),
        ("strategy.self_term=x", "strategy.self_term='x' is unknown; choose one of history, semi"),
        ("strategy.m=abc", "strategy.m must be a number of at least 0, not 'abc'"),
        ("strategy.lam=0", "strategy.lam must be a positive number, not 0"),
        ("strategy.rows=0", "strategy.rows must be a whole number of at least 1, not 0"),
        ("strategy.history=0", "strategy.history must be a whole number"),
        ("strategy.p=7", "strategy.p must be in"),
        ("strategy.bound=0", "bound must be a finite number > 0"),
        ("strategy.optimizer.lr=abc", "optimizer.lr must be a positive number, not 'abc'"),
        ("strategy.optimizer.betas=3", "The configuration of strategy.optimizer is mistyped"),
        ("strategy.optimizer.lr=0", "optimizer.lr must be a positive number"),
        ("strategy.optimizer.betas=[1]", "optimizer.betas must be two numbers"),
        ("strategy.optimizer.schedule=x", "optimizer.schedule is cosine or constant, not 'x'"),
        ("+strategy.optimizer.x=1", "Unknown key strategy.optimizer.x; there are lr, betas"),
        ("+strategy.x=1", "Unknown key strategy.x: strategy=dp_sinkhorn has no such option"),
        ("mode=ldp +strategy.x=1", "strategy=privatize_once has no such option"),
        ("+report.timeout=5", "Unknown key report.timeout; there are checkpoint_seconds, pic"),
        ("+engine.x=1", "Unknown key engine.x; there are name, timeout"),
        ("+x=1", "Unknown key x; there are mode, data"),
        ("engine=deploy", "engine.name is auto, ray, local or flower, not 'deploy'"),
        ("accountant=x", "accountant='x' is unknown; choose one of pld, prv, rdp, rdp-"),
        ("adjacency=x", "adjacency 'x' is unknown: choose one of add-remove, replace-one"),
        ("adjacency=client", "Give a capacity or use the batch clip"),
        ("capacity=2000", "capacity=2000 is more than all of the 1437 nominal records: lower it"),
        ("capacity=0", "capacity must be null, auto or a whole number of at least 1, not 0"),
        ("capacity=x", "capacity must be null, auto or a whole number of at least 1, not 'x'"),
        ("capacity=true", "capacity must be null, auto or a whole number of at least 1, not True"),
        ("noise.backend=x", "noise.backend is fast or secure, not 'x'"),
        ("noise.share=x", "noise.share is local or secure_aggregation, not 'x'"),
        ("noise.share=null", "noise.share is local or secure_aggregation, not None"),
        ("noise.tolerate_dropouts=1", "=1 belongs to noise.share=secure_aggregation"),
        (
            "clients=20 noise.share=secure_aggregation noise.tolerate_dropouts=2",
            "noise.tolerate_dropouts=2 must be below the smallest cohort, and 2 of clients=20",
        ),
        (
            "noise.share=secure_aggregation noise.tolerate_dropouts=x",
            "noise.tolerate_dropouts must be a whole number of at least 0, not 'x'",
        ),
        ("+noise.x=1", "Unknown key noise.x; there are backend, share, tolerate_dropouts"),
        ("mode=ldp noise.share=secure_aggregation", "secure_aggregation belongs to mode=central"),
        ("mode=ldp noise.share=x", "noise.share is local or secure_aggregation, not 'x'"),
        ("eps=inf noise.share=secure_aggregation", "has nothing to share where eps=inf adds no"),
        ("eps=inf noise.draw=sum", "noise.draw=sum draws nothing where eps=inf adds no"),
        ("noise=secure seed=1", "cannot be repeated: leave out seed=1"),
        ("policy=nowhere.toml", "nowhere.toml cannot be read"),
        ("policy=nowhere.toml seed=1", "leave out seed=1 or policy="),
        ("shuffler=x", "shuffler is none or trusted, not 'x'"),
        ("shuffler=trusted", "shuffler=trusted belongs to mode=ldp"),
        ("mode=ldp shuffler=trusted shuffler_delta=0", "delta"),
        ("mode=ldp shuffler=trusted shuffler_delta=x", "shuffler_delta must be a number"),
        ("mode=ldp adjacency=client", "adjacency=client belongs to mode=central"),
        ("mode=ldp accountant=rdp", "accountant=rdp belongs to mode=central"),
        ("mode=ldp capacity=5", "capacity=5 belongs to mode=central"),
        ("strategy.uses_per_message=0", "strategy.uses_per_message must be a whole number"),
        ("strategy.uses_per_message=1.5", "uses_per_message must be a whole number"),
        ("engine.name=x", "engine.name is auto, ray, local or flower, not 'x'"),
        ("engine.threads=0", "engine.threads must be a whole number of at least 1, not 0"),
        ("engine.device=x", "engine.device is cpu or cuda, not 'x'"),
        ("engine=ray engine.timeout=0", "engine.timeout must be null or a positive number, not 0"),
        ("engine=ray engine.num_cpus=0.5", "must be null or a whole number of at least 1, not 0.5"),
        ("engine=ray engine.num_cpus=1.5", "must be null or a whole number of at least 1, not 1.5"),
        (
            "partition=unequal +partition.sizes=[1,true]",
            "sizes must be a positive number, not True",
        ),
        ("engine=flower engine.num_cpus=0", "num_cpus must be null or a positive number, not 0"),
        ("engine=ray engine.actors=0", "engine.actors must be null or a whole number of at"),
        ("engine=ray engine.num_gpus=-1", "engine.num_gpus must be a number of at least 0, not -1"),
        ("report.pictures=-1", "report.pictures must be a whole number of at least 0, not -1"),
        ("report.checkpoint_seconds=x", "report.checkpoint_seconds must be a number of at least 0"),
        ("partition.seed=-1", "partition.seed must be a whole number of at least 0, not -1"),
        ("partition.name=x", "partition.name='x' is unknown"),
        ("data.shape=[a]", "data.shape must be (channels, height, width)"),
        ("data.nominal_records=0", "data.nominal_records must be a whole number of at least 1"),
        ("mode=ldp mechanism.label_eps=35", "leaves nothing of eps=35 for the image"),
        ("mode=ldp mechanism.label_eps=-1", "must be a finite number > 0, received -1"),
        ("mode=ldp eps=10 sigma=0.1", "not eps=10 in all: leave eps or sigma out"),
        ("mode=ldp mechanism=gaussian delta=0", "delta must lie in"),
        ("mode=ldp strategy.unmatched=no", "strategy.unmatched is true or false, not 'no'"),
        ("mode=ldp strategy.chunk_size=0", "strategy.chunk_size must be a whole number"),
        ("mode=ldp strategy.finite_batch_factor=2", "finite_batch_factor must be in (0, 1]"),
        ("mode=ldp strategy.batch=1", "strategy.batch must be a whole number of at least 2"),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(
    configured: Configure, overrides: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(FedsinkError, match=re.escape(message)) as caught:
        configured(*overrides.split())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("mode", "place", "value", "message"),
    [
        ("central", "clip", "x", "clip is record or batch, not 'x'"),
        ("central", "mode", "x", "mode is central or ldp, not 'x'"),
        ("central", "clients", None, "clients must be a whole number of at least 1, not None"),
        ("central", "mechanism.name", "laplace", "mechanism=laplace belongs to mode=ldp"),
        ("central", "strategy.name", "privatize_once", "central runs strategy=dp_sinkhorn"),
        ("ldp", "strategy.name", "dp_sinkhorn", "mode=ldp runs strategy=privatize_once"),
        ("central", "partition", _LEFT_OUT, "The configuration lacks partition"),
        ("central", "strategy.rows", _LEFT_OUT, "The configuration lacks strategy.rows"),
        ("central", "strategy.optimizer", _LEFT_OUT, "The configuration lacks strategy.optimizer"),
    ],
)
def test_a_hand_written_configuration_is_checked_as_well(
    composed: Compose, tmp_path: Path, mode: str, place: str, value: object, message: str
) -> None:
    config = composed(f"mode={mode}", "seed=0")
    group, _, key = place.rpartition(".")
    options = config[group] if group else config
    del options[key]
    if value is not _LEFT_OUT:
        options[key] = value
    with pytest.raises(ConfigError, match=re.escape(message)):
        Experiment.of(config, RunIdentity.fresh(0))


def test_strictly_names_an_incomplete_configuration() -> None:
    with pytest.raises(ConfigError, match=r"The configuration lacks engine\.name"):
        strictly(EngineSettings, {}, "engine")
    assert strictly(EngineSettings, {"name": "local"}, "engine").threads == 1


@pytest.mark.medium
def test_a_selection_of_clients(configured: Configure, tmp_path: Path) -> None:
    for more in ((), ("partition=unequal",), (f"policy={write_policy(tmp_path)}",)):
        node = configured("clients=5", "partition.keep=[4,0]", *more).node
        assert (node.clients, node.keep) == (5, (4, 0))
    for bad, message in (
        ("partition.keep=3", "partition.keep is null or a list of numbers of clients, not 3"),
        ("partition.keep=[a,b]", "each once: 'a' is"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            configured("clients=5", bad)
