from __future__ import annotations

import numpy as np
import pytest

from fedsink.errors import PrivacyError
from fedsink.privacy import checks


def test_numbers_of_other_libraries_become_built_in():
    assert type(checks.positive("x", np.float64(2))) is float
    assert type(checks.count("x", np.int64(2))) is int
    assert type(checks.probability("x", 1)) is float


def test_a_missing_library_is_named():
    with pytest.raises(
        PrivacyError, match=r"package no-such-library .*pip install no-such-library"
    ):
        checks.require("no_such_library.part")
