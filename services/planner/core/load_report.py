"""A router's report of its load, one window at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from services.planner.core.accounting.account import Tokens
from services.planner.core.waiting.singles import WaitingHere

MOST_RPS: Final = 1e5
"""Most requests per second that a router process may report: several times what one can read."""

MOST_TOKENS_PER_S: Final = 1e7
MOST_WINDOW_S: Final = 60.0
LATE_S: Final = 1.0
"""Longest delay of a report whose successor is on time, s."""

_MOST_LATENCY_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Load of a router over a window.

    Attributes:
        router_id: Name of the router.
        revision: Revision of the routing table it uses.
        window_s: Length of the window, s.
        arrivals: Requests that arrived, by model.
        answered: Requests answered, all models.
        latency_s: Latency at the SLO's percentile, by model, s.
        late: Requests answered later than the SLO, by model.
        by_variant: Answered requests, by model and variant.
        refused: Requests refused because of overload, by model.
        tokens: Tokens in and out since the router started, by model.
        first_second: Unix second that the first of `arrivals_per_s` counts.
        arrivals_per_s: Requests that arrived in each second that ended since the last report, by
            model; empty: not known.
        unreachable: Segments of which the router reaches no worker.
        waiting: Requests that can wait, by model.
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
    first_second: int = 0
    arrivals_per_s: Mapping[str, Sequence[int]] = field(default_factory=dict)
    unreachable: frozenset[str] = frozenset()
    waiting: Mapping[str, WaitingHere] = field(default_factory=dict)


def bounded(
    report: LoadReport,
    variants: Mapping[str, Collection[str]],
    elapsed_s: float,
    counted: Mapping[str, Tokens],
) -> tuple[LoadReport, tuple[str, ...]]:
    """Return the plausible part of a report, and the names of the values that were cut.

    A window is no longer than the time since the last one, counts are no higher than a router can
    serve in the window, latencies are finite; models and variants outside the deployment are
    dropped.

    Args:
        report: The report.
        variants: The deployment's variants by model.
        elapsed_s: Time since the end of the router's last window by the local clock, s; negative:
            in the future; inf: this report is the first.
        counted: Tokens by model in the last report.
    """
    clamped: list[str] = []
    limit_s = min(max(elapsed_s + LATE_S, 0.0), MOST_WINDOW_S)
    window_s = report.window_s
    if not 0 <= window_s <= limit_s:
        clamped.append("window")
        window_s = min(max(window_s, 0.0), limit_s) if math.isfinite(window_s) else 0.0
    most = math.ceil(MOST_RPS * window_s)
    tokens_most = math.ceil(MOST_TOKENS_PER_S * window_s)

    def counts(name: str, given: Mapping[str, int], known: Collection[str]) -> dict[str, int]:
        if any(count > most for count in given.values()):
            clamped.append(name)
        return {key: min(count, most) for key, count in given.items() if key in known}

    def per_second(given: Sequence[int]) -> tuple[int, ...]:
        if len(given) > MOST_WINDOW_S or any(count > MOST_RPS for count in given):
            clamped.append("arrivals_per_s")
        return tuple(min(count, int(MOST_RPS)) for count in given[: int(MOST_WINDOW_S)])

    def tokens(model: str, now: Tokens) -> Tokens:
        then = counted.get(model)
        squares = now.input_squares if 0 <= now.input_squares < math.inf else 0.0
        if then is None or max(now.input - then.input, now.output - then.output) <= tokens_most:
            return replace(now, input_squares=squares)
        clamped.append("tokens")
        return then

    latency_s = {
        model: value
        for model, value in report.latency_s.items()
        if model in variants and 0 <= value <= _MOST_LATENCY_S  # nor NaN
    }
    if len(latency_s) < len(report.latency_s.keys() & variants.keys()):
        clamped.append("latency_s")
    found = replace(
        report,
        window_s=window_s,
        arrivals=counts("arrivals", report.arrivals, variants),
        answered=min(report.answered, most * max(len(variants), 1)),
        latency_s=latency_s,
        late=counts("late", report.late, variants),
        by_variant={
            model: counts("answered_by_variant", given, variants[model])
            for model, given in report.by_variant.items()
            if model in variants
        },
        refused=counts("refused", report.refused, variants),
        tokens={
            model: tokens(model, now) for model, now in report.tokens.items() if model in variants
        },
        arrivals_per_s={
            model: per_second(given)
            for model, given in report.arrivals_per_s.items()
            if model in variants
        },
        waiting={
            model: given.bounded() for model, given in report.waiting.items() if model in variants
        },
    )
    return found, tuple(dict.fromkeys(clamped))
