from __future__ import annotations

import os
import pickle
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.policy_file import read_policy
from fedsink.errors import ConfigError, PrivacyError

SECURE = {"noise": "secure", "key_file": None}


def test_a_seed_a_key_file_and_neither_make_three_kinds_of_noise(
    settings: NodeSettings, secret: NodeSettings
) -> None:
    kinds = [each.key().kind for each in (settings, secret, replace(secret, **SECURE))]
    assert kinds == ["reproducible", "secret", "secure"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_file": None}, r"needs a seed .* or a key_file"),
        ({"key_file": Path("gone.key")}, "cannot be read"),
        ({"ledger": None}, "needs a ledger"),
        ({"ledger": None, **SECURE}, "needs a ledger"),
    ],
)
def test_a_key_without_its_file_or_its_ledger_is_refused(
    secret: NodeSettings, changes: dict[str, Any], message: str
) -> None:
    """Pitfall 9: without a ledger the node would forget its answers."""
    with pytest.raises(PrivacyError, match=message):
        replace(secret, **changes).key()


def test_a_key_that_others_can_read_is_refused(secret: NodeSettings) -> None:
    assert secret.key_file is not None
    os.chmod(secret.key_file, 0o644)
    with pytest.raises(PrivacyError, match="mode 0644"):
        secret.key()


def test_settings_are_small_hashable_and_picklable(secret: NodeSettings) -> None:
    """Engines ship them with every worker, and nodes are found by them."""
    data = pickle.dumps(secret)
    assert len(data) < 2000
    assert pickle.loads(data) == secret
    assert hash(pickle.loads(data)) == hash(secret)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": "slow"}, "noise is fast or secure, not 'slow'"),
        ({"noise": "secure", "seed": 1}, "cannot be repeated: leave out seed=1"),
        ({"policy": Path("p"), "seed": 1}, "under a policy never uses a seed's noise"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    secret: NodeSettings, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PrivacyError, match=message):
        replace(secret, **changes)


def test_secure_noise_without_its_sampler_is_refused_before_any_answer(
    secret: NodeSettings, policy_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds for a simulation, and for a node, whose settings are made before it signs on."""
    policy = read_policy(policy_file(backend="secure"))
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    for make in (lambda: replace(secret, **SECURE), lambda: NodeSettings.from_policy(policy)):
        with pytest.raises(PrivacyError, match=r"needs the Python package opendp, .* `secure`"):
            make()


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ((0, 1, 3), "numbers of clients from 0 to 2, each once: 3 is repeated or none of them"),
        ((0, 1, 1), "each once: 1 is repeated or none of them"),
        ((0, -1), "each once: -1 is"),
        ((0, True), "each once: True is"),
        ((0, [1]), r"each once: \[1\] is"),
    ],
)
def test_clients_that_are_kept_exist(
    secret: NodeSettings, keep: tuple[int, ...], message: str
) -> None:
    assert replace(secret, clients=3, keep=(2, 0)).keep == (2, 0)
    with pytest.raises(ConfigError, match=message):
        replace(secret, clients=3, keep=keep)


@pytest.mark.parametrize("backend", ["fast", "secure"])
def test_a_policy_makes_settings_with_a_state_folder_of_its_own(
    policy_file: Callable[..., Path], backend: str
) -> None:
    path = policy_file(backend=backend)
    settings = NodeSettings.from_policy(read_policy(path), clients=2)
    state = path.parent / "state"
    assert (settings.clients, settings.partition, settings.noise) == (2, None, backend)
    assert (settings.ledger, settings.replies) == (state / "ledger.sqlite", state / "replies")
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert settings.key().kind == ("secret" if backend == "fast" else "secure")
    assert NodeSettings.from_policy(read_policy(path), clients=2).key() == settings.key()
    assert (state / "noise.key").exists() == (backend == "fast")


def test_a_state_folder_that_cannot_be_made_is_refused(policy_file: Callable[..., Path]) -> None:
    path = policy_file()
    (path.parent / "state").touch()
    with pytest.raises(PrivacyError, match=r"state folder .* cannot be made"):
        NodeSettings.from_policy(read_policy(path))
