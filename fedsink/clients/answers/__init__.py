"""What a node computes: an answer for each method, their base and their registry."""
