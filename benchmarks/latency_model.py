"""The predicted latency of plans against the router's and the workers' own code in virtual time.

Random problems: one to four GPUs of two types, one model of one to three variants, with and without
batches, one to four processes per segment, from a few requests per second to what fills the fleet.
`exact` and `annealing` plan in turn; every plan that is not marked degraded is simulated request by
request, Poisson arrivals, no delay on the way. Nothing of the model was tuned on these problems: it
has no fitted constants.

Mixtures: two to four random kinds together, at most of the load that the model allows them; a plan
would not choose them but may keep them. A mixture within `CLEAR` of its objective after a fifth of
the requests is done; one that promises p99.9 gets five times as many. Bursts: gamma gaps of CV 3,
and a rate that switches 3:1, planned with the dispersion that the planner's estimator learns from a
sample of their counts.

`--part NAME` runs one part, `--seed N` other problems.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simpy import Environment

from benchmarks import _fleets as fleets
from benchmarks.harness import Figures, Report, in_processes, options, publish
from cinquefoil.gpuagent.v1.records import SegmentSpec
from cinquefoil.planner.v1.records import Dispersion
from services.gpuagent.core.batch_costs import Costs
from services.gpuagent.core.worker_config import tabulate
from services.kit.config import Deployment, Objective
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.forecast.burstiness import Burstiness
from services.planner.core.model import (
    POISSON,
    Configuration,
    Model,
    Pool,
    Problem,
    SegmentKind,
    Variant,
)
from services.planner.core.placement.placement import place
from services.planner.core.problem import catalog
from services.planner.core.problem.latency_rule import most_rps
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.queueing import TURNS
from services.planner.core.problem.score import score
from services.planner.core.problem.shortfall import shortfalls
from services.planner.core.strategies import REGISTRY
from services.router.core.model import Instance, InstanceId, ModelRoutes, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.simulator.device import Device
from services.simulator.router import Router
from services.simulator.stats.sampled_intervals import Recorder
from services.simulator.timeline import Timeline, Waiting
from services.simulator.worker import Job, Worker

PROBLEMS, QUICK = 200, 20
REQUESTS = 20_000
FIRST, CLEAR = REQUESTS // 5, 0.75
WARM_UP = 0.05
"""Share of the requests that is not counted."""

STRATEGIES = ("exact", "annealing")
PATIENCE_S = 3600.0
"""Deadline of every request: none is given up."""

MIXTURES, MIXED, TRIES = 200, 10_000, 60
"""Problems with mixtures, offset of their seeds, and mixtures drawn for each problem."""

PERCENTILES, RARE, MORE = (95.0, 95.0, 99.0, 99.9), 99.9, 5
"""Percentiles that mixtures promise, and from which on they get `MORE` times the requests."""

BURSTS = ("gamma", "mmpp")
STAY_S = 5.0
"""Mean time for which a switching rate stays."""

SAMPLE_S = 900
"""Length of the sample from which a dispersion is learnt, s."""

Seconds = NDArray[np.float64]

BATCHES = ((1,), (1, 2, 4, 8, 16))
NAME = "model"


def measure(problems: int = PROBLEMS) -> Report:
    """Plan and simulate every part."""
    return _together(
        [poisson(problems), mixtures(MIXTURES * problems // PROBLEMS), bursts(problems // 4)]
    )


def _together(reports: Sequence[Report]) -> Report:
    tables = [table for report in reports for table in report.tables]
    figures = [(report.document or {})["latency_model"] for report in reports]
    return Report(tables, document={"latency_model": {k: v for f in figures for k, v in f.items()}})


def poisson(problems: int, seed: int = 0) -> Report:
    """Plan and simulate for Poisson arrivals."""
    seeds = range(seed, seed + problems)
    rows = [row for row in in_processes(_row, seeds).values() if row is not None]
    ratios = [row["ratio"] for row in rows]
    low, high = np.percentile(ratios, [5, 95]) if ratios else (0.0, 0.0)
    found = {
        "problems": len(rows),
        "unmarked_violations": sum(row["of_slo"] > 1.0 for row in rows),
        "ratio_p05": float(low),
        "ratio_p95": float(high),
    }
    tables = [
        Figures("Predicted over simulated latency at the SLO's percentile", [found]),
        *_by_kind(rows),
    ]
    return Report(tables, document={"latency_model": found})


def mixtures(problems: int, seed: int = 0) -> Report:
    """Simulate random mixtures of kinds that the model promises to be in time."""
    seeds = range(seed, seed + problems)
    rows = [row for row in in_processes(_mixture_row, seeds).values() if row is not None]
    found = {
        "problems": len(rows),
        "unmarked_violations": sum(row["of_slo"] > 1.0 for row in rows),
        "slowest_of_slo": max((row["of_slo"] for row in rows), default=0.0),
        f"p{RARE:g}_beyond_{TURNS}_processes": sum(row["rare"] for row in rows),
    }
    tables = [Figures("Mixtures of kinds", [found])]
    return Report(tables, document={"latency_model": {"mixtures": found}})


def _mixture_row(seed: int) -> dict[str, Any] | None:
    drawn = _mixture(seed)
    if drawn is None:
        return None
    problem, found = drawn
    (model,) = problem.models
    of_slo, times = 0.0, MORE if model.slo_percentile >= RARE else 1
    for requests in (times * FIRST, times * REQUESTS):
        latencies_s = simulated(problem, found, seed, requests=requests)
        of_slo = float(np.percentile(latencies_s, model.slo_percentile)) / model.slo_latency_s
        if of_slo <= CLEAR:
            break
    processes = sum(kind.processes * count for kind, count in found.segments.items())
    return {"of_slo": of_slo, "rare": times > 1 and processes > TURNS}


def _mixture(seed: int) -> tuple[Problem, Configuration] | None:
    """Return a problem and a random mixture for it; None: none drawn keeps the promise."""
    draw, problem = random.Random(seed + MIXED), _problem(seed)
    percentile, theta = draw.choice(PERCENTILES), draw.choice((0.5, 0.7, 0.9))
    objective = problem.objective.model_copy(update={"latency_share": theta})
    (model,) = problem.models
    kinds = catalog.build([model], [*problem.pools], objective, BATCHES[-1], draw.randint(1, 4))
    for _ in range(TRIES if len(kinds) > 1 else 0):
        chosen = draw.sample(kinds, min(len(kinds), draw.randint(2, 4)))
        segments = {kind: draw.randint(1, 4) for kind in chosen}
        if gpus_needed(problem, segments) is None:
            continue
        full_rps = sum(most_rps(objective, kind) * count for kind, count in segments.items())
        demanding = replace(
            model, demand_rps=full_rps * draw.uniform(0.6, 1.0), slo_percentile=percentile
        )
        posed = replace(problem, models=(demanding,), objective=objective, catalog=kinds)
        split = with_load(prices(posed), segments)
        used = {kind: count for kind, count in segments.items() if split.load_rps.get(kind, 0.0)}
        found = Configuration(used, {kind: split.load_rps[kind] for kind in used})
        if len(used) > 1 and not shortfalls(posed, score(posed, found)):
            return posed, found
    return None


def bursts(problems: int, seed: int = 0) -> Report:
    """Plan with and without the dispersion of bursty loads, and simulate both."""
    jobs = [(kind, number) for kind in BURSTS for number in range(seed, seed + problems)]
    rows = [row for row in in_processes(_burst_row, jobs).values() if row is not None]
    found = {kind: _burst_figures([row for row in rows if row["kind"] == kind]) for kind in BURSTS}
    tables = [Figures("Bursts", [{"arrivals": kind, **each} for kind, each in found.items()])]
    return Report(tables, document={"latency_model": {"bursts": found}})


def _burst_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    count = max(len(rows), 1)
    return {
        "plans": len(rows),
        "late_plans": sum(row["of_slo"] > 1.0 for row in rows) / count,
        "late_plans_as_poisson": sum(row["poisson_of_slo"] > 1.0 for row in rows) / count,
        "energy": sum(row["energy"] for row in rows) / count,
    }


def _burst_row(job: tuple[str, int]) -> dict[str, Any] | None:
    """Return the figures of one problem with bursts; None: no plan keeps either promise."""
    kind, seed = job
    problem = _problem(seed)
    (model,) = problem.models
    dispersion = dispersion_of(kind, model.demand_rps, seed)
    bursty = replace(problem, models=(replace(model, dispersion=dispersion),))
    plans = [(each, REGISTRY["exact"](each)) for each in (bursty, problem)]
    judged = [score(*plan) for plan in plans]
    if any(shortfalls(of, it) for (of, _), it in zip(plans, judged, strict=True)):
        return None
    rates_rps = sum(plans[0][1].load_rps.values())
    gaps_s = burst_gaps_s(kind, rates_rps, REQUESTS, np.random.default_rng(seed))
    late = [np.percentile(simulated(*plan, seed, gaps_s), 95.0) for plan in plans]
    return {
        "kind": kind,
        "of_slo": float(late[0]) / model.slo_latency_s,
        "poisson_of_slo": float(late[1]) / model.slo_latency_s,
        "energy": judged[0].power_w / judged[1].power_w,
    }


def burst_gaps_s(kind: str, rate_rps: float, count: int, rng: np.random.Generator) -> Seconds:
    """Return gaps of bursty arrivals: "gamma" of CV 3, or "mmpp": a rate that switches 3:1."""
    if kind == "gamma":
        return rng.gamma(1 / 9, 9 / rate_rps, count)
    stays = math.ceil(count / rate_rps / STAY_S) + 20
    ends_s = np.cumsum(rng.exponential(STAY_S, 2 * stays))
    expected = np.cumsum(np.diff(ends_s, prepend=0.0) * rate_rps * np.tile([1.5, 0.5], stays))
    at_s = np.interp(np.cumsum(rng.standard_exponential(count)), [0.0, *expected], [0.0, *ends_s])
    return np.diff(at_s, prepend=0.0)


def dispersion_of(kind: str, rate_rps: float, seed: int) -> Dispersion:
    """Return what the planner learns of bursty arrivals within a quarter of an hour."""
    rng, now_s = np.random.default_rng(seed + MIXED), [0.0]
    gaps_s = burst_gaps_s(kind, rate_rps, math.ceil(1.5 * SAMPLE_S * rate_rps) + 100, rng)
    counts = np.histogram(np.cumsum(gaps_s), np.arange(SAMPLE_S + 1))[0]
    burstiness = Burstiness({NAME: POISSON}, lambda: now_s[0])
    for second, number in enumerate(counts.tolist()):
        now_s[0] = second + 1.0
        burstiness.observe("router", second, {NAME: [number]})
    return burstiness.known[NAME]


def _by_kind(rows: Sequence[dict[str, Any]]) -> Iterator[Figures]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["batches"], row["processes"]), []).append(row)
    parts = [
        {
            "batches": batches,
            "processes": processes,
            "plans": len(group),
            "ratio_p05": float(np.percentile([row["ratio"] for row in group], 5)),
            "ratio_p50": float(np.percentile([row["ratio"] for row in group], 50)),
            "ratio_p95": float(np.percentile([row["ratio"] for row in group], 95)),
            "slowest_of_slo": max(row["of_slo"] for row in group),
        }
        for (batches, processes), group in sorted(groups.items())
    ]
    if parts:
        yield Figures("The same by what was planned", parts)


def _row(seed: int) -> dict[str, Any] | None:
    """Return one problem's figures; None: no plan keeps its promise, and says so."""
    problem, name = _problem(seed), STRATEGIES[seed % len(STRATEGIES)]
    found = REGISTRY[name](problem)
    judged = score(problem, found)
    if shortfalls(problem, judged) or not found.segments:
        return None
    simulated_s = float(np.percentile(simulated(problem, found, seed), 95.0))
    predicted_s, (model,) = judged.latency_s[NAME], problem.models
    return {
        "ratio": predicted_s / simulated_s,
        "of_slo": simulated_s / model.slo_latency_s,
        "batches": "on" if any(kind.batch_size > 1 for kind in found.segments) else "off",
        "processes": str(max(kind.processes for kind in found.segments)),
    }


def _problem(seed: int) -> Problem:
    draw = random.Random(seed)
    pool = Pool(fleets.gpu_type(draw.choice(("a100-40gb", "a30"))), "zone", 1.5, 200.0)
    gmacs = sorted(draw.uniform(1.0, 40.0) for _ in range(draw.randint(1, 3)))
    variants = tuple(
        Variant(f"v{index}", 70.0 + 5.0 * index, AnalyticProfile(work))
        for index, work in enumerate(gmacs)
    )
    whole_s = 2e-3 * gmacs[0]
    model = Model(
        name=NAME,
        slo_latency_s=whole_s * draw.uniform(2.0, 8.0),
        slo_percentile=95.0,
        demand_rps=10 ** draw.uniform(0.5, 2.0) / whole_s / 10,
        variants=variants,
    )
    problem = fleets.problem(
        fleets.fleet([(pool, draw.randint(1, 4))]),
        [model],
        Objective(
            carbon_weight=draw.choice((0.1, 0.5)),
            max_utilisation=draw.choice((0.5, 0.7, 0.9)),
            park_idle_gpus=draw.choice((True, False)),
        ),
        seed=seed,
    )
    kinds = catalog.build(
        problem.models,
        [pool],
        problem.objective,
        draw.choice(BATCHES),
        max_processes=draw.randint(1, 4),
    )
    return replace(problem, catalog=kinds)


def simulated(
    problem: Problem,
    found: Configuration,
    seed: int,
    gaps_s: Seconds | None = None,
    *,
    requests: int = REQUESTS,
) -> Seconds:
    """Return the latencies of one model's requests under a configuration, s.

    Args:
        problem: The problem.
        found: The configuration.
        seed: Of a Poisson process.
        gaps_s: Gaps between requests; None: a Poisson process at the configuration's load.
        requests: Number of requests of that process.
    """
    (model,) = problem.models
    rate_rps = sum(found.load_rps.values())
    if gaps_s is None:
        gaps_s = np.random.default_rng(seed).exponential(1 / rate_rps, requests)
    arrivals_s = np.cumsum(gaps_s)
    deployment = _deployment(model)
    timeline = Timeline(Environment())
    recorder = Recorder({NAME: arrivals_s}, {}, client_s=0.0)
    empty = ModelRoutes(NAME, model.slo_latency_s, model.slo_percentile, "shares", ())
    router = Router(
        deployment,
        ModelRegistry.at_start(deployment),
        timeline,
        recorder,
        link_s=0.0,
        request_bytes=0,
        lengths={},
    )
    instances = tuple(_started(problem, found, timeline, router))
    router.swap(RoutingTable(1, 1, (replace(empty, instances=instances),)))

    def send() -> Waiting:
        for index, gap_s in enumerate(gaps_s):
            yield timeline.env.timeout(gap_s)
            router.infer(NAME, index)

    timeline.env.process(send())
    timeline.env.run(until=float(arrivals_s[-1]) + 100 * model.slo_latency_s)
    recorder.turn(timeline.env.now)
    latencies_s = np.array(recorder.intervals[0].latency_s[NAME])
    return latencies_s[int(WARM_UP * len(latencies_s)) :]


def _started(
    problem: Problem, found: Configuration, timeline: Timeline, router: Router
) -> Iterator[Instance]:
    """Start the workers of every segment, and yield them as the routing table has them."""
    variants = {variant.name: variant for variant in problem.models[0].variants}
    for segment in place(problem, found, fleets.ids()):
        kind, spec = segment.kind, segment.spec
        costs = _costs(variants[kind.variant], kind, spec)
        device = Device(segment.gpu_uuid, segment.node, kind.pool.type)
        workers = []
        for number in range(kind.processes):
            instance = InstanceId(f"{segment.segment_id}.{number}", segment.segment_id)
            job = Job(instance, NAME, kind.batch_size, costs)
            workers.append(Worker(job, device, timeline, router.results, link_s=0.0))
            router.workers[instance] = workers[-1]
            yield Instance(
                endpoint=instance.endpoint,
                segment_id=segment.segment_id,
                model=NAME,
                variant=kind.variant,
                accuracy=kind.accuracy,
                share=segment.share / kind.processes,
                credits=kind.batch_size,
            )
        for worker in workers:
            worker.peers = tuple(workers)
            timeline.env.process(worker.run())


def _costs(variant: Variant, kind: SegmentKind, spec: SegmentSpec) -> Costs:
    gpu = kind.pool.type
    return tabulate(variant.profile, gpu.shape(gpu.geometry.kind(kind.profile)), spec)


def _deployment(model: Model) -> Deployment:
    """Return the least that a router must know: it refuses nothing in time."""
    profile = {"kind": "analytic", "gmacs_per_item": 1.0}
    variants = {
        each.name: {"file": "none", "accuracy": each.accuracy, "profile": profile}
        for each in model.variants
    }
    served = {
        "slo": {"latency_s": model.slo_latency_s, "percentile": model.slo_percentile},
        "demand_rps": model.demand_rps,
        "max_queue": REQUESTS,
        "default_deadline_s": PATIENCE_S,
        "variants": variants,
    }
    source = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    return Deployment.model_validate(
        {
            "version": "v1",
            "carbon": {"zones": {"zone": {"source": source}}},
            "nodes": {"node": {"zone": "zone"}},
            "models": {NAME: served},
        }
    )


def _parts() -> None:
    parser = options("latency_model")
    parser.add_argument("--quick", action="store_true", help="run a small part only")
    parser.add_argument("--part", choices=("poisson", "mixtures", "bursts"))
    parser.add_argument("--seed", type=int, default=0, help="first problem of a part")
    parser.add_argument("--problems", type=int, default=PROBLEMS, help="number of problems")
    arguments = parser.parse_args()
    problems = QUICK if arguments.quick else arguments.problems
    runs = {"poisson": poisson, "mixtures": mixtures, "bursts": bursts}
    part = runs.get(arguments.part)
    report = part(problems, arguments.seed) if part else measure(problems)
    publish("latency_model", report, arguments)


if __name__ == "__main__":
    _parts()
