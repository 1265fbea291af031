"""Secure aggregation: a server learns the sum of clients' integer vectors, and no summand.

The protocol of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine
learning", Figure 4, in its variant against an active server, over the graph of Bell et al. 2020 in
large cohorts. `client.ClientSession` and `server.ServerSession` are its two sides. Nothing here
knows Flower or torch: messages are bytes, vectors numpy arrays. docs/secure_aggregation.md is for
whoever audits it.
"""
