"""Audits: a node's answers played on neighbouring data sets, and the ε that the replies exclude."""
