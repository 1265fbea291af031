from __future__ import annotations

import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import ADJACENCIES
from fedsink.privacy.adjacency import check_adjacency, describe, unit_of


def test_every_adjacency_has_words_and_a_unit():
    assert ADJACENCIES == ("add-remove", "replace-one", "user", "client")
    assert len({describe(name) for name in ADJACENCIES}) == 4
    assert [unit_of(name) for name in ADJACENCIES] == ["record", "record", "user", "client"]
    assert describe("add-remove") == "zero-out/add-remove of one labelled record at one client"


@pytest.mark.parametrize("name", ["", "replace", None, 3])
def test_an_unknown_adjacency_is_refused(name):
    with pytest.raises(PrivacyError, match=r"is unknown: choose one of add-remove, replace-one, u"):
        check_adjacency(name)
