"""The sub-commands of `fedsink`: modules with `HELP` and `run(arguments, debug) -> exit code`."""

from __future__ import annotations

COMMANDS = {
    "simulate": "learn a generator from simulated clients (mode=central or mode=ldp)",
    "suggest": "settings for your own data, from only public sizes",
    "deploy": "learn a generator on real nodes, through a Flower SuperLink",
    "node": "answer a SuperLink from private data, under their owner's policy",
    "fetch": "get the results of a deployed run that ended without you",
    "sample": "draw labelled images from a finished run into .npz, .parquet or a folder",
    "card": "a model card of a finished run, in the format of Hugging Face",
    "evaluate": "train classifiers on synthetic images and test them on real ones",
    "report": "one page about a run: its promise, what left each client, its pictures",
    "verify": "check a run's promise, files and nodes' signatures, without its data",
    "compare": "runs side by side in a page: promises, pictures, accuracy, curves",
    "ledger": "charges and states of a node: show, check, export, statement, forget-states",
    "operator": "the key that signs a deployment's requests, for the owners' policies",
    "account": "ε, σ, rate or rounds of either mode, by every accountant",
    "audit": "lower bounds on ε from canaries and repeated runs, next to the claim",
}

NEEDS = {
    **dict.fromkeys(("simulate", "suggest", "deploy"), "hydra"),
    **dict.fromkeys(("report", "compare"), "matplotlib"),
    **dict.fromkeys(("node", "fetch", "evaluate", "verify", "audit"), "flwr"),
}
"""Packages of commands beyond the requirements of fedsink-core, whose extra `node` has flwr."""

ALONE = ("simulate", "deploy", "sample", "evaluate", "report", "compare", "operator")
"""The commands that without arguments run, or say what is missing; the others print their help."""

ACTIONS = {
    "ledger": ("show", "check", "export", "statement", "forget-states"),
    "node": ("key", "certify"),
}
"""Second words of the commands that have them."""
