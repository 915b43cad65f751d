"""From what was simulated to what happened, and how sure that is.

What a cell skipped is represented by what was simulated of it: each of its requests that ended
counts for `weight` requests, so that the counts sum to all that arrived. Errors come from the
differences between successive cells of one plan, the estimator for systematic samples (Wolter,
"Introduction to Variance Estimation", chapter 8); they hold trends for noise, and so are rather
too large. The range of a quantile is Woodruff's (JASA 47, 1952).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from services.simulator.stats.sampled_intervals import Cell

_CONFIDENCE = 1.96
"""Standard errors on each side that hold 95 %."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Range:
    """What holds the true value with 95 % confidence. Attributes: low, high."""

    low: float
    high: float


def weights(cells: Sequence[Cell], model: str) -> Numbers:
    """Return for each cell how many requests each one that ended in it stands for.

    What nothing represents in its own cell is represented by the next one that can, at the end by
    the last.
    """
    found = np.ones(len(cells))
    carried, last = 0, -1
    for index, cell in enumerate(cells):
        carried += cell.skipped.get(model, 0)
        ended = cell.ended(model)
        if ended:
            found[index] += carried / ended
            carried, last = 0, index
    if carried and last >= 0:
        found[last] += carried / cells[last].ended(model)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Latencies of one model with their weights, in order.

    Attributes:
        value_s: Latencies, s.
        rank: Share of the requests that took no longer, 0..1.
    """

    value_s: Numbers
    rank: Numbers

    @classmethod
    def of(cls, cells: Sequence[Cell], weight: Numbers, model: str) -> Latencies:
        """Return the latencies of a model in all cells."""
        parts = [np.asarray(cell.latency_s[model]) for cell in cells]
        value_s = np.concatenate([*parts, np.zeros(0)])
        counts = [len(part) for part in parts]
        order = np.argsort(value_s, kind="stable")
        rank = np.cumsum(np.repeat(weight, counts)[order])
        return cls(value_s[order], rank / rank[-1] if len(rank) else rank)

    def quantile_s(self, share: float) -> float:
        """Return a latency that a share of the requests stay within, s; NaN without any."""
        if not len(self.rank):
            return math.nan
        index = int(np.searchsorted(self.rank, share))
        return float(self.value_s[min(index, len(self.rank) - 1)])

    def above(self, limit_s: float) -> float:
        """Return the share of requests that took longer than `limit_s`."""
        within = int(np.searchsorted(self.value_s, limit_s, side="right"))
        return float(1.0 - self.rank[within - 1]) if within else float(len(self.rank) > 0)


def quantile_range_s(
    cells: Sequence[Cell], latencies: Latencies, model: str, share: float
) -> Range | None:
    """Return the range of a quantile, s; None: too few cells to tell.

    Args:
        cells: All of them.
        latencies: What the quantile is of.
        model: Whose.
        share: The quantile, 0..1.
    """
    limit_s = latencies.quantile_s(share)
    above = [
        float(np.mean(np.asarray(cell.latency_s[model]) > limit_s))
        if cell.latency_s[model]
        else 0.0
        for cell in cells
    ]
    error = _error_of_sum(cells, above, model)
    if error is None or math.isnan(limit_s):
        return None
    spread = _CONFIDENCE * error / max(sum(cell.arrived.get(model, 0) for cell in cells), 1)
    return Range(
        latencies.quantile_s(max(share - spread, 0.0)),
        latencies.quantile_s(min(share + spread, 1.0)),
    )


def active_error_j(cells: Sequence[Cell], model: str) -> float | None:
    """Return how far a model's active energy may be off, J, 95 %; None: too few cells to tell."""
    per_request_j = [
        sum(j for (_, name), j in cell.spent.active_j.items() if name == model)
        / max(cell.ended(model), 1)
        for cell in cells
    ]
    error_j = _error_of_sum(cells, per_request_j, model)
    return None if error_j is None else _CONFIDENCE * error_j


def _error_of_sum(cells: Sequence[Cell], per_request: Sequence[float], model: str) -> float | None:
    """Return the standard error of a sum over all requests.

    Args:
        cells: All of them.
        per_request: Mean over the requests that ended in each cell.
        model: Whose requests.
    """
    skipped = [cell.skipped.get(model, 0) for cell in cells]
    if not any(skipped):
        return 0.0
    squares = [
        (per_request[two] - per_request[one]) ** 2 / 2 for one, two in _neighbours(cells, model)
    ]
    if not squares:
        return None
    return math.sqrt(float(np.mean(squares)) * sum(count**2 for count in skipped))


def _neighbours(cells: Sequence[Cell], model: str) -> Iterator[tuple[int, int]]:
    """Yield successive cells of one plan that represent something."""
    sampled = [i for i, cell in enumerate(cells) if cell.skipped.get(model) and cell.ended(model)]
    for one, two in pairwise(sampled):
        if cells[one].table == cells[two].table:
            yield one, two
