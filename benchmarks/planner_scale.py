"""Time to plan: fleets of 1,000 to 100,000 GPUs, two types in two zones.

A case plans from nothing, or again after a change: by `exact`, then where segments go, then the
rollout; and the whole decision (catalog, problem, horizon, solve, placement, rollout, score) of a
planner that has just started, or that runs and sees the change. Targets: a proven gap of at most
0.1 % or one GPU, in 0.3 s at 1,000 GPUs and 20 models, in 2 s at 10,000 and 100, in 20 s at 100,000
and 300; placement and rollout in 2 s each at 10,000; the whole decision in 1 s of processor time at
1,000 GPUs and 20 models, in 4 s at 10,000 and 100.

`--seeds N` draws the models of the smallest size N times.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from benchmarks import _fleets as fleets
from benchmarks.harness import Figures, Report, options, publish
from cinquefoil.gpuagent.v1.records import Segment as RunningSegment
from cinquefoil.gpuagent.v1.records import SegmentState
from services.kit.config import Goals, Objective
from services.kit.config import Planner as Settings
from services.planner.core.decide import Decision, Snapshot, decide
from services.planner.core.model import Gpu, Model, Pool, Problem, Segment
from services.planner.core.placement.placement import place
from services.planner.core.placement.rollout import plan_rollout
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact

T = TypeVar("T")

SIZES = ((1_000, 20), (10_000, 100))
"""GPUs and models of every case."""

LARGEST = (100_000, 300)
"""GPUs and models of those cases that say so."""

TIME_LIMIT_S = 20.0
CLOCKS = (1.0, 0.8, 0.6)

A100 = Pool(fleets.gpu_type("a100-40gb"), "US-CAL", 1.5, 207.13)
H100 = Pool(fleets.gpu_type("h100-80gb"), "FR", 1.2, 60.0)


def _clover(**more: Any) -> Objective:
    return Objective(carbon_weight=0.3, **more)


def _fewest(**more: Any) -> Objective:
    return Objective(goals=Goals(clover=0, fewest_gpus=1), **more)


MIXED = Goals(clover=1, fewest_gpus=1, infadapter=1)
PRICED = {"switch_price": 0.02, "layout_price": 0.02}


World = tuple[Sequence[Gpu], Sequence[Model]]
Change = Callable[[Sequence[Gpu], Sequence[Model], Sequence[Segment]], World]


def other_demand(gpus: Sequence[Gpu], models: Sequence[Model], _: Sequence[Segment]) -> World:
    """Change each model's demand by up to 1 %."""
    draw = random.Random(1)
    return gpus, [
        replace(model, demand_rps=model.demand_rps * draw.uniform(0.99, 1.01)) for model in models
    ]


def lost_node(gpus: Sequence[Gpu], models: Sequence[Model], running: Sequence[Segment]) -> World:
    """Lose a node that serves."""
    return [gpu for gpu in gpus if gpu.node != running[0].node], models


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet and its load to plan for.

    Attributes:
        name: Name in the figures.
        objective: Of the plan.
        load_rps: Demand per GPU.
        variants: Of each model.
        clocks: SM clocks to choose from, as shares of the highest.
        change: Change of a running plan, so that it is made again; None: nothing runs.
        largest: The case is planned for the largest fleet, too.
    """

    name: str
    objective: Objective
    load_rps: float
    variants: int = 4
    clocks: tuple[float, ...] = (1.0,)
    change: Change | None = None
    largest: bool = False


CASES = (
    Case("fewest GPUs, few needed", _fewest(), 400.0, largest=True),
    Case("fewest GPUs, 5 % needed", _fewest(), 4_000.0),
    Case("fewest GPUs, a quarter needed", _fewest(), 20_000.0),
    Case("fewest GPUs, half needed", _fewest(), 28_000.0, largest=True),
    Case("fewest GPUs, one variant, few needed", _fewest(), 400.0, variants=1),
    Case("fewest GPUs, one variant, half needed", _fewest(), 28_000.0, variants=1),
    Case("fewest GPUs, overload", _fewest(), 60_000.0),
    Case("carbon and accuracy, light load", _clover(), 400.0),
    Case("carbon and accuracy", _clover(), 4_000.0, largest=True),
    Case("carbon and accuracy, overload", _clover(), 60_000.0),
    Case("idle GPUs parked", _clover(park_idle_gpus=True), 4_000.0),
    Case("idle GPUs parked, three clocks", _clover(park_idle_gpus=True), 4_000.0, clocks=CLOCKS),
    Case("all goals", _clover(goals=MIXED), 4_000.0),
    Case("all goals, a quarter needed", _clover(goals=MIXED), 20_000.0),
    *(
        Case(f"{name}, {after}", objective, 4_000.0, change=change)
        for after, change in (("1 % other demand", other_demand), ("a node lost", lost_node))
        for name, objective in (
            ("fewest GPUs", _fewest(**PRICED)),
            ("carbon and accuracy", _clover(**PRICED)),
            ("all goals", _clover(goals=MIXED, **PRICED)),
        )
    ),
)


def measure() -> Report:
    """Plan every case in every size."""
    return _report([*_cases(SIZES), *_cases([LARGEST])])


def quick() -> Report:
    """Plan every case in the smallest size."""
    return _report(list(_cases(SIZES[:1])))


def swept(seeds: int) -> Report:
    """Plan every case in the smallest size with that many draws of the models.

    Returns:
        The worst and the median of each case; a gap that is not known counts as infinite.
    """
    (gpus, models), *_ = SIZES
    found = [[_planned(case, gpus, models, seed) for seed in range(seeds)] for case in CASES]
    rows = [_spread(each) for each in found]
    title = f"{gpus} GPUs x {models} models, {seeds} draws of the models"
    note = "cpu_s: processor time of exact, decide_cpu_s: of all; place_s, rollout_s: by the clock"
    return Report([Figures(title, rows, note)], document={"planner_scale": {"seeds": rows}})


def _spread(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median and the worst of one case's runs."""
    row: dict[str, Any] = {"name": runs[0]["name"]}
    for key in ("cpu_s", "decide_cpu_s", "gap", "gap_gpus"):
        values = [math.inf if run[key] is None else run[key] for run in runs]
        row |= {f"{key}_median": statistics.median(values), f"{key}_worst": max(values)}
    return row | {f"{key}_worst": max(run[key] for run in runs) for key in ("place_s", "rollout_s")}


def _report(rows: list[dict[str, Any]]) -> Report:
    note = "70 % A100-40GB, 30 % H100-80GB; seconds, cpu_s: exact alone; decide_cpu_s: all"
    figures = [
        Figures(f"{gpus} GPUs x {models} models", [r for r in rows if r["gpus"] == gpus], note)
        for gpus, models in dict.fromkeys((row["gpus"], row["models"]) for row in rows)
    ]
    return Report(figures, document={"planner_scale": {"cases": rows}})


def _cases(sizes: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for gpus, models in sizes:
        for case in CASES:
            if (gpus, models) != LARGEST or case.largest:
                yield _planned(case, gpus, models)


def _planned(case: Case, gpus: int, models: int, seed: int = 0) -> dict[str, Any]:
    fleet: Sequence[Gpu] = fleets.fleet([(A100, gpus * 7 // 10), (H100, gpus - gpus * 7 // 10)])
    served: Sequence[Model] = _models(models, gpus * case.load_rps / models, case.variants, seed)
    new_id = fleets.ids()
    running: tuple[Segment, ...] = ()
    if case.change is not None:
        problem = _problem(case, fleet, served, ())
        running = place(problem, exact(problem), new_id)
        zones = {pool.zone: pool.intensity_gco2e_per_kwh for pool in (A100, H100)}
        fleet, running = fleets.rolled_out(fleet, running, zones)
        fleet, served = case.change(fleet, served, running)
        there = {gpu.uuid for gpu in fleet}
        running = tuple(segment for segment in running if segment.gpu_uuid in there)
    problem = _problem(case, fleet, served, running)
    found, seconds, cpu_s = _timed_s(lambda: exact(problem))
    judged = score(problem, found)
    target, place_s, _ = _timed_s(lambda: place(problem, found, new_id))
    rollout, rollout_s, _ = _timed_s(lambda: plan_rollout(fleet, running, target, served))
    _, _, decide_cpu_s = _timed_s(_decision(case, fleet, served, running, new_id))
    return {
        "name": case.name,
        "gpus": gpus,
        "models": models,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "gap": found.gap,
        "gap_gpus": None if found.gap is None else found.gap * judged.gpus_in_use,
        "in_use": judged.gpus_in_use,
        "segments": sum(found.segments.values()),
        "unserved": judged.worst_unserved,
        "place_s": place_s,
        "rollout_s": rollout_s,
        "decide_cpu_s": decide_cpu_s,
        "started": fleets.changes(running, target),
        "stages": len(rollout.stages),
    }


def _decision(
    case: Case,
    gpus: Sequence[Gpu],
    models: Sequence[Model],
    running: Sequence[Segment],
    new_id: Callable[[], str],
) -> Callable[[], Decision]:
    """Return the whole decision; with nothing running it is the first of a planner's process."""
    if not running:
        models = [replace(each, variants=tuple(map(replace, each.variants))) for each in models]
    settings = Settings(time_limit_s=TIME_LIMIT_S, clock_ratios=case.clocks)
    snapshot = Snapshot(
        strategy="exact",
        gpus=tuple(gpus),
        models=tuple(models),
        running=tuple(RunningSegment(each.spec, SegmentState.READY, ("h:1",)) for each in running),
        shares={each.segment_id: each.share for each in running},
        objective=case.objective,
    )
    return lambda: decide(snapshot, settings, new_id)


def _problem(
    case: Case, gpus: Sequence[Gpu], models: Sequence[Model], running: Sequence[Segment]
) -> Problem:
    return fleets.problem(
        gpus,
        models,
        case.objective,
        running,
        clock_ratios=case.clocks,
        time_limit_s=TIME_LIMIT_S,
    )


def _models(number: int, demand_rps: float, variants: int, seed: int) -> list[Model]:
    draw = random.Random(seed)
    made = [
        fleets.efficientnet(
            f"model-{index}",
            demand_rps=demand_rps * draw.uniform(0.3, 1.7),
            slo_s=draw.choice((0.1, 0.15, 0.3)),
            scale=draw.uniform(0.4, 1.5),
        )
        for index in range(number)
    ]
    return [replace(model, variants=model.variants[:variants]) for model in made]


def _timed_s(call: Callable[[], T]) -> tuple[T, float, float]:
    """Return what a call returns, how long it took, and the processor's time for it, s."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    found = call()
    return found, time.perf_counter() - started_s, time.process_time() - cpu_s


def _seeds(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    parser = options("planner_scale")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--quick", action="store_true", help="run a small part only")
    parts.add_argument(
        "--seeds",
        type=_seeds,
        metavar="N",
        help="draw the models N times, at the smallest size: the worst and the median",
    )
    arguments = parser.parse_args()
    if arguments.seeds:
        publish("planner_scale", swept(arguments.seeds), arguments)
    else:
        publish("planner_scale", quick() if arguments.quick else measure(), arguments)
