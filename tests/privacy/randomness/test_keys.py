from __future__ import annotations

import json
import os
import stat
import sys

import pytest
import torch

from fedsink.errors import PrivacyError
from fedsink.privacy.randomness.keys import EntropyKey, ReproducibleKey, SecretKey
from fedsink.privacy.randomness.secure import SecureStream

SECRET = bytes(range(32))


def values(key, purpose="noise", client=1, round=2, request=b"images"):
    return key.stream(purpose, client=client, round=round, request=request).normal(4)


@pytest.mark.parametrize("key", [ReproducibleKey(7), SecretKey(SECRET, "mnist/a")])
def test_streams_differ_by_purpose_client_and_round(key):
    drawn = [
        values(key),
        values(key, purpose="sample"),
        values(key, client=2, round=1),
        values(key, client=2),
        values(key, round=3),
    ]
    assert len({tuple(draw.tolist()) for draw in drawn}) == len(drawn)
    assert torch.equal(values(key), drawn[0])


def test_the_reproducible_key_ignores_the_request_and_depends_on_the_seed():
    assert torch.equal(values(ReproducibleKey(7)), values(ReproducibleKey(7), request=b"other"))
    assert not torch.equal(values(ReproducibleKey(7)), values(ReproducibleKey(8)))


def test_an_identical_request_gets_the_same_bytes_any_other_gets_fresh_noise():
    key = SecretKey(SECRET, "mnist/a")
    assert torch.equal(values(key), values(SecretKey(SECRET, "mnist/a")))
    assert not torch.equal(values(key), values(key, request=b"imagfs"))  # one bit apart
    assert not torch.equal(values(key), values(SecretKey(SECRET, "mnist/b")))
    assert not torch.equal(values(key), values(SecretKey(SECRET[::-1], "mnist/a")))


@pytest.mark.parametrize("key", [ReproducibleKey(7), SecretKey(SECRET, "mnist/a"), EntropyKey()])
def test_two_clients_seeded_alike_never_share_noise(key):
    torch.manual_seed(0)
    first = key.stream("noise", client=0, round=0).add_gaussian(torch.zeros(50), 1.0)
    torch.manual_seed(0)
    second = key.stream("noise", client=1, round=0).add_gaussian(torch.zeros(50), 1.0)
    assert not set(first.tolist()) & set(second.tolist())


def test_entropy_is_fresh_and_float_safe_also_for_the_same_arguments():
    assert isinstance(EntropyKey().stream("noise", client=1, round=2), SecureStream)
    drawn = [values(key) for key in (EntropyKey(), EntropyKey()) for _ in range(2)]
    assert len({tuple(draw.tolist()) for draw in drawn}) == 4


def test_entropy_without_the_float_safe_sampler_is_refused_when_the_key_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(PrivacyError, match="needs the Python package opendp"):
        EntropyKey()


def test_kinds_and_whether_they_repeat():
    for key, kind, repeatable in (
        (ReproducibleKey(0), "reproducible", True),
        (SecretKey(SECRET, "run"), "secret", True),
        (EntropyKey(), "secure", False),
    ):
        assert (key.kind, key.repeatable) == (kind, repeatable)
        assert torch.equal(values(key), values(key)) == repeatable


@pytest.mark.parametrize("seed", [-1, 1.5, "3", None, True])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(PrivacyError, match="seed must be an integer ≥ 0, received"):
        ReproducibleKey(seed)


def test_the_secret_is_not_shown_by_repr():
    text = repr(SecretKey(SECRET, "run"))
    assert SECRET.hex() not in text
    assert repr(SECRET) not in text


def test_a_created_key_loads_again_and_its_file_has_mode_0600(tmp_path):
    path = tmp_path / "client.key"
    key = SecretKey.create(path, "mnist/a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretKey.load(path) == key
    assert len(key.secret) == 32
    assert os.listdir(tmp_path) == ["client.key"]
    assert SecretKey.create(tmp_path / "other.key", "mnist/a").secret != key.secret


def test_a_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "client.key"
    key = SecretKey.create(path, "a")
    with pytest.raises(PrivacyError, match="exists already"):
        SecretKey.create(path, "b")
    assert SecretKey.load(path) == key
    assert os.listdir(tmp_path) == ["client.key"]
    with pytest.raises(PrivacyError, match="cannot be written"):
        SecretKey.create(tmp_path / "nowhere" / "client.key", "a")


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_file_that_others_can_read_or_write_is_refused(tmp_path, mode):
    path = tmp_path / "client.key"
    SecretKey.create(path, "a")
    path.chmod(mode)
    with pytest.raises(PrivacyError, match=f"mode {mode:04o}"):
        SecretKey.load(path)


def test_a_missing_or_damaged_key_file_is_refused_without_showing_it(tmp_path):
    with pytest.raises(PrivacyError, match="cannot be read"):
        SecretKey.load(tmp_path / "absent.key")
    with pytest.raises(PrivacyError, match="cannot be read"):
        SecretKey.load(tmp_path)
    path = tmp_path / "client.key"
    for content in ("", "{}", "[1]", json.dumps({"run": "a", "secret": "abcd" * 4}), "\xff"):
        path.write_bytes(content.encode("latin-1"))
        path.chmod(0o600)
        with pytest.raises(PrivacyError, match="damaged") as error:
            SecretKey.load(path)
        assert "abcd" not in str(error.value)


def test_bad_secrets_and_runs_are_refused():
    with pytest.raises(PrivacyError, match="32 bytes"):
        SecretKey(b"short", "run")
    with pytest.raises(PrivacyError, match="named run, received ''"):
        SecretKey(SECRET, "")
