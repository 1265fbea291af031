"""Audits: the client's own functions run on canaries, and the ε that their replies exclude.

The auditor plays a malicious server: it chooses every public part of a request, and knows the
one or two shards that a reply can come from. `bounds` and `finding` are pure functions of counts
and features; a file with a method's name has what `fedsink audit` and `fedsink account` need of
that method.
"""
