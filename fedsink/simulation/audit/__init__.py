"""Audits: the real client functions run on canaries, and the bounds that their replies prove.

The auditor plays a malicious server: it chooses every public part of a request, and knows the
one or two shards that a reply can come from.
"""

from __future__ import annotations

from fedsink.simulation.audit.central import audit_transcripts
from fedsink.simulation.audit.critics import audit_critics
from fedsink.simulation.audit.local import audit_local, line_plan
from fedsink.simulation.audit.one_run import audit_one_run
from fedsink.simulation.audit.schema import (
    audit_critic_schema,
    audit_schema,
    check_reply_schema,
)

__all__ = [
    "audit_critic_schema",
    "audit_critics",
    "audit_local",
    "audit_one_run",
    "audit_schema",
    "audit_transcripts",
    "check_reply_schema",
    "line_plan",
]
