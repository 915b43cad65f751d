"""The predicted latency of plans against the router's and the workers' own code in virtual time.

Random problems: one to four GPUs of two types, one model of one to three variants, with and without
batches, one to four processes per segment, from a few requests per second to what fills the fleet.
`exact` and `annealing` plan in turn; every plan that is not marked degraded is simulated request by
request, Poisson arrivals, no delay on the way. Nothing of the model was tuned on these problems: it
has no fitted constants.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simpy import Environment

from benchmarks import _fleets as fleets
from benchmarks.harness import Figures, Report, in_processes, main
from cinquefoil.gpuagent.v1.records import SegmentSpec
from services.gpuagent.core.batch_costs import Costs
from services.gpuagent.core.worker_config import tabulate
from services.kit.config import Deployment, Objective
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import Configuration, Model, Pool, Problem, SegmentKind, Variant
from services.planner.core.placement.placement import place
from services.planner.core.problem import catalog
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
WARM_UP = 0.05
"""Share of the requests that is not counted."""

STRATEGIES = ("exact", "annealing")
PATIENCE_S = 3600.0
"""Deadline of every request: none is given up."""

BATCHES = ((1,), (1, 2, 4, 8, 16))
NAME = "model"


def measure(problems: int = PROBLEMS) -> Report:
    """Plan and simulate."""
    rows = [row for row in in_processes(_row, range(problems)).values() if row is not None]
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


def simulated(problem: Problem, found: Configuration, seed: int) -> NDArray[np.float64]:
    """Return the latencies of one model's requests under a configuration, s."""
    (model,) = problem.models
    rate_rps = sum(found.load_rps.values())
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_rps, REQUESTS)
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


if __name__ == "__main__":
    main("latency_model", measure, quick=lambda: measure(QUICK))
