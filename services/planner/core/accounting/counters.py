"""Agents' counters only grow: what was drawn is a difference, whatever is told twice or late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import fsum


@dataclass(frozen=True, slots=True)
class Used:
    """What a model used on a GPU.

    Attributes:
        active_j: Active energy, J.
        idle_share_j: Its share of idle energy, told beside, J.
        requests: Answered.
    """

    active_j: float = 0.0
    idle_share_j: float = 0.0
    requests: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(
            self.active_j + other.active_j,
            self.idle_share_j + other.idle_share_j,
            self.requests + other.requests,
        )

    def beyond(self, last: Used) -> Used:
        """Return what was used since `last`; a counter that stands lower tells nothing new."""
        return Used(
            max(self.active_j - last.active_j, 0.0),
            max(self.idle_share_j - last.idle_share_j, 0.0),
            max(self.requests - last.requests, 0),
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """A GPU's counters, as its agent told them.

    By model, not by segment: agents merge the entries of segments that ended long ago, and a sum
    over all entries of a model does not notice.

    Attributes:
        since_s: When the agent's account began, Unix time, s; 0: it does not say.
        at_s: When they were told, Unix time, s.
        total_j: Metered, J.
        idle_j: Of it: idle energy, J.
        models: Of it: what each model used; None: not known (an older planner kept totals only).
    """

    since_s: float
    at_s: float
    total_j: float
    idle_j: float = 0.0
    models: Mapping[str, Used] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a GPU drew in a stretch of time.

    Attributes:
        start_s, end_s: When, Unix time, s.
        total_j: All of it, J.
        idle_j: Of it: idle energy, J.
        models: Of it: what each model used.
    """

    start_s: float
    end_s: float
    total_j: float
    idle_j: float
    models: Mapping[str, Used]

    @property
    def unattributed_j(self) -> float:
        """The rest, J; the agent's rounding is in it, so that the parts sum to the whole."""
        return self.total_j - fsum((self.idle_j, *(used.active_j for used in self.models.values())))


def advance(last: Counters | None, told: Counters) -> tuple[Counters, Drawn | None]:
    """Return the counters after a report, and what was drawn since the one before.

    Args:
        last: As they stood; None: the GPU's account begins here, and costs nothing yet.
        told: What the agent tells.

    Returns:
        Counters that never go back while the agent's account is the same one: a report that comes
        twice draws nothing, and neither does one that is late, or of an agent that lost its last
        seconds in a crash, until it has passed where it stood. An account that began later than
        the last one counts from zero. None: nothing is to be booked.
    """
    if last is None:
        return told, None
    if 0 < told.since_s < last.since_s:
        return last, None
    if _anew(last, told):
        last = replace(last, total_j=0.0, idle_j=0.0, models={})
    if told.models is None or last.models is None:
        drawn = Drawn(last.at_s, told.at_s, max(told.total_j - last.total_j, 0.0), 0.0, {})
        return told, drawn
    unused = Used()
    models = {
        model: used.beyond(last.models.get(model, unused)) for model, used in told.models.items()
    }
    drawn = Drawn(
        start_s=last.at_s,
        end_s=told.at_s,
        total_j=max(told.total_j - last.total_j, 0.0),
        idle_j=max(told.idle_j - last.idle_j, 0.0),
        models={model: used for model, used in models.items() if used != unused},
    )
    grown = {model: last.models.get(model, unused) + used for model, used in models.items()}
    return (
        replace(
            told,
            total_j=max(told.total_j, last.total_j),
            idle_j=max(told.idle_j, last.idle_j),
            models={**last.models, **grown},
        ),
        drawn,
    )


def _anew(last: Counters, told: Counters) -> bool:
    """Tell whether the agent's account is another one than before.

    Where one of the two does not say when it began, a lower total tells.
    """
    if last.since_s and told.since_s:
        return told.since_s > last.since_s
    return told.total_j < last.total_j
