from __future__ import annotations

import math

import pytest

from fedsink.errors import ModelError
from fedsink.models.critics import CriticTraining


def test_the_learning_rate_is_halved_for_the_last_part_of_the_rounds():
    training = CriticTraining(critics=1, lr=2e-3, late=0.3)
    rates = [training.rate(t, 10) for t in range(1, 11)]
    assert rates == [2e-3] * 7 + [1e-3] * 3
    assert CriticTraining(critics=1, lr=1.0, late=0.0).rate(10, 10) == 1.0


def test_the_first_round_has_further_steps():
    training = CriticTraining(critics=1, steps=5, warm=20)
    assert [training.steps_after(rounds) for rounds in (0, 1, 2)] == [25, 5, 5]


def test_the_first_round_counts_the_steps_of_local_generators_and_of_critics_against_them():
    assert CriticTraining(critics=1, steps=5, warm=20).first_steps == 25
    assert CriticTraining(critics=1, steps=5, warm=20, warm_generator=7).first_steps == 25 + 7 * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critics": 0}, "critics must be a whole number of at least 1, not 0"),
        ({"steps": 1.5}, "steps must be a whole number of at least 0, not 1.5"),
        ({"warm": True}, "warm must be a whole number of at least 0, not True"),
        ({"warm_generator": -1}, "warm_generator must be a whole number of at least 0, not -1"),
        ({"warm_generator": 2, "steps": 0}, "warm_generator=2 trains a generator against a critic"),
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"history": 0}, "history must be a whole number of at least 1, not 0"),
        ({"lr": "fast"}, "lr must be a number of at least 0, not 'fast'"),
        ({"penalty": -1.0}, "penalty must be a number of at least 0, not -1.0"),
        ({"drift": math.inf}, "drift must be a number of at least 0, not inf"),
        ({"late": 1.5}, r"late must be in \[0, 1\], not 1.5"),
        ({"mismatch": 1.5}, r"mismatch must be in \[0, 1\], not 1.5"),
        ({"mismatch": math.nan}, r"mismatch must be in \[0, 1\], not nan"),
        ({"lr": 10**400}, "lr must be a number of at least 0, not 1000"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        CriticTraining(**{"critics": 3, **options})
