"""A run on real nodes: what its server, its nodes and its submitter need beyond a simulation."""
