"""Assignment of segments of several whole GPUs to nodes, with the fewest changes.

Sizes of groups divide one another (`services.kit.mig.GPUS_TOGETHER`): the largest first, any node
with enough free GPUs will do. Running segments stay, unless they leave the others no room together.
Where a model is to be on several nodes, a program says how many segments of whole GPUs go to each.
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
from services.planner.core.placement.separation import Separation
from services.planner.core.problem.pricing import row
from services.planner.core.solver.milp import Goal, Program

UNCUT: Final = Placement(WHOLE, 0)
"""The only slice of a GPU without MIG."""

Groups = Mapping[tuple[str, ...], SegmentKind]
"""Segments of several GPUs, by the UUIDs of these."""

_Nodes = Mapping[str, list[Gpu]]
"""Free GPUs of one pool by node."""


MOST_NODES: Final = 32
"""Nodes up to which a program assigns segments to them."""

TIME_LIMIT_S: Final = 2.0

_Quotas = Mapping[str, Counter[SegmentKind]]
"""New segments by node."""


def assign_groups(
    problem: Problem,
    segments: Mapping[SegmentKind, int],
    running: Running,
    separation: Separation,
) -> Groups:
    """Return the GPUs of each segment that takes several; they are of one node.

    Args:
        problem: Fleet, and running segments that stay where possible.
        segments: Segments to place, with their counts; those of one GPU are left out.
        running: Rows of running segments.
        separation: Models that must survive a loss.

    Raises:
        FailedPrecondition: The nodes have no room for them.
    """
    found: dict[tuple[str, ...], SegmentKind] = {}
    gpus = {gpu.uuid: gpu for gpu in problem.gpus}
    pools = dict.fromkeys(kind.pool for kind, count in segments.items() if kind.gpus > 1 and count)
    for pool in pools:
        wanted = Counter({k: n for k, n in segments.items() if k.pool == pool and k.gpus > 1})
        kept = list(_kept(problem, pool, wanted))
        while not _fit(left := wanted - Counter(k for _, k in kept), _free(problem, pool, kept)):
            if not kept:
                raise FailedPrecondition("the nodes have no room for the segments of several GPUs")
            kept.remove(min(kept, key=lambda each: each[1].gpus))
        nodes = _free(problem, pool, kept)
        separation.record({uuids[0]: Counter({kind: 1}) for uuids, kind in kept}, gpus)
        singles = {k: n for k, n in segments.items() if k.pool == pool and k.profile == WHOLE}
        quotas = _quotas(left | Counter(singles), nodes, separation) if left else {}
        new = _placed(left, nodes, running, quotas, _on_nodes(problem, kept))
        separation.record({uuids[0]: Counter({kind: 1}) for uuids, kind in new.items()}, gpus)
        found |= dict(kept) | dict(new)
    return found


def _quotas(left: Counter[SegmentKind], nodes: _Nodes, separation: Separation) -> _Quotas:
    """Return how many new segments of whole GPUs each node takes; empty: it does not matter."""
    apart = [kind for kind in left if separation.by_node(kind)]
    if not apart or len(nodes) > MOST_NODES:
        return {}
    program = Program()
    held: dict[tuple[SegmentKind, str], int] = {}
    for free in nodes.values():
        size = len(free)
        here = {kind: program.column(upper=size // kind.gpus, integer=True) for kind in left}
        program.row([(at, float(kind.gpus)) for kind, at in here.items()], high=float(size))
        held |= {(kind, free[0].uuid): at for kind, at in here.items()}
    firsts = {gpus[0].uuid: node for node, gpus in nodes.items()}
    for kind, count in left.items():
        program.row([(held[kind, uuid], 1.0) for uuid in firsts], low=count, high=count)
    concerned = {key: at for key, at in held.items() if key[0] in apart}
    missing = separation.add_rows(program, concerned, (gpus[0] for gpus in nodes.values()))
    found = program.minimise([Goal(missing)], time_limit_s=TIME_LIMIT_S)
    if found is None:
        return {}
    return {
        node: Counter({kind: found.count(held[kind, uuid]) for kind in left})
        for uuid, node in firsts.items()
    }


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
    quotas: _Quotas,
    apart: Mapping[str, Counter[str]],
) -> Groups:
    """Return groups for segments that are new, on GPUs without segments where there are enough.

    Of as many GPUs, those of models that are to be on several nodes choose first. Quotas say on
    which nodes, where there are any.
    """
    found: dict[tuple[str, ...], SegmentKind] = {}
    free = {node: sorted(gpus, key=lambda gpu: gpu.uuid in running) for node, gpus in nodes.items()}

    left_of = {node: +quota for node, quota in quotas.items()}

    def effort(gpus: Sequence[Gpu], kind: SegmentKind) -> tuple[bool, int, int, int, int]:
        first = gpus[: kind.gpus]
        beyond = bool(quotas) and not left_of[first[0].node][kind]
        displaced = sum(len(running.get(gpu.uuid, ())) for gpu in first)
        reclocked = sum(gpu.clock_mhz != kind.clock_mhz for gpu in first)
        beside = apart[kind.model][first[0].node] if kind.model in apart else 0
        return beyond, beside, displaced, len(gpus), reclocked

    for kind in sorted(left.elements(), key=lambda each: (-each.gpus, each.model not in apart)):
        fitting = [gpus for gpus in free.values() if len(gpus) >= kind.gpus]
        gpus = min(fitting, key=lambda each: effort(each, kind))
        found[tuple(gpu.uuid for gpu in gpus[: kind.gpus])] = kind
        if kind.model in apart:
            apart[kind.model][gpus[0].node] += 1
        if quotas:
            left_of[gpus[0].node][kind] -= 1
        del gpus[: kind.gpus]
    return found
