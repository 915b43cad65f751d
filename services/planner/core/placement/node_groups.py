"""Assignment of segments of several whole GPUs to nodes, with the fewest changes.

Sizes of groups divide one another (`services.kit.mig.GPUS_TOGETHER`): the largest first, any node
with enough free GPUs will do. Running segments stay, unless they leave the others no room together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.errors import FailedPrecondition
from services.kit.grouping import grouped
from services.kit.mig import WHOLE
from services.planner.core.model import Gpu, Pool, Problem, Segment, SegmentKind
from services.planner.core.placement.layout_assignment import Running
from services.planner.core.problem.pricing import row

UNCUT: Final = Placement(WHOLE, 0)
"""The only slice of a GPU without MIG."""

Groups = Mapping[tuple[str, ...], SegmentKind]
"""Segments of several GPUs, by the UUIDs of these."""

_Nodes = Mapping[str, list[Gpu]]
"""Free GPUs of one pool by node."""


def assign_groups(
    problem: Problem, segments: Mapping[SegmentKind, int], running: Running
) -> Groups:
    """Return the GPUs of each segment that takes several; they are of one node.

    Args:
        problem: Fleet, and running segments that stay where possible.
        segments: Segments to place, with their counts; those of one GPU are left out.
        running: Rows of running segments.

    Raises:
        FailedPrecondition: The nodes have no room for them.
    """
    found: dict[tuple[str, ...], SegmentKind] = {}
    pools = dict.fromkeys(kind.pool for kind, count in segments.items() if kind.gpus > 1 and count)
    for pool in pools:
        wanted = Counter({k: n for k, n in segments.items() if k.pool == pool and k.gpus > 1})
        kept = list(_kept(problem, pool, wanted))
        while not _fit(left := wanted - Counter(k for _, k in kept), _free(problem, pool, kept)):
            if not kept:
                raise FailedPrecondition("the nodes have no room for the segments of several GPUs")
            kept.remove(min(kept, key=lambda each: each[1].gpus))
        found |= dict(kept)
        found |= _placed(left, _free(problem, pool, kept), running, _on_nodes(problem, kept))
    return found


def _kept(
    problem: Problem, pool: Pool, wanted: Counter[SegmentKind]
) -> Iterator[tuple[tuple[str, ...], SegmentKind]]:
    """Yield the running segments that are still wanted, those at their clock first."""
    pools = {gpu.uuid: gpu.pool for gpu in problem.gpus}
    here = [each for each in problem.running if _inside(each, pools, pool)]
    left = Counter(wanted)
    for same_clock in (True, False):
        for segment in list(here):
            kind = next((k for k in left if left[k] and _stays(segment, k, same_clock)), None)
            if kind is not None:
                here.remove(segment)
                left[kind] -= 1
                yield segment.gpu_uuids, kind


def _inside(segment: Segment, pools: Mapping[str, Pool], pool: Pool) -> bool:
    return segment.kind.gpus > 1 and all(pools.get(uuid) == pool for uuid in segment.gpu_uuids)


def _stays(segment: Segment, kind: SegmentKind, same_clock: bool) -> bool:
    before = (*row(segment.kind)[:2], *row(segment.kind)[3:])
    after = (*row(kind)[:2], *row(kind)[3:])  # its pool's intensity may have changed
    return before == after and (not same_clock or segment.kind.clock_mhz == kind.clock_mhz)


def _free(
    problem: Problem, pool: Pool, kept: Iterable[tuple[tuple[str, ...], SegmentKind]]
) -> _Nodes:
    held = {uuid for uuids, _ in kept for uuid in uuids}
    return grouped(
        (gpu.node, gpu) for gpu in problem.gpus if gpu.pool == pool and gpu.uuid not in held
    )


def _fit(left: Mapping[SegmentKind, int], nodes: _Nodes) -> bool:
    """Return whether the free GPUs hold the segments; the largest first, any order does."""
    sizes = {kind.gpus for kind in left}
    taken = {size: sum(n * k.gpus for k, n in left.items() if k.gpus >= size) for size in sizes}
    return all(
        taken[size] <= sum(size * (len(gpus) // size) for gpus in nodes.values()) for size in sizes
    )


def _on_nodes(
    problem: Problem, kept: Iterable[tuple[tuple[str, ...], SegmentKind]]
) -> dict[str, Counter[str]]:
    """Return the segments on each node, by model that is to be on several nodes."""
    nodes = {gpu.uuid: gpu.node for gpu in problem.gpus}
    found = {model.name: Counter[str]() for model in problem.models if model.spread == "node"}
    for uuids, kind in kept:
        if kind.model in found:
            found[kind.model][nodes[uuids[0]]] += 1
    return found


def _placed(
    left: Counter[SegmentKind],
    nodes: _Nodes,
    running: Running,
    apart: Mapping[str, Counter[str]],
) -> Groups:
    """Return groups for segments that are new, on GPUs without segments where there are enough.

    Of as many GPUs, those of models that are to be on several nodes choose first.
    """
    found: dict[tuple[str, ...], SegmentKind] = {}
    free = {node: sorted(gpus, key=lambda gpu: gpu.uuid in running) for node, gpus in nodes.items()}

    def effort(gpus: Sequence[Gpu], kind: SegmentKind) -> tuple[int, int, int, int]:
        first = gpus[: kind.gpus]
        displaced = sum(len(running.get(gpu.uuid, ())) for gpu in first)
        reclocked = sum(gpu.clock_mhz != kind.clock_mhz for gpu in first)
        beside = apart[kind.model][first[0].node] if kind.model in apart else 0
        return beside, displaced, len(gpus), reclocked

    for kind in sorted(left.elements(), key=lambda each: (-each.gpus, each.model not in apart)):
        fitting = [gpus for gpus in free.values() if len(gpus) >= kind.gpus]
        gpus = min(fitting, key=lambda each: effort(each, kind))
        found[tuple(gpu.uuid for gpu in gpus[: kind.gpus])] = kind
        if kind.model in apart:
            apart[kind.model][gpus[0].node] += 1
        del gpus[: kind.gpus]
    return found
