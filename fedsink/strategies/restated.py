"""Computes the numbers of privacy.json again, from nothing but the plan that is written in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsink.errors import ConfigError, PrivacyError
from fedsink.privacy import LOCAL_NOISE, NoiseShare, PrivacyPlan, domain
from fedsink.privacy.accounting.amplification import shuffling_statement
from fedsink.privacy.accounting.events import epsilon as epsilon_of
from fedsink.privacy.adjacency import REPLACE_ONE
from fedsink.privacy.fixed_point import FixedPoint
from fedsink.privacy.integer_gaussian import IntegerGaussian
from fedsink.privacy.plan import plan_from_dict
from fedsink.protocol.privatize_once import LocalPlan
from fedsink.strategies.central_statement import (
    OF_IMAGES,
    SampleOfRecords,
    central_statement,
    unprotected_statement,
)
from fedsink.strategies.gs_wgan.settings import published_claim
from fedsink.strategies.methods import STRATEGIES
from fedsink.strategies.privatize_once.settings import local_statement

_BEYOND = 1e300
_MOST_CLIENTS = 1_000_000
_PRV_USES = 20_000  # above them Opacus' accountant takes minutes


@dataclass(frozen=True)
class Restated:
    """The promise of a plan.

    Attributes:
        entries: of privacy.json, numbers and words.
        epsilons: ε at the plan's δ by each accountant that has a bound, prv only up to 20,000 uses;
            none where nothing is protected.
        asked: number of messages in which a client is asked, at most.
    """

    entries: Mapping[str, Any]
    epsilons: Mapping[str, float]
    asked: Callable[[int], int]


def restated(stated: Mapping[str, Any]) -> Restated:
    """Returns the promise of the plan in a privacy.json, which need not be trusted.

    Raises:
        ConfigError: an entry is missing or malformed.
        PrivacyError: the plan is none, or has no guarantee.
    """
    plan = stated.get("plan")
    if not isinstance(plan, dict):
        raise ConfigError("it holds no plan from which ε can be computed")
    values = dict(plan)
    mode = values.pop("mode", None)
    try:
        if mode == "central":
            return _central(stated, values)
        if mode == "ldp":
            return _local(stated, values)
    except (ConfigError, PrivacyError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"its plan is malformed ({type(error).__name__}: {error})") from None
    raise ConfigError(f"its plan has the mode {str(mode)[:40]!r}, which is neither central nor ldp")


def _central(stated: Mapping[str, Any], values: dict[str, Any]) -> Restated:
    plan = plan_from_dict(values)
    if values != plan.to_dict():
        raise ConfigError("its plan has entries that no plan has")
    domain.ROUNDS.check_count(plan.rounds)
    clients = _clients(len(stated["clients"]))

    def asked(client: int) -> int:
        return (
            plan.rounds
            if plan.schedule.published
            else plan.schedule.answered(client, plan.rounds + 1)
        )

    if not plan.protected:
        entries = unprotected_statement(plan, clients)
        del entries["mechanism"]
        return Restated(entries, {}, asked)
    accountant, shared = str(stated["accountant"]), stated.get("noise_share")
    if accountant == "prv" and plan.uses > _PRV_USES:
        raise ConfigError(f"its accountant prv takes too long for more than {_PRV_USES:,} uses")
    share = LOCAL_NOISE
    integers: tuple[IntegerGaussian, ...] = ()
    if shared is not None:
        share = NoiseShare(
            shared["name"], shared["tolerate_dropouts"], shared["bits"], masked=shared["masked"]
        )
        share.check(plan.schedule, clients)
        integers = _integers(plan, share, clients, shared)
    entries = central_statement(
        plan, clients, str(stated["noise"]), accountant, share, _sample(stated.get("method")),
        integers,
    )  # fmt: skip
    entries |= published_claim(plan)
    del entries["mechanism"]  # methods say more of it than the plan
    names = plan.cost.accountants(plan.rate)
    if plan.uses > _PRV_USES:
        names = tuple(name for name in names if name != "prv")
    return Restated(entries, {name: plan.epsilon(name) for name in names}, asked)


def _integers(
    plan: PrivacyPlan, share: NoiseShare, clients: int, shared: Mapping[str, Any]
) -> tuple[IntegerGaussian, ...]:
    grid = FixedPoint(shared["granularity"], shared["bits"], shared["radius"])
    return tuple(
        IntegerGaussian(plan, m - share.tolerate_dropouts, grid, shared["values"])
        for m in share.cohorts(plan.schedule, clients)
    )


def _local(stated: Mapping[str, Any], values: dict[str, Any]) -> Restated:
    plan = LocalPlan.from_dict(values)
    image, label = plan.image_mechanism, plan.label_mechanism
    of_scale = type(image).from_scale(plan.map.sensitivity, image.scale, plan.delta).epsilon
    epsilons = {"summation": of_scale + (label.epsilon if label else 0.0)}
    if plan.delta > 0:
        event = image.event if label is None else plan.product.event
        epsilons["pld"] = epsilon_of(event, plan.delta, "pld", REPLACE_ONE)
    clients = _clients(stated["clients"])
    entries = {**local_statement(plan, str(stated["noise"])), "clients": clients}
    if (behind := stated.get("shuffling")) is not None:
        entries["shuffling"] = shuffling_statement(
            plan.total_epsilon, plan.delta, behind["reports"], behind["delta"]
        )
    return Restated(entries, epsilons, lambda client: 1)


def _clients(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= _MOST_CLIENTS:
        raise ConfigError(f"it names {str(number)[:20]!r} clients")
    return number


def _sample(method: object) -> SampleOfRecords:
    """Returns the method's words for its sample; those of DP-Sinkhorn where it states none."""
    settings = STRATEGIES.find(str(method)).Settings
    sample = getattr(settings, "sample", OF_IMAGES)
    return sample if isinstance(sample, SampleOfRecords) else OF_IMAGES


def agree(expected: float, stated: object) -> bool:
    """Tells whether a stated number is the expected one, up to a ten-thousandth of it.

    Libraries and machines differ in the last digits of ε.
    """
    return (
        isinstance(stated, int | float)
        and not isinstance(stated, bool)
        and max(abs(stated), abs(expected)) < _BEYOND  # a longer whole number is no float
        and math.isclose(expected, stated, rel_tol=1e-4, abs_tol=1e-300)
    )
