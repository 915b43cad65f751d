"""Capacity plans as tables and as JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.console.output import table
from services.cli.console.quantities import milliseconds, percent
from services.kit.mig import Layout
from services.planner.capacity.fleet_sizing import Capacity
from services.planner.core.model import Segment, SegmentKind


@dataclass(frozen=True, slots=True)
class Solution:
    """A capacity plan, its strategy and solving time.

    Attributes:
        strategy: Strategy that decided.
        capacity: The capacity plan.
        decided_s: Time that it took, s.
    """

    strategy: str
    capacity: Capacity
    decided_s: float

    @property
    def unserved_rps(self) -> Mapping[str, float]:
        """Demand that no segment serves in time, req/s; only models with some."""
        unserved_rps = self.capacity.score.unserved_rps
        demand_rps = {model.name: model.demand_rps for model in self.capacity.problem.models}
        return {name: rps for name, rps in unserved_rps.items() if rps > 1e-6 * demand_rps[name]}


def document(solution: Solution) -> dict[str, Any]:
    """Return a solution for JSON."""
    capacity = solution.capacity
    return {
        "strategy": solution.strategy,
        "gpu": capacity.problem.gpus[0].pool.type.name,
        "gpus": len(capacity.layouts),
        "gpcs": capacity.gpcs,
        "unallocated_pct": 100 * capacity.unallocated,
        "gap": capacity.configuration.gap,
        "ms": 1e3 * solution.decided_s,
        "unserved_rps": dict(solution.unserved_rps),
        "layouts": [
            {"gpu": gpu, "slices": list(map(str, layout))}
            for gpu, layout in capacity.layouts.items()
        ],
        "segments": [_segment(each) for each in capacity.segments],
    }


def tables(solution: Solution) -> RenderableType:
    """Return a solution for people: the sum, GPUs by layout, segments by kind."""
    parts = [_summary(solution), _layouts(solution.capacity), _segments(solution.capacity)]
    if solution.unserved_rps:
        short = ", ".join(f"{name} {rps:.1f}" for name, rps in solution.unserved_rps.items())
        parts.append(Text(f"Not served, req/s: {short}", style="red"))
    return Group(*parts)


def _summary(solution: Solution) -> RenderableType:
    capacity = solution.capacity
    gap = capacity.configuration.gap
    return Text(
        f"{len(capacity.layouts)} x {capacity.problem.gpus[0].pool.type.name}, "
        f"{capacity.gpcs} GPCs in use, {percent(capacity.unallocated)} unallocated;\n"
        f"{solution.strategy} decided in {1e3 * solution.decided_s:.1f} ms, "
        f"{'nothing proven' if gap is None else f'gap {percent(gap)}'}"
    )


def _layouts(capacity: Capacity) -> Table:
    layouts: Counter[Layout] = Counter(capacity.layouts.values())
    rows = ((str(n), " ".join(map(str, layout))) for layout, n in layouts.most_common())
    return table("Layouts", ">GPUs", "slices", rows=rows)


def _segments(capacity: Capacity) -> Table:
    rows = table(
        "Segments", "model", ">segments", "slice", ">batch", ">share", ">req/s", ">latency"
    )
    for kind, number, share in _by_kind(capacity):
        rows.add_row(
            kind.model,
            str(number),
            kind.profile,
            f"{kind.batch_size}x{kind.processes}",
            percent(share),
            f"{kind.throughput_rps:.0f}",
            milliseconds(kind.latency_s),
        )
    return rows


def _by_kind(capacity: Capacity) -> Iterator[tuple[SegmentKind, int, float]]:
    numbers: Counter[SegmentKind] = Counter()
    shares: dict[SegmentKind, float] = {}
    for segment in capacity.segments:
        numbers[segment.kind] += 1
        shares[segment.kind] = shares.get(segment.kind, 0.0) + segment.share
    for kind in sorted(numbers, key=lambda each: (each.model, each.profile)):
        yield kind, numbers[kind], shares[kind]


def _segment(segment: Segment) -> dict[str, Any]:
    kind = segment.kind
    return {
        "model": kind.model,
        "gpu": segment.gpu_uuid,
        "slice": segment.placement.profile,
        "start": segment.placement.start,
        "batch_size": kind.batch_size,
        "processes": kind.processes,
        "share": segment.share,
        "throughput_rps": kind.throughput_rps,
        "latency_s": kind.latency_s,
    }
