"""The answers beside a real node's data, given in forks of one prepared process.

Importing this prepares that process: multiprocessing's fork server (`clients/runner_process.py`)
does so once, and nothing else does.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import torch
from flwr.app import Context, Error, Message, RecordDict
from PIL import Image

from fedsink.clients.answers.registry import ANSWERS
from fedsink.clients.app import app, owners_settings
from fedsink.clients.guard import answer_guarded, named_app
from fedsink.clients.node import TOLD, open_node
from fedsink.clients.owner.policy import Policy
from fedsink.clients.owner.policy_file import read_policy
from fedsink.errors import ConfigError, FedsinkError
from fedsink.protocol.failure_codes import failure_code

Config = Mapping[str, bool | float | int | str]

# OpenDP loads scikit-learn where it is installed, that loads pandas, and pandas loads pyarrow,
# which starts threads. All of them do without it.
sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]
for _name in (  # imported by answers when first needed; the last where it is installed
    "PIL.ImageOps",
    "dp_accounting.pld.privacy_loss_distribution",
    "dp_accounting.rdp",
    "opendp.prelude",
):
    with contextlib.suppress(ImportError):  # code that needs it raises an error
        import_module(_name)
Image.init()
torch.set_num_threads(1)

_tasks = Path("/proc/self/task")
THREADS = len(list(_tasks.iterdir())) if _tasks.is_dir() else threading.active_count()
"""Threads that the prepared process has: a fork leaves the locks of all but one behind."""


def opened(config: Config) -> tuple[int, str]:
    """Checks policy, key, state and records; gives an exit code, and a sentence for the owner."""
    try:
        settings = owners_settings(_context(config))
        policy = read_policy(Path(str(config["policy"])))
        aggregation = policy.aggregation
        if aggregation is not None and aggregation.minimum_cohort > settings.clients:
            raise ConfigError(
                f"{policy.path} says aggregation.minimum_cohort = {aggregation.minimum_cohort}, "
                f"and clients={settings.clients} take part: no sum is ever unmasked. Lower it, or "
                "have more clients."
            )
        try:
            node = open_node(settings, int(config["partition-id"]))
        except ValueError as error:  # there is no such client
            raise ConfigError(str(error)) from None
        if policy.allowed.mechanisms:
            _ = node.shard
        if policy.app is not None:
            named_app(policy)
        return 0, _admitted(policy)
    except FedsinkError as error:
        return error.exit_code, str(error)


def answered(config: Config, message: Message) -> Message:
    """Returns the reply of the installed `fedsink.clients.app`, whatever app a run names.

    Where the policy names another installed app, that one answers behind the guard.
    """
    metadata = message.metadata
    try:
        context = _context(config, metadata.run_id, metadata.dst_node_id)
        kind, _, action = metadata.message_type.partition(".")
        if kind in ("train", "evaluate") and action not in ANSWERS:
            policy = read_policy(Path(str(config["policy"])))
            if policy.app is not None:
                return answer_guarded(policy, message, context)
        TOLD.add(owners_settings(context).data)  # the fork that opened the node told their owner
        return app(message, context)
    except Exception as error:  # no type of message that the app knows
        return Message(Error(failure_code(error, config["partition-id"])), reply_to=message)


def _context(config: Config, run_id: int = 1, node_id: int = 1) -> Context:
    return Context(run_id, node_id, dict(config), RecordDict(), {})


def _admitted(policy: Policy) -> str:
    """Returns a line for the owner: the allowed answers, their limits, and the state folder."""
    budgets = (f"ε ≤ {b.epsilon:g}, δ ≤ {b.delta:g} {name}" for name, b in policy.budgets.items())
    rule, least, shared = policy.allowed.secure_aggregation, policy.aggregation, ""
    if rule != "refused":
        sums = "" if least is None else f" in sums of at least {least.minimum_cohort} clients"
        shared = f", shared{sums} ({rule})"
    guarded = [] if policy.app is None else [f"{policy.app.client} (guarded)"]
    answers = ", ".join([*policy.allowed.mechanisms, *guarded])
    return (
        f"{policy.lineage}: answers {answers}; {'; '.join(budgets)}; "
        f"noise={policy.noise}{shared}; state in {policy.state}"
    )


gc.collect()
gc.freeze()  # what is imported stays shared with every fork
