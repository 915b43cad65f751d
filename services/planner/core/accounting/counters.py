"""Agents' counters only grow: consumption is a difference, even if reports come twice or late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import fsum


@dataclass(frozen=True, slots=True)
class ModelEnergy:
    """What a model used on a GPU.

    Attributes:
        active_j: Active energy, J.
        idle_share_j: Its share of idle energy, reported separately, J.
        requests: Answered.
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
        """Return what was used since `last`; a counter that is lower adds nothing."""
        return ModelEnergy(
            max(self.active_j - last.active_j, 0.0),
            max(self.idle_share_j - last.idle_share_j, 0.0),
            max(self.requests - last.requests, 0),
        )


@dataclass(frozen=True, slots=True)
class EnergyCounters:
    """A GPU's counters, as its agent reported them.

    By model, not by segment: agents merge the entries of segments that ended long ago, and a sum
    over all entries of a model does not notice.

    Attributes:
        since_s: When the agent's account began, Unix time, s; 0: unknown.
        at_s: When they were reported, Unix time, s.
        total_j: Metered, J.
        idle_j: Of it: idle energy, J.
        models: Of it: what each model used; None: not known (an older planner kept totals only).
        method: How total_j was obtained; "": not known.
    """

    since_s: float
    at_s: float
    total_j: float
    idle_j: float = 0.0
    models: Mapping[str, ModelEnergy] | None = field(default_factory=dict)
    method: str = ""


@dataclass(frozen=True, slots=True)
class EnergyDrawn:
    """What a GPU drew in a stretch of time.

    Attributes:
        start_s, end_s: When, Unix time, s.
        total_j: All of it, J.
        idle_j: Of it: idle energy, J.
        models: Of it: what each model used.
        method: How total_j was obtained; "": not known.
    """

    start_s: float
    end_s: float
    total_j: float
    idle_j: float
    models: Mapping[str, ModelEnergy]
    method: str = ""

    @property
    def unattributed_j(self) -> float:
        """The rest, J; the agent's rounding is in it, so that the parts sum to the whole."""
        return self.total_j - fsum((self.idle_j, *(used.active_j for used in self.models.values())))


def advance(
    last: EnergyCounters | None, reported: EnergyCounters
) -> tuple[EnergyCounters, EnergyDrawn | None]:
    """Return the counters after a report, and what was drawn since the one before.

    Args:
        last: As they stood; None: the GPU's account begins here, and costs nothing yet.
        reported: The report of the agent.

    Returns:
        Counters that never go back while the agent's account is the same one: a report that comes
        twice draws nothing, and neither does one that is late, or of an agent that lost its last
        seconds in a crash, until it has passed where it stood. An account that began later than
        the last one counts from zero. None: nothing is to be booked.
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

    Where the start of one of the two is unknown, a lower total is taken as a new account.
    """
    if last.since_s and reported.since_s:
        return reported.since_s > last.since_s
    return reported.total_j < last.total_j
