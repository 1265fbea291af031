from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from fedsink.clients.settings import NodeSettings
from fedsink.errors import PrivacyError


def test_a_seed_makes_reproducible_noise(settings: NodeSettings) -> None:
    assert settings.key().kind == "reproducible"


def test_a_key_file_makes_secret_noise(secret: NodeSettings) -> None:
    assert secret.key().kind == "secret"


def test_neither_seed_nor_key_is_refused(settings: NodeSettings) -> None:
    with pytest.raises(PrivacyError, match=r"needs a seed .* or a key_file"):
        replace(settings, seed=None).key()


def test_a_secret_key_without_a_journal_is_refused(secret: NodeSettings) -> None:
    """Pitfall 9: nothing would remember what was answered."""
    with pytest.raises(PrivacyError, match="needs a journal"):
        replace(secret, journal=None).key()


def test_a_key_that_others_can_read_is_refused(secret: NodeSettings) -> None:
    assert secret.key_file is not None
    os.chmod(secret.key_file, 0o644)
    with pytest.raises(PrivacyError, match="mode 0644"):
        secret.key()


def test_a_missing_key_file_is_refused(secret: NodeSettings, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="cannot be read"):
        replace(secret, key_file=tmp_path / "gone.key").key()


def test_settings_are_small_hashable_and_picklable(secret: NodeSettings) -> None:
    """Engines ship them with every worker, and nodes are found by them."""
    data = pickle.dumps(secret)
    assert len(data) < 2000
    assert pickle.loads(data) == secret
    assert hash(pickle.loads(data)) == hash(secret)
