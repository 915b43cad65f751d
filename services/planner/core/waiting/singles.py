"""Requests that can wait and are of no batch: each waits at the router that it came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from cinquefoil.planner.v1.records import WaitingBucket, WaitingModel

_MOST_GROUPS: Final = 8
_MOST_WAITING: Final = 10**6
_MOST_DUE_S: Final = 8 * 86_400.0


@dataclass(frozen=True, slots=True)
class WaitingHere:
    """Requests of one model that can wait, at one router.

    Attributes:
        singles: Time until they are due, s, and number of those that are of no batch, in groups.
        answered: Those that it has answered since its start, of batches, too.
    """

    singles: Sequence[tuple[float, int]] = ()
    answered: int = 0

    def bounded(self) -> WaitingHere:
        """Return the plausible part."""
        plausible = [
            (due_s, min(count, _MOST_WAITING))
            for due_s, count in self.singles[:_MOST_GROUPS]
            if 0 <= due_s <= _MOST_DUE_S  # nor NaN
        ]
        return replace(self, singles=plausible)


@dataclass(slots=True)
class Singles:
    """The newest report of each router, by its name."""

    _by_router: dict[str, dict[str, WaitingModel]] = field(default_factory=dict)

    def observe(self, router_id: str, waiting: Mapping[str, WaitingHere], now: datetime) -> None:
        """Replace what waits at a router."""
        self._by_router[router_id] = {
            model: WaitingModel(
                model=model,
                buckets=tuple(
                    WaitingBucket(due=now + timedelta(seconds=due_s), requests=count)
                    for due_s, count in here.singles
                ),
                answered=here.answered,
            )
            for model, here in waiting.items()
        }

    def forget(self, router_id: str) -> None:
        """Drop a router that has left: its callers send again."""
        self._by_router.pop(router_id, None)

    def reports(self) -> list[tuple[str, WaitingModel]]:
        """Return each router's name and what waits there, one entry a model."""
        return [(name, each) for name, its in self._by_router.items() for each in its.values()]

    def buckets(self, model: str) -> tuple[WaitingBucket, ...]:
        """Return what waits for a model at all routers."""
        return tuple(
            bucket for _, each in self.reports() if each.model == model for bucket in each.buckets
        )

    @property
    def models(self) -> set[str]:
        """Models for which some wait."""
        return {each.model for _, each in self.reports() if each.buckets}
