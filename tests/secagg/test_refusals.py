from __future__ import annotations

from fedsink.errors import ReleaseRefusedError
from fedsink.protocol.failure_codes import MEANING, REFUSED, failure_code
from fedsink.secagg.refusals import AggregationError, MalformedTripError

REFUSALS = AggregationError.__subclasses__()


def test_every_refusal_has_a_code_of_its_own_and_a_meaning() -> None:
    codes = {failure_code(refusal("why"), 0) for refusal in REFUSALS}
    assert len(codes) == len(REFUSALS) == 12
    assert REFUSED not in codes
    assert codes <= MEANING.keys()
    assert len(set(MEANING.values())) == len(MEANING)


def test_a_refusal_is_one_of_a_release() -> None:
    assert all(issubclass(refusal, ReleaseRefusedError) for refusal in REFUSALS)
    assert issubclass(MalformedTripError, ValueError)
