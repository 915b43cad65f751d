"""One slice of a full GPU changes under load: in-use-safe, and as mig-parted would do it.

    python -m benchmarks.reconfigure [--json FILE] [--quick]

A simulated A100-40GB is full: two models, `stays` on two slices and `moves` on two. One slice of
`moves` is replaced by two smaller ones; the other carries its load meanwhile. `in_use_safe` takes
its route off, then sends one change that names only that slice. `destroy_all` does what mig-parted
does (`pkg/mig/config/config.go`: clear the GPU, then create), its users stopped first as the GPU
operator's mig-manager does. Workers, router and agent are real processes; the GPU's time is not.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks._one_node import GPU, Answer, Planner, World, percentile, placement, world
from benchmarks.harness import Figures, Report, main
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2

GMACS_PER_ITEM = 40.0
RATES_RPS = {"stays": 40.0, "moves": 20.0}
SLO_S, DEADLINE_S = 0.4, 1.0
QUIET_S = 4.0
ROUNDS = 5
TICK_S = 0.01

BEFORE = {
    "stays-a": ("stays", "2g.10gb@0"),
    "stays-b": ("stays", "1g.5gb@6"),
    "moves-a": ("moves", "2g.10gb@2"),
    "moves-b": ("moves", "2g.10gb@4"),
}
KEPT = ("stays-a", "stays-b", "moves-a")
AFTER = {
    **{name: BEFORE[name] for name in KEPT},
    "moves-c": ("moves", "1g.5gb@4"),
    "moves-d": ("moves", "1g.5gb@5"),
}
Segments = dict[str, tuple[str, str]]


# ---- actions -----------------------------------------------------------------------------------


def start(segments: Segments) -> list[steps_pb2.Action]:
    """Return the actions that start segments."""
    return [
        steps_pb2.Action(
            start_segment=steps_pb2.StartSegment(
                spec=inventory_pb2.SegmentSpec(
                    segment_id=name,
                    model=model,
                    variant="v",
                    batch_size=4,
                    processes=1,
                    gpu_uuid=GPU,
                    placement=placement(place),
                )
            )
        )
        for name, (model, place) in segments.items()
    ]


def stop(segments: Segments) -> list[steps_pb2.Action]:
    """Return the actions that drain segments."""
    actions = [
        steps_pb2.Action(stop_segment=steps_pb2.StopSegment(segment_id=name)) for name in segments
    ]
    for action in actions:
        action.stop_segment.grace.FromSeconds(5)
    return actions


def create(segments: Segments) -> list[steps_pb2.Action]:
    """Return the actions that create slices."""
    return [
        steps_pb2.Action(
            create_slice=steps_pb2.CreateSlice(gpu_uuid=GPU, placement=placement(place))
        )
        for _, place in segments.values()
    ]


def destroy(segments: Segments) -> list[steps_pb2.Action]:
    """Return the actions that destroy slices."""
    return [
        steps_pb2.Action(
            destroy_slice=steps_pb2.DestroySlice(gpu_uuid=GPU, placement=placement(place))
        )
        for _, place in segments.values()
    ]


# ---- the two ways ------------------------------------------------------------------------------

GOING: Segments = {"moves-b": BEFORE["moves-b"]}
COMING: Segments = {name: AFTER[name] for name in ("moves-c", "moves-d")}


async def in_use_safe(planner: Planner) -> None:
    """Routes first; then one change of what changes."""
    await planner.route(KEPT)
    await planner.change(stop(GOING), destroy(GOING), create(COMING), start(COMING))
    await planner.route(AFTER)


async def destroy_all(planner: Planner) -> None:
    """Stop every user of the GPU, clear it, create its slices again, restart every user."""
    await planner.change(stop(BEFORE), destroy(BEFORE))
    await planner.change(create(AFTER), start(AFTER))
    await planner.route(AFTER)


WAYS: dict[str, Callable[[Planner], Awaitable[None]]] = {
    "in_use_safe": in_use_safe,
    "destroy_all": destroy_all,
}


# ---- measuring ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """Effects of one change.

    Attributes:
        sent: Requests sent while it lasted.
        lost: Those not answered within the deadline, and any in the quiet before.
        late: Those answered after the objective.
        took_s: From the first order to the last route.
        lost_capacity_s: Integral over that time of the share of the GPU that did not serve.
        quiet_s, during_s: Latencies of the neighbours' model, before and during.
    """

    sent: int
    lost: int
    late: int
    took_s: float
    lost_capacity_s: float
    quiet_s: tuple[float, ...]
    during_s: tuple[float, ...]


async def lost_capacity_s(planner: Planner, ended: asyncio.Event) -> float:
    """Return the GPU-seconds that did not serve until `ended`."""
    lost_s, then_s = 0.0, time.perf_counter()
    while not ended.is_set():
        await asyncio.sleep(TICK_S)
        now_s = time.perf_counter()
        lost_s += (1 - planner.capacity()) * (now_s - then_s)
        then_s = now_s
    return lost_s


async def once(way: Callable[[Planner], Awaitable[None]]) -> Round:
    """Fill the GPU, put it under load, change it."""
    with TemporaryDirectory() as folder:
        async with world(Path(folder), GMACS_PER_ITEM) as node:
            await node.planner.change(create(BEFORE), start(BEFORE))
            await node.planner.route(BEFORE)
            async with node.load(RATES_RPS, DEADLINE_S):
                await asyncio.sleep(1.0)  # channels open, caches warm
                quiet_from_s = time.perf_counter()
                await asyncio.sleep(QUIET_S)
                began_s, ended = time.perf_counter(), asyncio.Event()
                losing = asyncio.create_task(lost_capacity_s(node.planner, ended))
                await way(node.planner)
                ended.set()
                ended_s = time.perf_counter()
            return measured(node, quiet_from_s, began_s, ended_s, await losing)


def measured(
    node: World, quiet_from_s: float, began_s: float, ended_s: float, lost_s: float
) -> Round:
    """Return a round's figures."""

    def between(answers: Sequence[Answer], start_s: float, end_s: float) -> tuple[float, ...]:
        return tuple(each.latency_s for each in answers if start_s <= each.sent_s < end_s)

    every = [each for answers in node.answers.values() for each in answers]
    during = between(every, began_s, ended_s)
    return Round(
        sent=len(during),
        lost=sum(map(math.isinf, between(every, quiet_from_s, ended_s))),
        late=sum(SLO_S < latency_s < math.inf for latency_s in during),
        took_s=ended_s - began_s,
        lost_capacity_s=lost_s,
        quiet_s=between(node.answers["stays"], quiet_from_s, began_s),
        during_s=between(node.answers["stays"], began_s, ended_s),
    )


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the figures of one way, all rounds together; latencies are pooled."""
    quiet_s = percentile([each for one in rounds for each in one.quiet_s], 95)
    half = len(rounds[0].quiet_s) // 2
    first_s = percentile([each for one in rounds for each in one.quiet_s[:half]], 95)
    second_s = percentile([each for one in rounds for each in one.quiet_s[half:]], 95)
    during_s = percentile([each for one in rounds for each in one.during_s], 95)
    return {
        "lost": sum(one.lost for one in rounds),
        "late": sum(one.late for one in rounds),
        "sent": sum(one.sent for one in rounds),
        "lost_capacity_s": sum(one.lost_capacity_s for one in rounds) / len(rounds),
        "change_s": sum(one.took_s for one in rounds) / len(rounds),
        "neighbour_p95_ms": quiet_s * 1e3,
        "neighbour_p95_during_ms": min(during_s, DEADLINE_S) * 1e3,
        "neighbour_p95_ratio": min(during_s, DEADLINE_S) / quiet_s,
        "quiet_p95_ratio": max(first_s, second_s) / min(first_s, second_s),
    }


def measure(rounds: int = ROUNDS) -> Report:
    """Run both ways in turn."""
    seen: dict[str, list[Round]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            seen[name].append(asyncio.run(once(way)))
    document = {name: summary(found) for name, found in seen.items()}
    rows = [{"way": name, **figures} for name, figures in document.items()]
    note = (
        f"{rounds} rounds; lost: not answered within {DEADLINE_S:g} s; late: after {SLO_S:g} s; "
        "lost capacity: GPU-seconds per change. A lost request counts with its deadline. Noise: "
        "the quiet p95 ratio is of one half of the time before the change to the other."
    )
    title = "reconfigure: one slice of a full A100-40GB, under load"
    return Report((Figures(title, rows, note),), document)


if __name__ == "__main__":
    main("reconfigure", measure, quick=lambda: measure(1))
