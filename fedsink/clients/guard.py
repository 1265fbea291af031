"""The guard: an owner's policy, ledger and noise around a Flower app that is not fedsink's.

`fedsink node` runs the `ClientApp` that the policy names behind `answer_guarded`, whatever a run
ships. In an app of one's own the mod `guard()` does the same, as far as the app lets it. What a
guard does not do stands in docs/guard.md.

>>> from fedsink import guard
>>> app = ClientApp(mods=[guard()])
"""

from __future__ import annotations

import copy
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsink.clients.answers.central import central_charge
from fedsink.clients.node import open_ledger
from fedsink.clients.node_settings import NodeSettings
from fedsink.clients.owner.ledger.charge import Charge, Reservation, event_to_json
from fedsink.clients.owner.ledger.ledger import Ledger
from fedsink.clients.owner.policy import Policy
from fedsink.clients.owner.policy_file import read_policy
from fedsink.errors import ConfigError, FedsinkError, PrivacyError, ReleaseRefusedError
from fedsink.privacy import PrivacyPlan, RecordClip, domain, epsilon
from fedsink.privacy.accounting.accountants import poisson_gaussian
from fedsink.privacy.adjacency import ADD_REMOVE
from fedsink.privacy.clips import clip_to_norm
from fedsink.protocol.failure_codes import failure_code
from fedsink.values import privacy_checks as checks
from fedsink.values import read_json

log = logging.getLogger("fedsink.clients")

Next = Callable[[Message, Context], Message]
Arrays = Mapping[str, np.ndarray]
Claimed = tuple[Reservation, int, bytes]  # a job, a round of it, the request that noise is for
SIMULATED = "FEDSINK_POLICY"  # names a simulation's policy, whose nodes have no --node-config

_guarded: ContextVar[_Answer | None] = ContextVar("fedsink guard", default=None)


class Guard:
    """`fedsink.guard`: makes the mod of an app, and reserves what the app's own training costs.

    The policy's path comes from `--node-config 'policy="…"'`, which the owner writes, and in a
    simulation from the environment variable FEDSINK_POLICY; every partition of a simulation has a
    state folder, a ledger and a budget of its own.
    """

    def __call__(self) -> Callable[[Message, Context, Next], Message]:
        """Returns the mod: the first one of the app, so that all others run inside it."""
        return _mod

    def reserve(
        self, sample_rate: float | None = None, noise_multiplier: float | None = None,
        steps: int | None = None, *, event: Any = None, rounds: int | None = None,
    ) -> int:  # fmt: skip
        """Charges a job's training by records before its first round, and claims this round.

        The whole job costs ε(δ) of `rounds` times `steps` Poisson-subsampled Gaussians, by PLD:
        (q, σ) are the rate at which a record is sampled in a step, and noise std / clip norm. The
        guard takes the app's word that it trains so, and the ledger says that.

        Args:
            sample_rate: q in (0, 1], of one step.
            noise_multiplier: σ > 0.
            steps: steps in this round; every round of a job has as many.
            event: in place of these three, the `dp_accounting.DpEvent` of one round.
            rounds: rounds of the job, at most the policy's; None: the policy's.

        Returns the number of this round in the job, from 1. Raises ReleaseRefusedError where the
        budget, the policy or an earlier reservation forbids the round, and PrivacyError where a
        value is out of range, or no message is being answered.
        """
        answering = _guarded.get()
        if answering is None or answering.ended:
            raise PrivacyError(
                "guard.reserve is called in the app's own thread while it answers a message under "
                "a guard: ClientApp(mods=[guard()]), or [app] client in a node's policy."
            )
        return answering.reserve((sample_rate, noise_multiplier, steps), event, rounds)


guard = Guard()


def answer_guarded(policy: Policy, message: Message, context: Context) -> Message:
    """Returns the reply of the `ClientApp` that the owner's policy names, behind the guard."""
    own = dict(policy.app.config) if policy.app else {}
    context = Context(context.run_id, context.node_id, context.node_config, RecordDict(), own)
    return _answered(message, context, named_app(policy), lambda: policy, "node")


def named_app(policy: Policy) -> ClientApp:
    """Imports the `ClientApp` that the policy's `[app] client` names; raises ConfigError."""
    if sys.modules.get("pyarrow", log) is None:  # a prepared process does without it, apps may not
        del sys.modules["pyarrow"]
    place = "" if policy.app is None else policy.app.client
    module, _, name = place.partition(":")
    try:
        app = getattr(import_module(module), name)
        if not isinstance(app, ClientApp):
            raise TypeError(f"it is of the type {type(app).__name__}")
    except Exception as error:
        raise ConfigError(
            f"{policy.path}: [app] client = {place!r} cannot be used ({error}): name a ClientApp, "
            '"package.module:app", of a package that is installed beside fedsink.'
        ) from error
    return app


def _mod(message: Message, context: Context, call_next: Next) -> Message:
    if _guarded.get() is not None:  # a node's guard, or the app's, stands around this one
        return call_next(message, context)
    return _answered(message, context, call_next, lambda: _policy_of(context), "application")


def _policy_of(context: Context) -> Policy:
    given = context.node_config.get("policy")
    if given is None and (path := os.environ.get(SIMULATED)):
        policy = read_policy(Path(path))
        part = f"client-{context.node_config.get('partition-id', 0)}"
        return replace(policy, state=policy.state / part, lineage=f"{policy.lineage}/{part}")
    if not isinstance(given, str) or not given:
        raise ConfigError(
            'The guard has no policy: add policy="/path/to/policy.toml" to --node-config, or for a '
            f"simulation export {SIMULATED}=/path/to/policy.toml before its SuperLink starts."
        )
    return read_policy(Path(given))


def _answered(
    message: Message, context: Context, app: Next, policy_of: Callable[[], Policy], by: str
) -> Message:
    answering = None
    try:
        answering = _Answer(message, context, app, policy_of(), by)
        return Message(answering.content(), reply_to=message)
    except Exception as error:
        if answering is not None and isinstance(error, ReleaseRefusedError):
            answering.ledger.note_refused(type(error).__name__)
        client = context.node_config.get("partition-id", 0)
        return Message(Error(failure_code(error, client)), reply_to=message)
    finally:
        if answering is not None and answering.simulated:
            answering.ledger.close()


class _Answer:
    """Answers one message: charges its job, asks the app, and lets out what the policy allows.

    Guarantees:
        - A job is charged whole, and a message's round of it claimed, before the app is asked for
          an update, and before `reserve` returns.
        - Every message is a round of its own, a repeated one too; one beyond the plan is refused.
        - An update leaves as the parameters received, plus the clipped difference, plus Gaussian
          noise of std σ·Δ: without the noise, the absence of a client's data moves it by at most Δ.
        - An app that fails, or sends other arrays or values that are not finite, has an update of
          zeros: the server sees noise alone.
        - Parameters of a job of records leave only where their round was reserved.
        - Integers go back as received, and the number of examples is the policy's.
        - A metric leaves only where the policy bounds it, with noise of its own, charged by itself.
        - No text, record or array leaves that the app named.
    """

    def __init__(
        self, message: Message, context: Context, app: Next, policy: Policy, by: str
    ) -> None:
        if policy.app is None:
            raise ConfigError(f"{policy.path} has no table [app]: see docs/guard.md.")
        self._policy, self._table, self._by = policy, policy.app, by
        self._message, self._context, self._app = message, context, app
        self._kind = message.metadata.message_type.partition(".")[0]
        self._run = f"flower-{message.metadata.run_id}"
        self._settings = NodeSettings.from_policy(policy)
        self.simulated = "policy" not in context.node_config
        if self.simulated:  # in a state folder of the partition's
            self.ledger = Ledger(policy.ledger, durable=False)
        else:
            self.ledger = open_ledger(self._settings)
        self.ended = False  # a thread that outlives the message reserves nothing
        self._reserved: Claimed | None = None
        self._refusal: FedsinkError | None = None

    def content(self) -> RecordDict:
        if self._kind == "train":
            return self._trained()
        if self._kind == "evaluate":
            claimed = self._claim_metrics()
            return RecordDict({"metrics": self._metrics(claimed and self._asked(), claimed)})
        raise ReleaseRefusedError(
            f"The guard answers messages to train and to evaluate, and this is {self._kind!r}: "
            "whatever a query returns would leave uncharged."
        )

    def reserve(self, one: tuple[Any, Any, Any], event: Any, rounds: int | None) -> int:
        table = self._table
        try:
            planned = checks.count("rounds", table.rounds if rounds is None else rounds)
            if self._kind != "train" or table.plan is not None or planned > table.rounds:
                raise ReleaseRefusedError(
                    f'{self._policy.path.name} lets an app reserve under job = "records", to train '
                    f"for at most {table.rounds} rounds: this one reserves {planned} rounds to "
                    f'{self._kind}, under job = "{"records" if table.plan is None else "update"}".'
                )
            if event is None:
                rate = checks.probability("sample_rate", one[0])
                sigma = domain.NOISE_MULTIPLIER.check(checks.positive("noise_multiplier", one[1]))
                event = poisson_gaussian(rate, sigma, checks.count("steps", one[2]) * planned)
            elif one == (None, None, None):
                event = checks.require("dp_accounting").SelfComposedDpEvent(event, planned)
            else:
                raise PrivacyError("reserve(sample_rate, noise_multiplier, steps) or event=….")
            plan = {"event": read_json(event_to_json(event)), "training": "as the app says"}
            plan |= {"rounds": planned, "delta": table.delta}
            charge = Charge(
                ADD_REMOVE, plan, event, planned, planned, table.delta,
                epsilon=lambda: epsilon(event, table.delta),
            )  # fmt: skip
            self._reserved = self._claim(charge, "records")
        except FedsinkError as error:
            self._refusal = error
            raise
        return self._reserved[1]

    def _claim(self, charge: Charge, kind: str) -> Claimed:
        """Commits the charge of a job, and then a round of it."""
        self._policy.check_budget(charge.adjacency, charge.delta)
        words = {"guard": kind, "enforced_by": self._by, "share": self._table.share}
        reservation = self.ledger.reserve(
            self._policy.lineage,
            f"{self._run}/{kind}" if kind.endswith("metrics") else self._run,
            replace(charge, plan={**charge.plan, **words}),
            self._policy.budgets[charge.adjacency],
            method=f"guard: {kind}",
        )
        digest = os.urandom(32)  # noise is never drawn again, not even beside an older ledger
        return reservation, self.ledger.claim_next(reservation, digest), digest

    def _claim_metrics(self) -> Claimed | None:
        plan = self._table.metrics_plan
        return None if plan is None else self._claim(central_charge(plan), f"{self._kind} metrics")

    def _trained(self) -> RecordDict:
        records, plan = self._message.content.array_records, self._table.plan
        if len(records) != 1 or "fitins.parameters" in records:
            raise ValueError(
                "a message to train holds one ArrayRecord, as those of flwr.serverapp's strategies "
                f"do, and this one {sorted(records)}."
            )
        [(key, record)] = records.items()
        received = {name: array.numpy() for name, array in record.items()}  # before the app runs
        before = _floats(received)
        claimed = None if plan is None else self._claim(central_charge(plan), "update")
        claimed_metrics = self._claim_metrics()
        reply = self._asked()
        after = self._like(received, reply)
        if plan is not None and claimed is not None:
            after = self._noised_update(plan, before, before if after is None else after, claimed)
        elif self._refusal is not None:
            raise self._refusal
        elif after is None:
            raise RuntimeError("the app failed, or sent other arrays than it received")
        elif (claimed := self._reserved) is None:
            raise ReleaseRefusedError(
                "The app has trained and reserved nothing: call guard.reserve(sample_rate, "
                "noise_multiplier, steps) before it trains."
            )
        metrics = self._metrics(reply, claimed_metrics)
        self.ledger.note_released(claimed[0], [claimed[1]])
        with np.errstate(over="ignore"):
            arrays = {n: Array(np.asarray(after.get(n, v), v.dtype)) for n, v in received.items()}
        return RecordDict({key: ArrayRecord(arrays), "metrics": metrics})

    def _noised_update(
        self, plan: PrivacyPlan, before: Arrays, after: Arrays, claimed: Claimed
    ) -> Arrays:
        changes = (np.asarray(after[name] - values) for name, values in before.items())
        rows = [torch.from_numpy(change).reshape(1, -1) for change in changes]
        if self._table.layers:
            rows = [clip_to_norm(row, plan.clip.bound / math.sqrt(len(rows))) for row in rows]
        noised = self._noised(plan.with_noise(1 / self._table.share), torch.cat(rows, 1), claimed)
        pieces = noised.split([row.numel() for row in rows])
        moved = zip(before.items(), pieces, strict=True)
        return {n: values + piece.reshape(values.shape).numpy() for (n, values), piece in moved}

    def _metrics(self, reply: Message | None, claimed: Claimed | None) -> MetricRecord:
        shown: dict[str, float] = {}
        if claimed is not None and self._table.metrics_plan is not None:
            records = [] if reply is None else reply.content.metric_records.values()
            found = {n: v for r in records for n, v in r.items() if not isinstance(v, list)}
            ends = self._table.metrics.items()
            inside = [min(max(low, found.get(n, low)), high) for n, (low, high) in ends]  # no NaN
            low, high = torch.tensor([both for _, both in ends], dtype=torch.float64).T
            scaled = (torch.tensor(inside, dtype=torch.float64) - low) / (high - low)
            noised = self._noised(self._table.metrics_plan, scaled[None], claimed)
            values = (low + (high - low) * noised).tolist()
            shown = dict(zip(self._table.metrics, values, strict=True))
        return MetricRecord({"num-examples": self._policy.data.nominal_records, **shown})

    def _noised(self, plan: PrivacyPlan, row: torch.Tensor, claimed: Claimed) -> torch.Tensor:
        _, round, digest = claimed
        stream = self._settings.key().stream("guard", client=0, round=round, request=digest)
        return plan.release(RecordClip.expect(plan.clip).sum(row), stream)

    def _asked(self) -> Message | None:
        """Returns the app's reply to a copy of the message; None where it failed."""
        token = _guarded.set(self)
        try:
            reply = self._app(copy.deepcopy(self._message), self._context)
            if isinstance(reply, Message) and not reply.has_error():
                return reply
            log.error("the app answers with an error, or with something that is no message")
        except (Exception, SystemExit):
            if self._refusal is not None:
                return None
            log.exception("the app failed")
        finally:
            _guarded.reset(token)
            self.ended = True
        self.ledger.note_refused("AppFailed")  # for the owner: the server may see noise alone
        return None

    def _like(self, received: Arrays, reply: Message | None) -> Arrays | None:
        """Returns the floats of a reply; None unless its arrays are like those received."""
        try:
            [record] = [] if reply is None else reply.content.array_records.values()
            sent = {name: array.numpy() for name, array in record.items()}
            mine, theirs = (
                {name: (values.shape, values.dtype.kind) for name, values in arrays.items()}
                for arrays in (received, sent)
            )
            if mine != theirs:
                raise ValueError(f"{theirs} are not {mine}")
            return _floats(sent)
        except Exception as error:
            log.error("the app sent no parameters like those that it received: %s", error)
            return None


def _floats(arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns the arrays of floats in float64; refuses none of them, and what is not finite."""
    floats = {n: v.astype(np.float64) for n, v in arrays.items() if v.dtype.kind == "f"}
    if not floats or not all(np.isfinite(v).all() for v in floats.values()):
        raise ValueError("the arrays hold no floats, or values that are not finite.")
    return floats
