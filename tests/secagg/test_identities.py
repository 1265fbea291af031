from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsink.secagg.client import ClientSession
from fedsink.secagg.identities import Authority, Identity, Peers, certify, verified
from fedsink.secagg.parameters import Rules
from fedsink.secagg.refusals import UntrustedPeerError

from ..support.aggregation import Sum, identity, source

AUTHORITY = Ed25519PrivateKey.from_private_bytes(b"\7" * 32)
TRUST = Authority(AUTHORITY.public_key().public_bytes_raw())


def test_a_signature_is_for_one_purpose_and_one_division_into_parts() -> None:
    signature = identity(0).sign("keys", b"ab", b"c")
    key = identity(0).public
    assert verified(key, signature, "keys", b"ab", b"c")
    assert not verified(key, signature, "survivors", b"ab", b"c")
    assert not verified(key, signature, "keys", b"a", b"bc")
    assert not verified(identity(1).public, signature, "keys", b"ab", b"c")


@pytest.mark.parametrize("weak", [b"\0" * 32, b"\1" + b"\0" * 31, b"\xec" + b"\xff" * 30 + b"\x7f"])
def test_a_weak_key_signs_nothing(weak: bytes) -> None:
    for message in range(64):
        for signature in (bytes(64), b"\1" + bytes(63), weak + bytes(32)):
            assert not verified(weak, signature, "keys", bytes([message]))


def test_peers_are_known_by_number_and_key() -> None:
    trust = Peers({0: identity(0).public})
    assert trust.trusts(0, identity(0).public, b"")
    assert not trust.trusts(1, identity(0).public, b"")
    assert not trust.trusts(0, identity(1).public, b"")


def certified(client: int, named: int | None = None) -> Identity:
    number = client if named is None else named
    return Identity(identity(client).key, certify(AUTHORITY, number, identity(client).public))


def test_an_authority_certifies_a_key_for_one_client() -> None:
    good = certified(3)
    assert TRUST.trusts(3, good.public, good.certificate)
    assert not TRUST.trusts(4, good.public, good.certificate)
    assert not TRUST.trusts(3, identity(4).public, good.certificate)
    assert not TRUST.trusts(3, good.public, bytes(64))


def test_a_cohort_of_certified_clients_adds_up_and_an_uncertified_one_is_refused() -> None:
    rules = Rules(TRUST)

    def begun(last: Identity) -> Sum:
        played = Sum(4, rules=rules)
        for client in range(4):
            own = certified(client) if client < 3 else last
            played.sessions[client] = ClientSession(
                played.parameters, client, own, rules, source(client)
            )
        played.server = type(played.server)(played.parameters)
        return played

    played = begun(certified(3)).play()
    assert played.result().total.tolist() == played.plain(range(4)).tolist()
    with pytest.raises(UntrustedPeerError):
        begun(certified(3, named=2)).play()
    with pytest.raises(UntrustedPeerError):
        begun(identity(3)).play()
