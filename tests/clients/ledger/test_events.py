from __future__ import annotations

import dp_accounting as dp
import pytest

from fedsink.clients.ledger.events import event_from_json, event_to_json
from fedsink.errors import LedgerError, PrivacyError
from fedsink.privacy import GaussianMechanism, LaplaceMechanism, ProductMechanism
from fedsink.privacy import RandomizedResponse as Response

EVENTS = [
    dp.NoOpDpEvent(),
    dp.GaussianDpEvent(1.5),
    dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.25, dp.GaussianDpEvent(1.5)), 400),
    dp.ComposedDpEvent([dp.LaplaceDpEvent(2.0), dp.ComposedDpEvent([dp.GaussianDpEvent(3.0)])]),
    LaplaceMechanism(2.0, 3.0).event,
    GaussianMechanism(2.0, 3.0, 1e-5).event,
    ProductMechanism(LaplaceMechanism(2.0, 3.0), Response(10, 1.0)).event,
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_comes_back_equal(event: object) -> None:
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize("thing", [None, 1.0, "GaussianDpEvent"])
def test_what_is_no_event_is_not_stored(thing: object) -> None:
    with pytest.raises(PrivacyError, match="a ledger stores serialisable events, received"):
        event_to_json(thing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"noise_multiplier": 1.0}',
        '{"class": "GaussianDpEvent"}',
        '{"class": "GaussianDpEvent", "noise": 1.0}',
        '{"class": "Mapping"}',
        '{"class": "importlib"}',
        '{"class": 3}',
    ],
)
def test_a_file_names_events_and_nothing_else(text: str) -> None:
    """A ledger that somebody else wrote must not choose which code runs."""
    with pytest.raises(LedgerError, match=r"is damaged .* restore the ledger from a backup"):
        event_from_json(text)
