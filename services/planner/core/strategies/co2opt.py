"""CO2OPT: least carbon whatever the accuracy (CLOVER, SC'23, section 5.1)."""

from collections.abc import Iterator

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.mig import maximal_layouts
from services.planner.core.model import Configuration, Pool, Problem
from services.planner.core.strategies.base import exclusive


def co2opt(problem: Problem) -> Configuration:
    """Cut every GPU as finely as possible and host the smallest variant that is in time there.

    The smallest is the one with the least energy per request. As in the paper, it must meet the
    SLA; where none does, the smallest runs, and its load counts as unserved.
    """
    return exclusive(problem, _finest, lambda model: model.variants)


def _finest(pool: Pool) -> Iterator[SliceProfile]:
    """Yield the slices of the layout with most slices; of equals, the one with least memory."""
    geometry = pool.type.geometry
    finest = max(
        maximal_layouts(geometry),
        key=lambda layout: (len(layout), -sum(len(geometry.span(each)) for each in layout)),
    )
    for placement in finest:
        yield geometry.kind(placement.profile)
