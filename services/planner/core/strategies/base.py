"""BASE: carbon-unaware, most accurate (CLOVER, SC'23, section 5.1)."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.planner.core.model import Configuration, Model, Pool, Problem, SegmentKind, Variant
from services.planner.core.problem.catalog import Place, dedicated, in_time, whole
from services.planner.core.problem.load_split import apportion, with_load
from services.planner.core.problem.pricing import prices


def base(problem: Problem) -> Configuration:
    """Host each model's most accurate variant on every GPU exclusively, unpartitioned.

    Models share the fleet GPU by GPU. A variant that misses the latency rule even on a whole GPU is
    hosted all the same, as in the paper; its load counts as unserved.
    """
    return exclusive(problem, lambda pool: [whole(pool)], lambda model: [model.best])


def exclusive(
    problem: Problem,
    slices: Callable[[Pool], Iterable[SliceProfile]],
    variants: Callable[[Model], Iterable[Variant]],
) -> Configuration:
    """Give each slice to the model with the least capacity for its demand so far, late or not.

    Args:
        problem: Fleet, models and objective; its catalog is not used.
        slices: Returns the slices of each GPU of a pool.
        variants: Returns the variants of a model to choose from; a slice hosts the one with the
            least energy per request, of those that take one GPU.
    """
    known = prices(problem)

    def host(pool: Pool, slice_kind: SliceProfile) -> Callable[[Model], SegmentKind | None]:
        @cache
        def hosted(model: Model) -> SegmentKind | None:
            alone = (each for each in variants(model) if each.gpus == 1)
            places = (Place(model, each, pool, slice_kind) for each in alone)
            kinds = [kind for place in places if (kind := dedicated(problem, place)) is not None]
            fast = [kind for kind in kinds if in_time(problem.objective, model, kind)]
            return min(fast or kinds, key=lambda kind: kind.energy_j, default=None)

        return hosted

    def slots() -> Iterator[Callable[[Model], SegmentKind | None]]:
        for pool, count in problem.pools.items():
            for slice_kind in slices(pool):
                yield from [host(pool, slice_kind)] * count

    return with_load(known, apportion(slots(), known.models.values()))
