from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedsink.clients.answers.dp_sinkhorn import client_gradient
from fedsink.clients.records.shard import Shard
from fedsink.errors import ConfigError
from fedsink.privacy import BatchClip, ClassSchedule, JointSchedule, PrivacyPlan, RecordClip
from fedsink.protocol.dp_sinkhorn import GradientRequest, Objective
from fedsink.strategies.dp_sinkhorn.rows import Layout, SelfParts
from fedsink.strategies.dp_sinkhorn.self_term import SelfTerm, SelfTermSettings, self_term
from fedsink.transport import ConvergedSolver, Mixed, append_labels, self_gradient

from ...support.clouds import cloud
from ...support.streams import silent

PLAIN = Objective(lam=1.0, classes=1, label_weight=0.0)
LABELLED = Objective(lam=1.0, classes=2, m=0.3, label_weight=1.5)


def points(seed: int, n: int = 12) -> Tensor:
    return cloud(n, 3, seed=seed, dtype=torch.float32)


def term_of(
    settings: SelfTermSettings,
    objective: Objective,
    clip: BatchClip | RecordClip,
    *,
    mixed: bool = False,
    n: int = 12,
) -> SelfTerm:
    """Self term of groups of n rows that clients see, each of one class or, mixed, of all."""
    schedule = JointSchedule() if mixed else ClassSchedule(3)
    classes = objective.classes if mixed else 3
    rows = n // classes if mixed else n
    layout = Layout(3, classes, schedule, mixed, rows, settings.debiased)
    return self_term(settings, objective, clip, layout, torch.zeros(0, 3))


def history(
    kind: str,
    objective: Objective = PLAIN,
    bound: float = 0.5,
    length: int = 2,
    *,
    mixed: bool = False,
) -> SelfTerm:
    clip = RecordClip(bound) if kind == "record" else BatchClip(bound)
    return term_of(SelfTermSettings("history", length), objective, clip, mixed=mixed)


def remember(term: SelfTerm, rows: Tensor, kind: int) -> None:
    term.remember(rows.unsqueeze(0), torch.tensor([kind]))


def alone(term: SelfTerm, rows: Tensor, kind: int, labels: Tensor) -> SelfParts:
    """The parts of a group that is asked for by itself."""
    parts = term(rows.unsqueeze(0), torch.tensor([kind]), labels.unsqueeze(0))
    return SelfParts(*(part.squeeze(0) for part in parts))


@pytest.mark.parametrize("bound", [0.3, 100.0])
def test_the_history_field_cancels_the_clients_where_the_records_are_the_history(bound):
    """The field cancels only there: a shifted shard leaves the shift."""
    term = history("record", bound=bound)
    remember(term, points(1), 0)
    remember(term, points(2), 0)
    rows, zeros = points(3), torch.zeros(12, dtype=torch.int64)
    part = alone(term, rows, 0, zeros)
    plan = PrivacyPlan(1.0, 1.0, 1, RecordClip(bound), JointSchedule(), 1e-5)
    view = {"name": "pixel", "shape": [3]}
    request = GradientRequest(
        round=1, label=None, plan=plan, objective=PLAIN, view=view, rows=rows, row_labels=zeros,
        potentials=part.potentials,
    )  # fmt: skip

    def mean_field(records: Tensor) -> Tensor:
        shard = Shard(records, torch.zeros(len(records), dtype=torch.int64))
        total = client_gradient(request, shard, silent)
        return total.double() / len(records)

    past = torch.cat([points(1), points(2)])
    assert float((mean_field(past) + part.outside).norm()) < 1e-6
    assert float((mean_field(past + 1.0) + part.outside).norm()) > 0.05
    assert not bool(part.inside.any())


def test_history_keeps_the_last_batches_of_every_group():
    term = history("record")
    for seed in (1, 2, 3):
        remember(term, points(seed), 0)
    remember(term, points(4), 1)
    reference = history("record")
    remember(reference, points(2), 0)
    remember(reference, points(3), 0)
    labels = torch.zeros(12, dtype=torch.int64)
    assert torch.equal(
        alone(term, points(9), 0, labels).outside, alone(reference, points(9), 0, labels).outside
    )
    assert term.memory == 2


@pytest.mark.parametrize("groups", [[0, 1, 2], [0, 0]], ids=str)
@pytest.mark.parametrize("kind", ["record", "batch", "semi_debiased"])
def test_groups_are_as_if_each_were_asked_for_alone(kind, groups):
    """With costs of different size, and each against its own past."""
    mixed, extra = groups == [0, 0], 3 if kind == "semi_debiased" else 0
    term = history(kind, LABELLED, mixed=mixed)
    if kind == "semi_debiased":
        term = term_of(SelfTermSettings(kind, p=0.25), LABELLED, BatchClip(0.5), mixed=mixed)
    for seed in (1, 2):
        for place, group in enumerate(groups):
            remember(term, points(seed + 10 * place) * (1 + place), group)
    rows = torch.stack([points(60 + place, 15) * (1 + place) for place in range(len(groups))])
    rows = rows[:, : 12 + extra]
    labels = torch.stack([(torch.arange(12 + extra) + place) % 2 for place in range(len(groups))])
    together = term(rows, torch.tensor(groups), labels)
    assert all(len(part) == len(groups) for part in together)
    for place, group in enumerate(groups):
        expected = alone(term, rows[place], group, labels[place])
        for name in ("potentials", "inside", "outside"):
            ours, theirs = getattr(together, name)[place], getattr(expected, name)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)


def tethered(tether: float | None) -> SelfTerm:
    """A history field that remembers two batches around the origin."""
    term = term_of(SelfTermSettings("history", 2, tether=tether), PLAIN, RecordClip(0.5))
    remember(term, points(1), 0)
    remember(term, points(2), 0)
    return term


def test_a_tether_draws_strays_straight_to_the_median_and_leaves_every_other_row():
    rows, labels = points(3), torch.zeros(12, dtype=torch.int64)
    rows[4] += 40.0
    rows[7] -= 40.0
    free, held = (alone(tethered(tether), rows, 0, labels) for tether in (None, 9.0))
    past = torch.cat([points(1), points(2)]).double()
    centre = past.median(dim=0).values
    strays = torch.tensor([4, 7])
    torch.testing.assert_close(held.outside[strays], (rows[strays] - centre) / 12)
    others = torch.ones(12, dtype=torch.bool).index_fill(0, strays, False)
    assert torch.equal(held.outside[others], free.outside[others])
    assert torch.equal(held.potentials, free.potentials)  # the questions to clients stay the same
    # By themselves these rows are pushed away from the past, if by anything.
    towards = (free.outside[strays] * (rows[strays] - centre)).sum(1)
    assert bool((towards <= 0.0).all())


def test_a_row_strays_beyond_the_usual_squared_distance_times_the_tether():
    labels = torch.zeros(12, dtype=torch.int64)
    past = torch.cat([points(1), points(2)]).double()
    centre = past.median(dim=0).values
    usual = float((past - centre).square().sum(1).median())
    direction = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    factors = torch.linspace(0.5, 6.0, 12, dtype=torch.float64)
    rows = (centre + (factors * usual).sqrt().unsqueeze(1) * direction).float()
    free, held = (alone(tethered(tether), rows, 0, labels) for tether in (None, 2.7))
    assert ((free.outside != held.outside).any(1) == (factors > 2.7)).all()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", ["record", "batch"])
def test_the_state_of_a_history_round_trips(kind, mixed):
    groups, labels = [0] if mixed else [0, 1, 2], torch.arange(12) % 2
    term = history(kind, LABELLED, length=3, mixed=mixed)
    for group in groups:
        for seed in range(3):
            remember(term, points(seed + 10 * (group or 7)), group)
    state = term.state()
    assert list(state) == [f"history.{name}" for name in (["all"] if mixed else groups)]
    remember(term, points(98), 0)  # a state does not change after it was taken
    term = history(kind, LABELLED, length=3, mixed=mixed)
    for group in groups:
        for seed in range(3):
            remember(term, points(seed + 10 * (group or 7)), group)
    read = history(kind, LABELLED, length=3, mixed=mixed)
    read.load_state(state)
    for each in (term, read):
        remember(each, points(99), 0)
    for group in groups:
        ours, theirs = (alone(each, points(5), group, labels) for each in (term, read))
        assert torch.equal(ours.inside, theirs.inside)
        assert torch.equal(ours.outside, theirs.outside)
        assert torch.equal(ours.potentials, theirs.potentials)


@pytest.mark.parametrize(("label", "objective"), [(None, LABELLED), (1, LABELLED), (None, PLAIN)])
def test_the_batch_history_makes_the_sinkhorn_divergence(label, objective):
    """−2 ∂Ŵ(X, past) cancels the clients' 2 ∂Ŵ(X, Y) where their records are the past."""
    term = history("batch", objective, bound=100.0, mixed=label is None)
    labels = torch.arange(12) % objective.classes if label is None else torch.full((12,), label)
    for seed in (1, 2):
        remember(term, points(seed), label or 0)
    rows = points(3)
    part = alone(term, rows, label or 0, labels)
    plan = PrivacyPlan(1.0, 1.0, 1, BatchClip(100.0), JointSchedule(), 1e-5)
    request = GradientRequest(
        round=1, label=label, plan=plan, objective=objective, rows=rows, row_labels=labels,
        view={"name": "pixel", "shape": [3]}, self_gradient=part.inside,
    )  # fmt: skip
    shard = Shard(torch.cat([points(1), points(2)]), labels.repeat(2))

    def released(shard: Shard) -> Tensor:
        return client_gradient(request, shard, silent)

    assert float(released(shard).norm()) < 1e-5
    assert float(released(Shard(shard.images + 1.0, shard.labels)).norm()) > 0.5
    assert not bool(part.outside.any())


@pytest.mark.parametrize("p", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("label", [None, 1])
def test_semi_debiased_is_the_self_half_of_the_papers_loss(p, label):
    """Def. 4.3; α_c only where a round mixes classes. The extra rows reuse the first labels."""
    settings = SelfTermSettings("semi_debiased", p=p)
    schedule = JointSchedule() if label is None else ClassSchedule(2)
    rows_per_class = 5 if label is None else 10
    layout = Layout(2, 2, schedule, label is None, rows_per_class, settings.debiased)
    term = self_term(settings, LABELLED, BatchClip(1e9), layout, torch.zeros(0, 3))
    extra = layout.extra
    assert extra == {0.0: 0, 0.2: 2, 1.0: 10}[p]
    rows = points(4, 10 + extra)
    (row_labels,) = layout.row_labels(torch.tensor([label or 0]))
    part = alone(term, rows, label or 0, row_labels)
    x = rows
    if label is None:
        own = torch.arange(2).repeat_interleave(5)
        assert torch.equal(row_labels, torch.cat([own, own[:extra]]))
        x = append_labels(x, row_labels, 2, 1.5)
    expected = self_gradient(x, 10, Mixed(0.3), 1.0, solver=ConvergedSolver()).gradient[:, :3]
    assert torch.allclose(part.inside, expected[:10], atol=1e-5)
    assert torch.allclose(part.outside[10:], expected[10:], atol=1e-5)
    assert not bool(part.outside[:10].any())
    assert term.memory == 0


def test_extra_rows_are_clipped_by_themselves():
    """Pitfall 8: they carry no noise, since no private point met them."""
    terms = [
        term_of(SelfTermSettings("semi_debiased", p=0.5), PLAIN, BatchClip(bound), mixed=True)
        for bound in (1e9, 0.01)
    ]
    rows, labels = points(4, 18) * 5, torch.zeros(18, dtype=torch.int64)
    free, clipped = (alone(term, rows, 0, labels) for term in terms)
    assert float(free.outside.norm()) > 0.01
    assert float(clipped.outside.norm()) == pytest.approx(0.01, rel=1e-4)
    direction = free.outside / free.outside.norm()
    assert torch.allclose(clipped.outside, 0.01 * direction, atol=1e-6)
    assert torch.equal(clipped.inside, free.inside)  # the client clips that, with its own half


def test_semi_debiased_has_no_state():
    term = term_of(SelfTermSettings("semi_debiased"), PLAIN, BatchClip(1.0))
    remember(term, points(1), 0)
    assert term.state() == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SelfTermSettings("none"),
            "'none' is unknown; choose one of history, semi_de",
        ),
        (
            lambda: SelfTermSettings(history=0),
            "strategy.history must be a whole number",
        ),
        (lambda: SelfTermSettings(p=1.5), r"strategy.p must be in \[0, 1\], not 1.5"),
        (lambda: SelfTermSettings(p=-0.1), r"strategy.p must be in \[0, 1\], not -0.1"),
        (lambda: SelfTermSettings(tether=0.0), "strategy.tether must be null or a positive number"),
        (lambda: SelfTermSettings(tether=float("nan")), "strategy.tether must be null or a"),
        (
            lambda: term_of(SelfTermSettings("history", tether=2.0), PLAIN, BatchClip(1.0)),
            r"Set strategy\.tether=null, not 2\.",
        ),
        (
            lambda: term_of(SelfTermSettings("semi_debiased"), PLAIN, RecordClip(1.0)),
            r"set strategy\.self_term=history, or clip=batch",
        ),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
