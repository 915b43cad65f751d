"""Division of a network's latency among the stages of its pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import Profile
from services.kit.profiles.table import TableProfile


def latency_shares(stages: Sequence[Profile]) -> tuple[float, ...]:
    """Return each stage's share of the total latency; they sum to 1.

    Where all were measured: on what ran for every stage, batch by batch, added up. Otherwise by
    arithmetic, to which the analytic model's times are proportional.
    """
    tables = [stage for stage in stages if isinstance(stage, TableProfile)]
    weights = _measured(tables) if len(tables) == len(stages) else None
    weights = weights or [_gmacs(stage) for stage in stages]
    return tuple(weight / sum(weights) for weight in weights)


def _measured(tables: Sequence[TableProfile]) -> list[float] | None:
    """Return each table's total latency over the batches that all of them have; None: no such."""
    times = [dict(_points(table)) for table in tables]
    common = set.intersection(*(set(each) for each in times))
    return [sum(each[point] for point in common) for each in times] if common else None


def _points(table: TableProfile) -> Iterable[tuple[object, float]]:
    for series, points in table.points.items():
        for point in points:
            if point.latency_s is not None:
                yield (series, point.batch_size), point.latency_s


def _gmacs(stage: Profile) -> float:
    match stage:
        case AnalyticProfile():
            return stage.gmacs_per_item
        case TableProfile():
            return stage.power.gmacs_per_item
        case _:
            return 1.0
