"""The routers that are connected: what they see, and which routing table they use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.kit.clock import Clock
from services.planner.change_event import Notice
from services.planner.core.accounting.account import Tokens
from services.planner.core.forecast.demand import Demand
from services.planner.core.online_search.counter_readings import Tally
from services.planner.core.service_level import ServiceLevel


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a router saw in a window.

    Attributes:
        router_id: Its name.
        revision: Revision of the routing table it uses.
        window_s: Time the counts cover, s.
        arrivals: Requests that arrived, by model.
        answered: Requests answered, all models.
        latency_s: Latency at the SLO's percentile, by model, s.
        late: Answered, but later than the SLO, by model.
        by_variant: Answered, by model and variant.
        refused: Not answered because too much waited, by model.
        tokens: In and out since the router started, by model.
    """

    router_id: str
    revision: int
    window_s: float
    arrivals: Mapping[str, int]
    answered: int
    latency_s: Mapping[str, float]
    late: Mapping[str, int] = field(default_factory=dict)
    by_variant: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, Tokens] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Link:
    """One router's open stream.

    Attributes:
        router_id: Its name; "" before its first report.
        revision: Revision of the routing table it uses.
        answers: In its newest window, by model: how many, and their latency at the percentile, s.
    """

    router_id: str = ""
    revision: int = 0
    answers: dict[str, tuple[int, float]] = field(default_factory=dict)


class Routers:
    """Open streams of routers."""

    def __init__(
        self, demand: Demand, level: ServiceLevel, tally: Tally, clock: Clock, changed: Notice
    ) -> None:
        self._demand = demand
        self._level = level
        self._tally = tally
        self._clock = clock
        self._changed = changed
        self._links: set[Link] = set()

    def report(self, link: Link, report: LoadReport) -> None:
        """Take in a report; the first one makes the router known."""
        link.router_id, link.revision = report.router_id, report.revision
        self._links.add(link)
        self._demand.observe(report.router_id, report.arrivals, report.window_s)
        now_s = self._clock.monotonic()
        self._level.observe(report.late, report.by_variant, now_s, report.refused)
        for model, latency_s in report.latency_s.items():
            count = sum(report.by_variant.get(model, {}).values())
            self._tally.answered(model, count, latency_s)
            link.answers[model] = (count, latency_s)
        self._changed.notify()

    def latency_s(self) -> dict[str, float]:
        """Return the latency at the SLO's percentile over all routers, by model, s.

        The mean over their newest windows, weighted by answers; see `trying.measuring.Answers`.
        """
        sums: dict[str, tuple[int, float]] = {}
        for link in self._links:
            for model, (count, latency_s) in link.answers.items():
                known, weighted_s = sums.get(model, (0, 0.0))
                sums[model] = (known + count, weighted_s + count * latency_s)
        return {model: total_s / count for model, (count, total_s) in sums.items() if count}

    def leave(self, link: Link) -> None:
        """A stream ended. A router that has another one open keeps its load."""
        self._links.discard(link)
        if all(other.router_id != link.router_id for other in self._links):
            self._demand.forget(link.router_id)
        self._changed.notify()

    async def acknowledged(self, revision: int, timeout_s: float) -> bool:
        """Wait until every connected router uses `revision` or a later one.

        Returns:
            False: `timeout_s` passed first. Without routers there is nothing to wait for.
        """
        return await self._changed.until(
            lambda: all(link.revision >= revision for link in self._links), timeout_s
        )
