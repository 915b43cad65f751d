"""Requests that can wait and are of no batch: each waits at the router that it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cinquefoil.planner.v1.records import WaitingBucket, WaitingModel
from services.planner.core.load_report import WaitingHere


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
