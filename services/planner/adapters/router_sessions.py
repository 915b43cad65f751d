"""Connected routers: their reports, and the routing table that each uses."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from services.kit.errors import InvalidArgument, ResourceExhausted
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.core.accounting.account import Tokens
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.load_report import LATE_S, LoadReport, bounded

_MOST_ROUTERS: Final = 1024
_RETURN_S: Final = 2.0
"""Time in which routers find a planner that takes over, s; they try every second."""

_RESTART_S: Final = 10.0
"""Time in which the last router that left may return, s; a restart takes 2 to 9 s."""

_MISSED_REPORTS: Final = 2
_REPORT_LATE_S: Final = 1.0
"""Intervals, and time beyond, after which a silent router's last report is history, s."""

_log = logs.get("routers")


@dataclass(slots=True, eq=False)
class RouterSession:
    """One router's open stream.

    Attributes:
        router_id: Name of the router; "" before its first report.
        revision: Revision of the routing table it uses.
        covered_s: End of its last window, monotonic, s; at most a second ago.
        tokens: Tokens in the last report, by model.
        answers: Number of answers and their latency at the percentile, s, in its newest window, by
            model.
        clamped: Whether one of its reports was cut.
        heard_s: Time of its last report, monotonic, s.
        interval_s: Longest time between its reports, s.
        unreachable: Segments of which it reaches no worker.
    """

    router_id: str = ""
    revision: int = 0
    covered_s: float = -math.inf
    tokens: Mapping[str, Tokens] = field(default_factory=dict)
    answers: dict[str, tuple[int, float]] = field(default_factory=dict)
    clamped: bool = False
    heard_s: float = -math.inf
    interval_s: float = 0.0
    unreachable: frozenset[str] = frozenset()


class RouterSessions:
    """Open streams of routers.

    Args:
        state: State of the cluster.
        give_up: Receives the segments that no router reaches, with each report.
    """

    def __init__(
        self, state: ClusterState, give_up: Callable[[frozenset[str]], None] = lambda _: None
    ) -> None:
        self._state = state
        self._give_up = give_up
        self._links: set[RouterSession] = set()
        self._sums: dict[
            str, tuple[int, float]
        ] = {}  # sums over windows: answers, latency x answers
        self._unreached = frozenset[str]()  # as of the last report
        self._return_by_s = self._restart_by_s = -math.inf

    def expect(self) -> None:
        """Expect the routers of the planner before this one, as if they had just left."""
        self._return_by_s = self._state.clock.monotonic() + _RETURN_S

    @property
    def connected(self) -> bool:
        """A router reports its load now."""
        return bool(self._links)

    @property
    def served(self) -> bool:
        """At least one router is connected, or may be about to return."""
        by_s = max(self._return_by_s, self._restart_by_s)
        return bool(self._links) or self._state.clock.monotonic() < by_s

    def report(self, link: RouterSession, report: LoadReport) -> LoadReport:
        """Process the plausible part of a report; the first one makes the router known.

        Returns:
            The report as processed.

        Raises:
            InvalidArgument: The stream belongs to another router.
            ResourceExhausted: Too many routers are connected.
        """
        if link not in self._links and len(self._links) >= _MOST_ROUTERS:
            raise ResourceExhausted(f"{_MOST_ROUTERS} routers are connected, the most")
        if link.router_id not in ("", report.router_id):
            raise InvalidArgument.at("router_id", f"this stream is of {link.router_id!r}")
        now_s = self._state.clock.monotonic()
        variants = {name: aim.accuracies for name, aim in self._state.level.aims.items()}
        report, clamped = bounded(report, variants, now_s - link.covered_s, link.tokens)
        for name in clamped:
            prometheus.CLAMPED.labels(name).inc()
        if clamped and not link.clamped:
            _log.warning(
                "a router reports implausible figures; they are cut", router=report.router_id,
                fields=clamped,
            )  # fmt: skip
        link.clamped = link.clamped or bool(clamped)
        link.covered_s = max(link.covered_s + report.window_s, now_s - LATE_S)
        link.tokens = {**link.tokens, **report.tokens}
        link.router_id, link.revision = report.router_id, report.revision
        link.heard_s, link.unreachable = now_s, report.unreachable
        link.interval_s = max(link.interval_s, report.window_s)
        self._links.add(link)
        for model, latency_s in report.latency_s.items():
            self._add(model, link.answers.get(model, (0, 0.0)), -1)
            link.answers[model] = (sum(report.by_variant.get(model, {}).values()), latency_s)
            self._add(model, link.answers[model], 1)
        self._state.update_load(report)
        unreachable = self._unreachable(now_s)
        if unreachable or self._unreached:
            self._give_up(unreachable)
        self._unreached = unreachable
        return report

    def _unreachable(self, now_s: float) -> frozenset[str]:
        """Return the segments of which no router that still reports reaches a worker."""
        return frozenset.intersection(
            *(
                link.unreachable
                for link in self._links
                if now_s - link.heard_s <= _MISSED_REPORTS * link.interval_s + _REPORT_LATE_S
            )
        )

    def latency_s(self) -> dict[str, float]:
        """Return the latency at the SLO's percentile over all routers, by model, s.

        The mean over their newest windows, weighted by answers; see `Answers`.
        """
        return {model: total_s / count for model, (count, total_s) in self._sums.items() if count}

    def leave(self, link: RouterSession) -> None:
        """Remove a stream that ended. A router that has another one open keeps its load."""
        if self._links == {link}:
            self._restart_by_s = self._state.clock.monotonic() + _RESTART_S
        self._links.discard(link)
        for model, answers in link.answers.items():
            self._add(model, answers, -1)
        link.answers.clear()
        if all(other.router_id != link.router_id for other in self._links):
            self._state.demand.forget(link.router_id)
            self._state.burstiness.forget(link.router_id)
            self._state.lengths.forget(link.router_id)
            self._state.singles.forget(link.router_id)
        self._state.changed.notify()

    def _add(self, model: str, answers: tuple[int, float], sign: int) -> None:
        """Add a window to the sums over all routers, or remove it."""
        (known, weighted_s), (count, latency_s) = self._sums.get(model, (0, 0.0)), answers
        known += sign * count
        self._sums[model] = (known, weighted_s + sign * count * latency_s if known else 0.0)

    async def acknowledged(self, revision: int, timeout_s: float) -> bool:
        """Wait until every connected router uses `revision` or a later one.

        Returns:
            False: timeout. Without routers there is nothing to wait for.
        """
        changed = self._state.changed
        if (left_s := self._return_by_s - self._state.clock.monotonic()) > 0:
            await changed.until(lambda: bool(self._links), left_s)
        return await changed.until(
            lambda: all(link.revision >= revision for link in self._links), timeout_s
        )
