"""Audits: the client's own functions run on canaries, and the ε that their replies exclude.

The auditor plays a malicious server: it chooses every public part of a request, and knows the
one or two shards that a reply can come from. `bounds`, `discriminant`, `guesses` and `finding` are
pure functions of counts and features; the other modules run the mechanisms.
"""
