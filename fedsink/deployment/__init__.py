"""Runs on real nodes: the parts of server, nodes and submitter that a simulation lacks."""
