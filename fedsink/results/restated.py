"""Computes the numbers of privacy.json again, from nothing but the plan that is written in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from fedsink.configuration import COMPOSED
from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy import LOCAL_NOISE, NoiseShare, domain
from fedsink.privacy.accounting.amplification import shuffling_statement
from fedsink.privacy.accounting.comparison import MANY_POINTS
from fedsink.privacy.accounting.events import epsilon as epsilon_of
from fedsink.privacy.adjacency import REPLACE_ONE
from fedsink.privacy.integer_gaussian import FixedPoint, IntegerGaussian
from fedsink.privacy.plan import plan_from_dict
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.strategies.base.central_statement import (
    central_statement,
    unprotected_statement,
)
from fedsink.strategies.base.central_strategy import CentralSettings
from fedsink.strategies.base.private_start import plans_of, with_start
from fedsink.strategies.gs_wgan import of_critics, published_claim
from fedsink.strategies.methods import STRATEGIES
from fedsink.strategies.privatize_once import local_statement
from fedsink.values import MOST_CLIENTS, read_ranges

_BEYOND = 1e300


@dataclass(frozen=True)
class Restatement:
    """The promise of a plan."""

    entries: Mapping[str, Any]  # of privacy.json, numbers and words
    clients: int  # K
    epsilons: Mapping[str, float]  # ε at the plan's δ by accountant; none: nothing is protected
    left_out: Mapping[str, str]  # accountants without an answer, and why
    records: int | None  # public number of a client's records, where the plan says one
    # By client, and whether its owner trusts the aggregation: plan and largest ε that it signs.
    charged: Callable[[int, bool], tuple[Mapping[str, Any], float]]
    # The clients whose noise is added up with this one's, and the fewest of them.
    cohort: Callable[[int], tuple[range, int]]


def restated(privacy: Mapping[str, Any]) -> Restatement:
    """Returns the promise of the plan in a privacy.json, which need not be trusted."""
    plan, start = privacy.get("plan"), privacy.get("start")
    if not isinstance(plan, dict):
        raise ConfigError("it holds no plan from which ε can be computed")
    values = dict(plan)
    mode = values.pop("mode", None)
    try:
        if plans_of(start) and isinstance(start, dict) and mode == "central":
            alone, how = _central(privacy, values), str(start["start_plan"])
            entries = with_start(alone.entries, plan_from_dict(values), start, how)
            by = "pld" if how == COMPOSED else "summation"
            of_all = {by: entries["epsilon"]} if alone.epsilons else {}
            return replace(alone, entries=entries, epsilons=of_all, left_out={})
        if mode == "central":
            return _central(privacy, values)
        if plans_of(start):
            raise ConfigError("its start has a plan, and its own is not of mode=central")
        if mode == "ldp":
            return _local(privacy, values)
    except (ConfigError, PrivacyError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"its plan is malformed ({type(error).__name__}: {error})") from None
    raise ConfigError(f"its plan has the mode {str(mode)[:40]!r}, which is neither central nor ldp")


def _central(privacy: Mapping[str, Any], values: dict[str, Any]) -> Restatement:
    plan = plan_from_dict(values)
    if values != plan.to_dict():
        raise ConfigError("its plan has entries that no plan has")
    domain.ROUNDS.check_count(plan.rounds)
    listed = read_ranges(privacy["clients"], MOST_CLIENTS)
    clients = _clients(sum(len(some) for some, _ in listed))
    if listed[-1][0].stop != clients:
        raise ConfigError("it leaves out clients")
    names = [{"client": entry["client"]} for _, entry in listed]  # numbers or ranges, as there
    if not plan.protected:
        entries = unprotected_statement(plan, clients)
        entries["clients"] = [entries["clients"][0] | name for name in names]
        return Restatement(entries, clients, {}, {}, plan.nominal_records, *_alone(privacy, 0.0))
    accountant, shared = str(privacy["accountant"]), privacy.get("noise_share")
    share, integers = LOCAL_NOISE, dict[int, IntegerGaussian]()
    if shared is not None:
        share = NoiseShare(
            shared["name"], shared["tolerate_dropouts"], shared["bits"], masked=shared["masked"]
        )
        share.check(plan.schedule, clients)
        grid = FixedPoint(shared["granularity"], shared["bits"], shared["radius"])
        integers = {
            m: IntegerGaussian(plan, m - share.tolerate_dropouts, grid, shared["values"])
            for m in share.cohorts(plan.schedule, clients)
        }
    settings = STRATEGIES.find(str(privacy.get("method"))).Settings
    if not issubclass(settings, CentralSettings):
        raise ConfigError(f"its plan is of mode=central, and its method {settings.name} is not")
    entries = central_statement(
        plan, clients, str(privacy["noise"]), settings.sample, accountant, share,
        tuple(integers.values()),
    )  # fmt: skip
    entries["clients"] = [entries["clients"][0] | name for name in names]
    entries |= of_critics(plan, accountant) if "critics" in privacy else {}
    entries |= published_claim(plan)
    if "trade_off" not in privacy:  # of an earlier version
        del entries["trade_off"]
    epsilons = {accountant: plan.epsilon(accountant)}
    others = {*plan.cost.accountants(plan.rate)} - {accountant}
    at = plan.rate, plan.noise_multiplier, plan.cost.uses(plan.rounds), plan.delta
    slow = {"prv"} & others if plan.cost.prv_points(*at) > MANY_POINTS else set[str]()
    quick = sorted(others - slow)
    answered, left_out = _answered({name: partial(plan.epsilon, name) for name in quick})
    left_out |= dict.fromkeys(slow, "it would take long")
    epsilons |= answered
    of_promise: tuple[Any, Any] = _alone(privacy, max(entries["epsilon"], epsilons.get("pld", 0.0)))
    if integers:

        @cache
        def of_cohort(size: int, trusted: bool) -> tuple[Mapping[str, Any], float]:
            one = integers[size]
            of_reply = plan if trusted else plan.with_noise(1 / one.parts)
            signed = {**privacy["plan"], **one.entries(), "aggregation_trusted": trusted}
            return signed, of_reply.epsilon() + one.divergence

        def charged(client: int, trusted: bool) -> tuple[Mapping[str, Any], float]:
            return of_cohort(plan.schedule.cohort(client, clients), trusted)

        def cohort(client: int) -> tuple[range, int]:
            members = plan.schedule.members(client, clients)
            return members, len(members) - share.tolerate_dropouts

        of_promise = charged, cohort
    return Restatement(entries, clients, epsilons, left_out, plan.nominal_records, *of_promise)


def _alone(privacy: Mapping[str, Any], epsilon: float) -> tuple[Any, Any]:
    """Returns `charged` and `cohort` of clients each of which adds the whole noise."""
    return (
        lambda client, trusted: (privacy["plan"], epsilon),
        lambda client: (range(client, client + 1), 1),
    )


def _local(privacy: Mapping[str, Any], values: dict[str, Any]) -> Restatement:
    plan = LocalPlan.from_dict(values)
    image, label = plan.image_mechanism, plan.label_mechanism
    of_scale = type(image).from_scale(plan.map.sensitivity, image.scale, plan.delta).epsilon
    others: dict[str, Callable[[], float]] = {}
    if plan.delta > 0:
        event = image.event if label is None else plan.product.event
        others["pld"] = lambda: epsilon_of(event, plan.delta, "pld", REPLACE_ONE)
    bounds, left_out = _answered(others)
    epsilons = {"summation": of_scale + (label.epsilon if label else 0.0), **bounds}
    clients = _clients(privacy["clients"])
    entries = {**local_statement(plan, str(privacy["noise"])), "clients": clients}
    if (behind := privacy.get("shuffling")) is not None:
        entries["shuffling"] = shuffling_statement(
            plan.total_epsilon, plan.delta, behind["reports"], behind["delta"]
        )
    most = max(plan.total_epsilon, *epsilons.values())
    return Restatement(entries, clients, epsilons, left_out, None, *_alone(privacy, most))


def _answered(
    accountants: Mapping[str, Callable[[], float]],
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns ε by accountants, and why others have no answer: nothing rests on theirs alone."""
    epsilons: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, epsilon in accountants.items():
        try:
            if math.isfinite(bound := epsilon()):
                epsilons[name] = bound
            else:
                left_out[name] = "its bound is infinite"
        except (PrivacyError, MemoryError, ArithmeticError, ValueError) as error:
            left_out[name] = " ".join(str(error).split())[:120] or type(error).__name__
    return epsilons, left_out


def _clients(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= MOST_CLIENTS:
        raise ConfigError(f"it names {str(number)[:20]!r} clients")
    return number


def agree(expected: float, value: object) -> bool:
    """True for the expected number up to 1e-4: libraries differ in the last digits of ε."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and max(abs(value), abs(expected)) < _BEYOND  # a longer whole number is no float
        and math.isclose(expected, value, rel_tol=1e-4, abs_tol=1e-300)
    )
