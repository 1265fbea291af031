"""Adjacencies: the pairs of data sets of a guarantee, each with a word and a sentence.

An ε without its adjacency says nothing: the same recipe costs 9.2 under add-remove and 20.0 under
replace-one. Every ε that fedsink prints goes with the words of `describe`.

>>> unit_of("client")
'client'
"""

from __future__ import annotations

from fedsink.errors import PrivacyError

ADD_REMOVE, REPLACE_ONE, USER, CLIENT = "add-remove", "replace-one", "user", "client"

_WORDS = {
    ADD_REMOVE: "zero-out/add-remove of one labelled record at one client",
    REPLACE_ONE: "replacement of one labelled record at one client by any other",
    USER: "any change of all records of one user, which lie in one part of a client's data",
    CLIENT: "zero-out/add-remove of all records of one client at once",
}
ADJACENCIES = tuple(_WORDS)


def check_adjacency(name: object) -> str:
    """Returns the name of an adjacency; raises PrivacyError for any other value."""
    if not isinstance(name, str) or name not in _WORDS:
        raise PrivacyError(
            f"adjacency {name!r} is unknown: choose one of {', '.join(ADJACENCIES)}."
        )
    return name


def describe(name: str) -> str:
    """Returns the difference of two neighbouring data sets, in words."""
    return _WORDS[check_adjacency(name)]


def unit_of(name: str) -> str:
    """Returns the unit that is protected: ``"record"``, ``"user"`` or ``"client"``."""
    return name if check_adjacency(name) in (USER, CLIENT) else "record"
