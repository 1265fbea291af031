from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsink.data.partition import Unequal
from fedsink.errors import ClientError, ConfigError
from fedsink.privacy import Laplace, Stream
from fedsink.protocol.privatize_once import LocalPlan, PrivatizeReply, PrivatizeRequest
from fedsink.server import checkpoint
from fedsink.strategies.losses import LabelStrata
from fedsink.strategies.privatize_once import local_plan
from fedsink.transport import ConvergedSolver, cost_named, transport_gradient

from ..support.models import weights
from ..support.playing import collect, play


def altered(change: Callable[[PrivatizeReply], PrivatizeReply], client: int = 1) -> Any:
    def apply(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if reply.metadata.src_node_id == 1000 + client:
                read = PrivatizeReply.from_record(reply.content)
                reply.content = change(read).to_record()
        return replies

    return apply


def test_records_are_collected_once_in_chunks(make_local, make_grid):
    """Pitfall 9: a second configure_train asks nothing."""
    strategy, grid = make_local(), make_grid()
    play(strategy, grid, 1)
    asked = [m for m in grid.asked if m.metadata.message_type == "train.privatize_once"]
    chunks = [PrivatizeRequest.from_record(m.content).chunk for m in asked]
    assert chunks == [0] * 3 + [1] * 3 + [2] * 3  # 21, 20 and 20 records by eights
    assert strategy.uploads()["values"].shape == (61, 4)
    assert strategy.uploads()["labels"].shape == (61,)
    play(strategy, grid)
    assert len(grid.asked) == 9


def test_fewer_reports_than_a_shuffled_epsilon_is_stated_for_are_refused(make_local, make_grid):
    enough = make_local(shuffling={"epsilon": 0.3, "reports": 61})
    collect(enough, make_grid())
    short = make_local(shuffling={"epsilon": 0.3, "reports": 62})
    with pytest.raises(ConfigError, match="62 shuffled reports, and there are 61"):
        collect(short, make_grid())
    with pytest.raises(ConfigError, match="62 shuffled reports, and there are 61"):
        short.load_uploads(enough.uploads())
    assert short.epsilon_so_far() == 0.0


def test_clients_with_fewer_chunks_are_not_asked_further(make_local, make_grid):
    strategy, grid = make_local(), make_grid(partition=Unequal(sizes=(43, 17, 1)))
    collect(strategy, grid)
    asked = [m for m in grid.asked if m.metadata.message_type == "train.privatize_once"]
    assert [m.metadata.dst_node_id - 1000 for m in asked].count(0) == 6
    assert [m.metadata.dst_node_id - 1000 for m in asked].count(2) == 1
    assert len(strategy.uploads()["values"]) == 61


@pytest.mark.parametrize("size", [1, 20, 21, 1000])
def test_the_chunk_size_does_not_change_what_arrives(make_local, make_grid, size):
    ours, other = make_local(), make_local(chunk_size=size)
    collect(ours, make_grid())
    collect(other, make_grid())
    assert torch.equal(ours.uploads()["values"], other.uploads()["values"])
    assert torch.equal(ours.uploads()["labels"], other.uploads()["labels"])


def test_the_order_of_replies_does_not_matter(make_local, make_grid):
    ends = []
    for order in (lambda r: r, lambda r: r[::-1]):
        strategy, grid = make_local(), make_grid()
        grid.change = order
        play(strategy, grid)
        ends.append(weights(strategy.trainer.generator))
    assert torch.equal(ends[0], ends[1])


def test_the_prior_is_estimated_from_the_randomized_labels(make_local, make_grid, local_plan):
    """Pitfall 17: class frequencies are not read from private labels."""
    strategy = make_local(plan=replace(local_plan, label_epsilon=1.0))
    collect(strategy, make_grid())
    mechanism = strategy.settings.plan.label_mechanism
    assert mechanism is not None
    expected = mechanism.estimate_prior(strategy.uploads()["labels"])
    assert strategy.label_prior().tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert strategy.label_prior().dtype == torch.float32


def test_without_labels_there_is_one_class(make_local, make_grid, local_plan):
    strategy = make_local(plan=replace(local_plan, label_epsilon=None, classes=1))
    play(strategy, make_grid())
    assert strategy.label_prior().tolist() == [1.0]
    assert not bool(strategy.uploads()["labels"].any())


def test_epsilon_is_spent_when_the_records_arrive(make_local, make_grid):
    """Pitfall 6: training costs nothing, the upload costs everything."""
    strategy = make_local()
    assert strategy.epsilon_so_far() == 0.0
    play(strategy, make_grid(), 1)
    assert strategy.epsilon_so_far() == pytest.approx(44.0)
    play(strategy, make_grid())
    assert strategy.epsilon_so_far() == pytest.approx(44.0)


def test_one_step_is_the_matched_transport_gradient_within_every_stratum(
    make_local, make_grid, make_generator
):
    """Theorem 1 among records of one answer, and no self term."""
    strategy = make_local(finite_batch_factor=0.8)
    play(strategy, make_grid(), 1)
    plan, uploads = strategy.settings.plan, strategy.uploads()
    lam = 0.8 * plan.image_mechanism.scale
    assert strategy.settings.effective_lam == pytest.approx(lam)
    assert strategy.settings.effective_cost == "l1"
    stream, model = Stream(b"server", "train", 1), make_generator()
    strata = LabelStrata(uploads["labels"], strategy.label_prior(), plan.label_mechanism)
    records, labels = strata.draw(16, stream)
    points = plan.map(model(model.latent(15, stream), labels.flatten()))
    exact = ConvergedSolver(max_iterations=30, tolerance=2e-2)
    gradients = [
        transport_gradient(
            x, uploads["values"][chosen], cost_named("l1"), lam, solver=exact
        ).gradient
        for x, chosen in zip(points.detach().split(5), records, strict=True)
    ]
    adam = torch.optim.Adam(model.parameters(), lr=0.05 * 0.5, betas=(0.9, 0.99))
    points.backward(torch.cat(gradients) / 3)
    adam.step()
    assert torch.allclose(weights(strategy.trainer.generator), weights(model), atol=1e-6)


def test_a_comparison_trains_on_the_same_uploads(make_local, make_grid):
    matched, other = make_local(), make_local(loss="debiased")
    play(matched, make_grid(), 3)
    play(other, make_grid(), 3)
    assert torch.equal(matched.uploads()["values"], other.uploads()["values"])
    assert not torch.allclose(weights(matched.generator), weights(other.generator), atol=1e-4)


@pytest.mark.medium
def test_training_recovers_the_classes(make_local, make_grid):
    strategy = make_local(rounds=300, batch=61)
    play(strategy, make_grid())
    labels = torch.arange(3).repeat_interleave(100)
    z = strategy.generator.latent(300, Stream(b"k"))
    released = strategy.settings.plan.map
    norms = released.render(released(strategy.generator(z, labels))).reshape(3, 400).mean(1)
    assert norms[0] < norms[1] < norms[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: PrivatizeReply(r.values[:, :3], r.labels, r.chunks), r"\(8, 3\) values"),
        (lambda r: PrivatizeReply(r.values * torch.nan, r.labels, r.chunks), "finite rows of 4"),
        (lambda r: PrivatizeReply(r.values / 0.0, r.labels, r.chunks), "finite rows of 4"),
        (lambda r: PrivatizeReply(r.values, r.labels + 3, r.chunks), "int64 labels below 3"),
        (lambda r: PrivatizeReply(r.values, r.labels - 3, r.chunks), "int64 labels below 3"),
        (lambda r: PrivatizeReply(r.values, r.labels.float(), r.chunks), "int64 labels below 3"),
        (lambda r: PrivatizeReply(r.values.double(), r.labels, r.chunks), "4 float32 values"),
        (lambda r: PrivatizeReply(r.values[:7], r.labels, r.chunks), r"\(7, 4\) values and \(8,\)"),
        (lambda r: PrivatizeReply(r.values[0], r.labels, r.chunks), r"uploaded \(4,\) values"),
        (lambda r: PrivatizeReply(r.values[:0], r.labels[:0], 10**9), "uploaded 0 records as chu"),
        (lambda r: PrivatizeReply(r.values[:3], r.labels[:3], 3), "uploaded 3 records as chunk 0"),
        (
            lambda r: PrivatizeReply(r.values.repeat(2, 1), r.labels.repeat(2), 1),
            "uploaded 16 records as chunk 0 of 1, where 8 make a full one",
        ),
    ],
)
def test_an_upload_that_the_plan_does_not_allow_names_the_client(
    make_local, make_grid, change, message
):
    strategy, grid = make_local(), make_grid()
    grid.change = altered(change)
    with pytest.raises(
        ClientError, match=f"^Client 1 uploaded .*{message.removeprefix('uploaded ')}"
    ):
        collect(strategy, grid)
    assert len(strategy.uploads()["values"]) == 0


def test_who_uploads_nothing_of_use_is_named(make_local, make_grid, local_plan):
    malformed, silent = make_grid(), make_grid()
    malformed.say(2, RecordDict())
    silent.lose(2)
    otherwise = make_local(plan=replace(local_plan, classes=4))  # than the labels of the data
    for strategy, grid, message in (
        (make_local(), malformed, "Client 2 uploaded chunk 0 as: Malformed message"),
        (
            make_local(),
            silent,
            r"uploading chunk 0, 1 of 3 clients did not answer \(client 2 first",
        ),
        (otherwise, make_grid(), "While uploading chunk 0, client 0 could not use the request or"),
    ):
        with pytest.raises(ClientError, match=message):
            collect(strategy, grid)


def test_uploads_and_state_go_on_bit_identically(make_local, make_grid, tmp_path):
    through, until, resumed = (make_local() for _ in range(3))
    play(through, make_grid())
    play(until, make_grid(), 3)
    checkpoint.save(tmp_path, *until.state())
    checkpoint.save_uploads(tmp_path, until.uploads())
    resumed.load_uploads(checkpoint.load_uploads(tmp_path))
    resumed.load_state(*checkpoint.load(tmp_path))
    resumed.round = 3
    grid = make_grid()
    play(resumed, grid)
    assert grid.asked == []
    assert torch.equal(weights(resumed.generator), weights(through.generator))
    assert torch.equal(resumed.label_prior(), through.label_prior())


def test_an_unmodified_flower_strategy_start_runs_it(make_local, make_grid):
    ours, theirs = make_local(), make_local()
    play(ours, make_grid())
    theirs.start(make_grid(), ArrayRecord(), num_rounds=9)  # three chunks, and six steps
    assert theirs.round == 6
    assert torch.equal(weights(ours.generator), weights(theirs.generator))


@pytest.mark.parametrize("changes", [{"cost": "squared_l2"}, {"lam": 1.0}])
def test_a_cost_of_ones_own_needs_the_unmatched_flag(make_local, changes):
    with pytest.raises(ConfigError, match=r"cost=l1 and λ=0\.3.*set strategy\.unmatched=true"):
        make_local(**changes)
    strategy = make_local(**changes, unmatched=True)
    if "lam" in changes:
        assert strategy.settings.effective_lam == 1.0
    else:
        assert strategy.settings.effective_cost == "squared_l2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lam": 0.0, "unmatched": True}, r"strategy\.lam must be a positive number, not 0\.0"),
        ({"lam": -1.0, "unmatched": True}, r"strategy\.lam must be a positive number"),
        ({"cost": "l3", "unmatched": True}, 'Unknown cost "l3"'),
        ({"finite_batch_factor": 0.0}, r"finite_batch_factor must be in \(0, 1\], not 0\.0"),
        ({"finite_batch_factor": 1.1}, r"finite_batch_factor must be in \(0, 1\], not 1\.1"),
        ({"batch": 1}, r"strategy\.batch must be a whole number of at least 2, not 1"),
    ],
)
def test_impossible_settings_are_refused(make_local, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_local(**changes)


def test_shuffling_stands_beside_the_local_epsilon_and_never_instead(make_local):
    settings = make_local().settings
    plain = settings.statement("secret")
    assert "shuffling" not in plain
    entry = {"epsilon": 0.3, "reports": 400_000}
    shuffled = replace(settings, shuffling=entry).statement("secret")
    assert shuffled == {**plain, "shuffling": entry}
    assert shuffled["epsilon"] == settings.plan.total_epsilon == 44.0


def test_epsilon_behind_a_shuffler_is_for_no_more_reports_than_there_are(make_local):
    entry = {"epsilon": 0.3, "reports": 61}
    settings = replace(make_local().settings, shuffling=entry)
    settings.check_sizes([20, 20, 21])
    with pytest.raises(ConfigError, match=r"61 shuffled reports.* there are 60: set data\.nominal"):
        settings.check_sizes([20, 20, 20])
    with pytest.raises(ConfigError, match=r"all clients, and strategy\.quorum=0\.5 lets some"):
        replace(settings, quorum=0.5)
    # Where no ε is stated, nothing can be overstated.
    replace(settings, shuffling={**entry, "epsilon": None}, quorum=0.5).check_sizes([1, 1, 1])


_RECIPE: dict[str, Any] = {
    "eps": 35.0,
    "map": {"name": "dct_direction", "norm": "l1"},
    "by_eps": {
        "eps": [10, 20, 35],
        "label_eps": [3, 4, 5],
        "block": [4, 5, 7],
        "finite_batch_factor": [1.0, 0.9, 0.8],
    },
}
_LAPLACE = {"name": "dct_direction", "norm": "l1"}
_GAUSSIAN = {"name": "non_negative_direction", "pool": 1}


def _plan(
    name: str = "laplace",
    *,
    eps: float | None = None,
    sigma: float | None = None,
    label_eps: float | None = None,
    block: int | None = None,
    classes: int = 10,
    delta: float | None = None,
) -> tuple[LocalPlan, float]:
    options = dict(_LAPLACE if name == "laplace" else _GAUSSIAN)
    stated = {} if block is None else {"block": block}
    return local_plan(
        {**_RECIPE, "map": options},
        mechanism={"name": name, "label_eps": label_eps},
        chosen_map={**options, **stated},
        shape=(1, 8, 8),
        classes=classes,
        eps=eps,
        sigma=sigma,
        delta=(0.0 if name == "laplace" else 1e-4) if delta is None else delta,
    )


@pytest.mark.parametrize(
    ("eps", "label", "block", "factor"),
    [
        (35, 5, 7, 0.8),
        (20, 4, 5, 0.9),
        (10, 3, 4, 1.0),
        (15, 3.5, 4, 0.95),  # halfway; the block is rounded down
        (27.5, 4.5, 6, 0.85),
        (100, 5, 7, 0.8),  # outside, the last row stays
        (8, 3, 4, 1.0),
        (4, 2, 4, 1.0),  # the label gets at most half
    ],
)
def test_between_the_rows_of_the_table_values_are_interpolated(eps, label, block, factor):
    plan, found = _plan(eps=eps)
    assert plan.label_epsilon == pytest.approx(label)
    assert plan.map.to_dict()["block"] == block
    assert found == pytest.approx(factor)


@given(st.floats(0.1, 200.0), st.sampled_from(["laplace", "gaussian"]))
def test_image_and_label_add_up_to_the_total(eps, name):
    plan, _ = _plan(name, eps=eps)
    assert plan.total_epsilon == pytest.approx(eps)
    assert plan.label_epsilon is not None
    assert plan.epsilon > 0
    assert plan.label_epsilon > 0


def test_no_eps_is_the_recipes_eps():
    assert _plan()[0].total_epsilon == pytest.approx(35)


def test_without_labels_the_image_gets_everything():
    plan, _ = _plan(eps=35, classes=1, label_eps=5)
    assert plan.label_epsilon is None
    assert plan.image_mechanism.epsilon == pytest.approx(35)


def test_what_is_stated_wins_over_the_table():
    plan, _ = _plan(eps=35, label_eps=2, block=3)
    assert (plan.label_epsilon, plan.epsilon) == (2, 33)
    assert plan.map.to_dict()["block"] == 3


@pytest.mark.parametrize("name", ["laplace", "gaussian"])
def test_sigma_is_the_scale_of_the_noise_and_epsilon_follows(name):
    plan, _ = _plan(name, sigma=0.2)
    assert plan.image_mechanism.scale == pytest.approx(0.2, rel=1e-6)
    if name == "laplace":
        assert isinstance(plan.image_mechanism, Laplace)
        assert plan.epsilon == pytest.approx(2 / 0.2, rel=1e-5)


def test_delta_belongs_to_the_gaussian_mechanism_alone():
    assert _plan("laplace", eps=20)[0].delta == 0.0
    assert _plan("gaussian", eps=20)[0].delta == 1e-4
    with pytest.raises(ConfigError, match=r"laplace gives pure ε and has no δ, but delta=1e-05"):
        _plan("laplace", eps=20, delta=1e-5)


def test_a_map_that_is_not_the_recipes_keeps_its_own_resolution():
    plan, _ = local_plan(
        _RECIPE,
        mechanism={"name": "laplace", "label_eps": None},
        chosen_map={"name": "l1_ball", "radius": 20.0},
        shape=(1, 8, 8),
        classes=10,
        eps=35,
        sigma=None,
        delta=0.0,
    )
    assert plan.map.dimension == 64
    assert plan.map.sensitivity == pytest.approx(40, rel=1e-5)  # the diameter, not the radius


def test_sigma_and_eps_may_agree_but_not_contradict():
    plan, _ = _plan(sigma=0.1, eps=24.3)
    assert plan.total_epsilon == pytest.approx(24.3, rel=0.01)
    for stated in (21, 40):  # too small, and not the price of the two
        with pytest.raises(
            ConfigError, match=rf"sigma=0\.1 costs ε = 20 .* not eps={stated} in all"
        ):
            _plan(sigma=0.1, eps=stated)


@pytest.mark.parametrize("eps", [0, -1, float("nan"), "10", True])
def test_a_total_that_is_not_a_positive_number_is_refused(eps):
    with pytest.raises(ConfigError, match="eps must be a positive number"):
        _plan(eps=eps)


def test_a_label_that_takes_everything_is_refused():
    with pytest.raises(ConfigError, match=r"label_eps=20 leaves nothing of eps=20"):
        _plan(eps=20, label_eps=20)
