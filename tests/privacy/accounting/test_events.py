from __future__ import annotations

import math

import dp_accounting
import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import epsilon, poisson_gaussian
from fedsink.privacy.accounting.accountants import gaussian_epsilon, poisson_gaussian_epsilon


def test_the_event_is_the_composed_poisson_subsampled_gaussian():
    event = poisson_gaussian(0.2, 1.5, 30)
    assert event == dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(1.5)), 30
    )


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_other_events_go_to_dp_accounting(accountant):
    event = dp_accounting.LaplaceDpEvent(0.5)
    assert 2.0 * (1 - 1e-9) <= epsilon(event, 1e-9, accountant) <= 2.02


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp", "rdp-opacus"])
def test_a_bare_gaussian_is_sampled_at_rate_one(accountant):
    bare = epsilon(dp_accounting.GaussianDpEvent(2.0), 1e-5, accountant)
    assert bare == poisson_gaussian_epsilon(1.0, 2.0, 1, 1e-5, accountant)


def test_events_and_adjacencies_an_accountant_cannot_bound_are_refused():
    with pytest.raises(PrivacyError, match="adjacency 'swap' is unknown: choose one of add-remove"):
        epsilon(dp_accounting.GaussianDpEvent(1.0), 1e-5, adjacency="swap")
    with pytest.raises(PrivacyError, match="prv accountant bounds Poisson-subsampled Gaussians"):
        epsilon(dp_accounting.LaplaceDpEvent(0.5), 1e-5, "prv")
    unsupported = dp_accounting.UnsupportedDpEvent()
    for accountant in ("pld", "rdp"):
        with pytest.raises(
            PrivacyError, match=f"{accountant} accountant cannot bound Unsupp.* under add-rem"
        ):
            epsilon(unsupported, 1e-5, accountant)


def test_repeated_releases_compose_under_replace_one():
    """For local mechanisms: multipliers are stated against the diameter."""
    gaussian = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 9)
    exact = gaussian_epsilon(4.0 / 3.0, 1e-5)
    assert epsilon(gaussian, 1e-5, adjacency="replace-one") == pytest.approx(exact, rel=1e-3)
    thrice = dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(1.0), 3)
    assert epsilon(thrice, 1e-12, adjacency="replace-one") == pytest.approx(3.0, rel=1e-3)


def test_pitfall_20_a_sampled_event_gets_no_replace_one_figure_from_an_add_remove_accountant():
    event = poisson_gaussian(0.2, 2.0, 30)
    with pytest.raises(PrivacyError, match="PoissonSampledDpEvent is known under replace-one"):
        epsilon(event, 1e-5, adjacency="replace-one")
    for accountant in ("rdp", "prv", "rdp-opacus"):
        with pytest.raises(PrivacyError, match=f"{accountant} accountant has no bound under repl"):
            epsilon(event, 1e-5, accountant, "replace-one")
    assert math.isfinite(epsilon(event, 1e-5))
