"""The routers that are connected: what they see, and which routing table they use."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.load_report import LoadReport


@dataclass(slots=True, eq=False)
class RouterSession:
    """One router's open stream.

    Attributes:
        router_id: Its name; "" before its first report.
        revision: Revision of the routing table it uses.
        answers: In its newest window, by model: how many, and their latency at the percentile, s.
    """

    router_id: str = ""
    revision: int = 0
    answers: dict[str, tuple[int, float]] = field(default_factory=dict)


class RouterSessions:
    """Open streams of routers."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._links: set[RouterSession] = set()

    def report(self, link: RouterSession, report: LoadReport) -> None:
        """Take in a report; the first one makes the router known."""
        link.router_id, link.revision = report.router_id, report.revision
        self._links.add(link)
        for model, latency_s in report.latency_s.items():
            link.answers[model] = (sum(report.by_variant.get(model, {}).values()), latency_s)
        self._state.update_load(report)

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

    def leave(self, link: RouterSession) -> None:
        """A stream ended. A router that has another one open keeps its load."""
        self._links.discard(link)
        if all(other.router_id != link.router_id for other in self._links):
            self._state.demand.forget(link.router_id)
        self._state.changed.notify()

    async def acknowledged(self, revision: int, timeout_s: float) -> bool:
        """Wait until every connected router uses `revision` or a later one.

        Returns:
            False: `timeout_s` passed first. Without routers there is nothing to wait for.
        """
        return await self._state.changed.until(
            lambda: all(link.revision >= revision for link in self._links), timeout_s
        )
