from __future__ import annotations

import pytest
import torch

from fedsink.evaluation.threads import limit_threads


def test_limits_and_restores():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with limit_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="inside"), limit_threads(1):
            raise RuntimeError("inside")
        assert torch.get_num_threads() == 2
        with limit_threads(None):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_refuses_no_threads():
    with (
        pytest.raises(ValueError, match="threads must be at least 1 or None; received 0"),
        limit_threads(0),
    ):
        pass
