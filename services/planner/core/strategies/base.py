"""BASE: carbon-unaware, most accurate (CLOVER, SC'23, section 5.1)."""

from collections.abc import Callable, Iterator
from functools import cache

from services.planner.core.model import Configuration, Model, Pool, Problem, SegmentKind
from services.planner.core.problem.catalog import Place, dedicated, whole
from services.planner.core.problem.load_split import apportion, with_load
from services.planner.core.problem.pricing import prices


def base(problem: Problem) -> Configuration:
    """Host each model's most accurate variant on every GPU exclusively, unpartitioned.

    Several models share the fleet by GPUs. A variant that misses the latency rule even on a whole
    GPU is hosted all the same, as in the paper; its load counts as unserved.
    """
    known = prices(problem)
    segments = apportion(_slots(problem), known.models.values())
    return with_load(known, segments)


def _slots(problem: Problem) -> Iterator[Callable[[Model], SegmentKind | None]]:
    for pool, count in problem.pools.items():
        yield from [_on_whole(problem, pool)] * count


def _on_whole(problem: Problem, pool: Pool) -> Callable[[Model], SegmentKind | None]:
    @cache
    def hosted(model: Model) -> SegmentKind | None:
        return dedicated(problem, Place(model, model.best, pool, whole(pool)))

    return hosted
