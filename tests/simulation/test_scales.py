"""`scale=` chooses among the scales of an experiment's file."""

from __future__ import annotations

import pytest
from omegaconf.errors import OmegaConfBaseException

from fedsink.commands.hydra_keys import one_sentence
from fedsink.errors import ConfigError
from fedsink.strategies.dp_sinkhorn.strategy import DPSinkhornSettings

from .conftest import Compose, Configure

ROW = "experiment=dp_sinkhorn_mnist_m1"


@pytest.mark.slow
def test_cpu_is_the_default_and_paper_is_as_published(configured: Configure) -> None:
    cpu, paper = (
        configured(ROW, *more, small=False).server.strategy for more in ((), ("scale=paper",))
    )
    assert isinstance(cpu, DPSinkhornSettings)
    assert isinstance(paper, DPSinkhornSettings)
    assert cpu.plan.epsilon() == pytest.approx(10, abs=0.1)
    assert (paper.clients, paper.plan.rounds, paper.plan.rate) == (1, 3_400_000, 1 / 1200)
    # Rényi's ε by the classic conversion, which the paper reports as 10 (mathematics.md).
    assert paper.plan.epsilon("rdp-classic") == pytest.approx(9.925, abs=5e-3)
    for same in ("objective", "self_term", "view"):
        assert getattr(cpu, same) == getattr(paper, same)
    assert cpu.plan.clip == paper.plan.clip


def test_a_key_on_the_command_line_outranks_the_scale(configured: Configure) -> None:
    strategy = configured(ROW, "scale=smoke", "rounds=7", small=False).server.strategy
    assert isinstance(strategy, DPSinkhornSettings)
    assert strategy.plan.rounds == 7


def test_an_unknown_scale_is_one_clear_line(composed: Compose) -> None:
    with pytest.raises(OmegaConfBaseException) as caught:
        composed(ROW, "scale=huge", small=False)
    assert one_sentence(caught.value) == (
        "This experiment has no scale=huge: choose smoke, cpu or paper."
    )


def test_a_scale_without_scales_is_refused(configured: Configure) -> None:
    with pytest.raises(ConfigError, match="scale=smoke belongs to experiments with scales"):
        configured("scale=smoke")
