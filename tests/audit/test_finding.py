from __future__ import annotations

import json

import pytest

from fedsink.audit.finding import Finding


@pytest.mark.parametrize(
    ("claim", "bound", "violated", "unresolved"),
    [(1.0, 0.9, False, False), (1.0, 1.1, True, False), (35.0, 5.6, False, True)],
)
def test_a_finding_is_violated_above_the_claim_and_unresolved_below_its_reach(
    claim: float, bound: float, violated: bool, unresolved: bool
) -> None:
    finding = Finding("runs", "threshold", claim, bound, 0.95, 5.6)
    assert (finding.violated, finding.unresolved) == (violated, unresolved)
    assert json.loads(json.dumps(finding.to_dict()))["violated"] is violated
