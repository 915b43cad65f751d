"""CO2OPT: least carbon whatever the accuracy (CLOVER, SC'23, section 5.1)."""

from collections.abc import Callable, Iterator
from functools import cache

from services.kit.mig import Geometry, Layout, SliceKind, maximal_layouts
from services.planner.core.model import Configuration, Model, Pool, Problem, SegmentKind
from services.planner.core.problem.catalog import Place, dedicated
from services.planner.core.problem.load_split import apportion, with_load
from services.planner.core.problem.pricing import prices


def co2opt(problem: Problem) -> Configuration:
    """Cut every GPU as finely as possible and host the smallest variant on each slice.

    The smallest is the one with the least energy per request. As in the paper, the SLO plays no
    part in the choice; load on a variant that misses the latency rule counts as unserved.
    """
    known = prices(problem)
    segments = apportion(_slots(problem), known.models.values())
    return with_load(known, segments)


def _slots(problem: Problem) -> Iterator[Callable[[Model], SegmentKind | None]]:
    for pool, count in problem.pools.items():
        geometry = pool.type.geometry
        for placement in _finest(geometry):
            hosted = _on_slice(problem, pool, geometry.kind(placement.profile))
            yield from [hosted] * count


def _finest(geometry: Geometry) -> Layout:
    """Return the layout of most slices; of equals, the one of least memory."""
    return max(
        maximal_layouts(geometry),
        key=lambda layout: (len(layout), -sum(len(geometry.span(each)) for each in layout)),
    )


def _on_slice(
    problem: Problem, pool: Pool, slice_kind: SliceKind
) -> Callable[[Model], SegmentKind | None]:
    @cache
    def hosted(model: Model) -> SegmentKind | None:
        places = (Place(model, variant, pool, slice_kind) for variant in model.variants)
        kinds = [kind for place in places if (kind := dedicated(problem, place)) is not None]
        return min(kinds, key=lambda kind: kind.energy_j, default=None)

    return hosted
