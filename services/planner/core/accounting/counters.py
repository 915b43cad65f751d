"""Agents' energy counters, which only grow: consumption is a difference, even if reports repeat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Final, NamedTuple

from services.kit.grouping import summed

_MARGIN: Final = 1.25
"""Allowance for a GPU's power limit, which can be raised above its default."""

_MOST_RPS: Final = 1e6
"""Most requests per second that a GPU's segments may report."""


@dataclass(frozen=True, slots=True)
class ModelEnergy:
    """Consumption of a model on a GPU.

    Attributes:
        active_j: Active energy, J.
        idle_share_j: Share of idle energy, reported separately, J.
        requests: Answered requests.
    """

    active_j: float = 0.0
    idle_share_j: float = 0.0
    requests: int = 0

    def __add__(self, other: ModelEnergy) -> ModelEnergy:
        return ModelEnergy(
            self.active_j + other.active_j,
            self.idle_share_j + other.idle_share_j,
            self.requests + other.requests,
        )

    def beyond(self, last: ModelEnergy) -> ModelEnergy:
        """Return the consumption since `last`; a counter that is lower adds nothing."""
        return ModelEnergy(
            max(self.active_j - last.active_j, 0.0),
            max(self.idle_share_j - last.idle_share_j, 0.0),
            max(self.requests - last.requests, 0),
        )


@dataclass(frozen=True, slots=True)
class EnergyCounters:
    """A GPU's counters, as reported by its agent.

    By model, not by segment: agents merge the entries of segments that ended long ago, which does
        not
    change the sum over a model's entries.

    Attributes:
        since_s: Start of the agent's account, Unix time, s; 0: unknown.
        at_s: Time of the report, Unix time, s.
        total_j: Metered energy, J.
        idle_j: Idle energy in it, J.
        models: Consumption of each model in it; None: unknown (older planners kept totals only).
        method: Energy method of total_j; "": unknown.
    """

    since_s: float
    at_s: float
    total_j: float
    idle_j: float = 0.0
    models: Mapping[str, ModelEnergy] | None = field(default_factory=dict)
    method: str = ""


@dataclass(frozen=True, slots=True)
class EnergyDrawn:
    """Energy drawn by a GPU over a stretch of time.

    Attributes:
        start_s, end_s: Start and end, Unix time, s.
        total_j: Total energy, J.
        idle_j: Idle energy in it, J.
        models: Consumption of each model in it.
        method: Energy method of total_j; "": unknown.
    """

    start_s: float
    end_s: float
    total_j: float
    idle_j: float
    models: Mapping[str, ModelEnergy]
    method: str = ""

    @property
    def unattributed_j(self) -> float:
        """The rest, J; it includes the agent's rounding, so that the parts sum to the whole."""
        return self.total_j - fsum((self.idle_j, *(used.active_j for used in self.models.values())))


def together(draws: Iterable[EnergyDrawn]) -> EnergyDrawn:
    """Return the energy that several GPUs drew over the same time, metered by the same method."""
    draws = tuple(draws)
    return replace(
        draws[0],
        total_j=fsum(drawn.total_j for drawn in draws),
        idle_j=fsum(drawn.idle_j for drawn in draws),
        models=summed(used for drawn in draws for used in drawn.models.items()),
    )


class Bounded(NamedTuple):
    """The plausible part of a report.

    Attributes:
        counters: The counters as accepted.
        clamped: Names of the counters that were cut.
        used_s: Time that the GPU needed for the new part, s.
    """

    counters: EnergyCounters
    clamped: tuple[str, ...]
    used_s: float


def bounded(
    last: EnergyCounters | None, reported: EnergyCounters, max_power_w: float, available_s: float
) -> Bounded:
    """Return the plausible part of a report.

    A counter grows by at most what the GPU can do in a time. A part that was cut although true is
    booked later, as counters advance only by the booked amount.

    Args:
        last: Counters before the report; None: the GPU's account begins here.
        reported: The report of the agent.
        max_power_w: The GPU's power limit, W; inf: unknown.
        available_s: Time in which the GPU can have done the reported work, s.
    """
    clamped: dict[str, None] = {}
    if not 0 <= reported.since_s <= reported.at_s:
        clamped["since"] = None
        reported = replace(reported, since_s=0.0)
    base = EnergyCounters(0.0, 0.0, 0.0)
    if last is None:  # since 1970 if its start is unknown
        available_s = reported.at_s - reported.since_s
    elif not _is_new(last, reported):
        base = last
    rate_w, used_s = max_power_w * _MARGIN, 0.0

    def cut(name: str, value: float, before: float, rate: float) -> float:
        nonlocal used_s
        most = before + rate * available_s
        if value > most:
            clamped[name] = None
        if value > before and 0 < rate < math.inf:
            used_s = max(used_s, (min(value, most) - before) / rate)
        return min(value, most)

    def model(name: str, used: ModelEnergy) -> ModelEnergy:
        before = (base.models or {}).get(name, ModelEnergy())
        return ModelEnergy(
            cut("active_j", used.active_j, before.active_j, rate_w),
            cut("idle_share_j", used.idle_share_j, before.idle_share_j, rate_w),
            int(cut("requests", used.requests, before.requests, _MOST_RPS)),
        )

    found = replace(
        reported,
        total_j=cut("total_j", reported.total_j, base.total_j, rate_w),
        idle_j=cut("idle_j", reported.idle_j, base.idle_j, rate_w),
        models={name: model(name, used) for name, used in (reported.models or {}).items()},
    )
    return Bounded(found, tuple(clamped), 0.0 if last is None else used_s)


def advance(
    last: EnergyCounters | None, reported: EnergyCounters
) -> tuple[EnergyCounters, EnergyDrawn | None]:
    """Return the counters after a report, and the energy drawn since the last one.

    Args:
        last: Counters before; None: the GPU's account begins here, with no energy.
        reported: The report of the agent.

    Returns:
        Counters that never fall within one account of the agent: a repeated report draws nothing,
            nor does a late one, or one of an agent that lost its last seconds in a crash, until it
            has passed the old value. An account that began later than the last one counts from
            zero. None: there is nothing to book.
    """
    if last is None:
        return reported, None
    if 0 < reported.since_s < last.since_s:
        return last, None
    if _is_new(last, reported):
        last = replace(last, total_j=0.0, idle_j=0.0, models={})
    if reported.models is None or last.models is None:
        drawn = EnergyDrawn(
            last.at_s, reported.at_s, max(reported.total_j - last.total_j, 0.0), 0.0, {}
        )
        return reported, drawn
    unused = ModelEnergy()
    models = {
        model: used.beyond(last.models.get(model, unused))
        for model, used in reported.models.items()
    }
    drawn = EnergyDrawn(
        start_s=last.at_s,
        end_s=reported.at_s,
        total_j=max(reported.total_j - last.total_j, 0.0),
        idle_j=max(reported.idle_j - last.idle_j, 0.0),
        models={model: used for model, used in models.items() if used != unused},
        method=reported.method,
    )
    grown = {model: last.models.get(model, unused) + used for model, used in models.items()}
    return (
        replace(
            reported,
            total_j=max(reported.total_j, last.total_j),
            idle_j=max(reported.idle_j, last.idle_j),
            models={**last.models, **grown},
        ),
        drawn,
    )


def _is_new(last: EnergyCounters, reported: EnergyCounters) -> bool:
    """Return whether the agent has begun a new account.

    Where either start is unknown, a lower total is taken as a new account.
    """
    if last.since_s and reported.since_s:
        return reported.since_s > last.since_s
    return reported.total_j < last.total_j
