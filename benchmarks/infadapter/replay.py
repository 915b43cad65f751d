"""Two days of the Twitter trace by the second, with a decision every 30 seconds.

A fluid model of what the decisions are worth: each network serves its share of the load up to what
was measured for its cores, and what is above waits. A new size serves once it is loaded; until then
the old one does.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._loads import DAY_S, HOLE_S
from benchmarks.infadapter.allocation import Allocation
from benchmarks.infadapter.policies import Outlook, Policy
from benchmarks.infadapter.setting import BEFORE, CORES, Setting
from services.kit.config import LoadForecast
from services.planner.core.forecast.demand import ConfiguredLoad, Demand
from services.planner.core.forecast.load_forecast import MARGIN

STEP_S = 30
MINUTE_S = 60
WARM_UP_S = 600
"""Not counted: everyone starts with ResNet-152 on all cores."""

NAME = "resnet"


@dataclass(frozen=True, slots=True)
class Course:
    """Record of a replay, by decision.

    Attributes:
        second: Times of the decisions, s.
        cores: Wanted.
        accuracy: Mean over the requests that came.
        objective: Eq. 1 with that accuracy.
        requests: That came.
        above: Requests above the capacity of the network they were sent to.
        late: Requests that waited beyond the SLO.
        p99_s: Predicted p99 of the slowest network, at the worst second.
        changed: Variants had to be loaded.
    """

    second: NDArray[np.int_]
    cores: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    objective: NDArray[np.float64]
    requests: NDArray[np.float64]
    above: NDArray[np.float64]
    late: NDArray[np.float64]
    p99_s: NDArray[np.float64]
    changed: NDArray[np.float64]


def outlooks(load_rps: NDArray[np.float64]) -> dict[int, Outlook]:
    """Return what is known at each decision; the forecasts come from the planner's own `Demand`."""
    clock = 0.0
    demand = Demand(
        {NAME: ConfiguredLoad(0.0, 0.0)}, LoadForecast(interval_s=MINUTE_S), lambda: clock
    )
    found = {}
    for second, rps in enumerate(load_rps):
        if second % STEP_S == 0 and second >= MINUTE_S and _recorded(second):
            recent = load_rps[second - MINUTE_S : second]
            found[second] = Outlook(
                since_s=STEP_S,
                mean_rps=float(recent[-STEP_S:].mean()),
                bound_rps=demand.rates_rps()[NAME],
                margin_rps=MARGIN * float(recent.max()),
            )
        clock = second + 1.0
        if rps > 0:
            demand.observe("router", {NAME: int(rps)}, 1.0)
    return found


def _recorded(second: int) -> bool:
    return (second + STEP_S) % DAY_S <= HOLE_S


def replay(
    setting: Setting,
    policy: Policy,
    load_rps: NDArray[np.float64],
    known: dict[int, Outlook],
    resources: float,
) -> Course:
    """Replay all of the load with a policy's decisions.

    Args:
        setting: The networks.
        policy: The policy that decides.
        load_rps: By second.
        known: Knowledge at the seconds at which a decision is due.
        resources: Weight of resources in Eq. 1.
    """
    running = Allocation(dict(BEFORE), dict.fromkeys(BEFORE, 1.0), 0.0)
    waiting: dict[str, float] = {}
    rows = []
    for second, outlook in known.items():
        wanted = policy.decide(outlook, running)
        loading_s = _loading_s(setting, running, wanted)
        step = load_rps[second : second + STEP_S]
        ready = min(round(loading_s), STEP_S)
        served = [
            _serve(setting, allocation, part, waiting)
            for allocation, part in ((running, step[:ready]), (wanted, step[ready:]))
            if len(part)
        ]
        running = wanted
        requests = float(step.sum())
        cores = sum(wanted.units.values())
        accuracy = sum(each.accuracy * each.requests for each in served) / max(requests, 1.0)
        weights = setting.weights(resources)
        price = weights.resources * cores / CORES + weights.loading * loading_s
        rows.append(
            (
                second,
                cores,
                accuracy,
                accuracy - price,
                requests,
                sum(each.above for each in served),
                sum(each.late for each in served),
                max(each.p99_s for each in served),
                loading_s > 0,
            )
        )
    counted = [row for row in rows if row[0] >= WARM_UP_S and row[4] > 0]
    return Course(*map(np.array, zip(*counted, strict=True)))


def summary(setting: Setting, course: Course) -> dict[str, Any]:
    """Return a course in a row."""
    requests = course.requests.sum()
    accuracy = float(course.accuracy @ course.requests / requests)
    return {
        "objective": float(course.objective.mean()),
        "cores": float(course.cores.mean()),
        "accuracy_loss_points": 100 * (setting.best_accuracy - accuracy),
        "above_capacity_percent": 100 * float(course.above.sum() / requests),
        "late_percent": 100 * float(course.late.sum() / requests),
        "p99_s": _weighted(course.p99_s, course.requests, 0.99),
        "changes": int(course.changed.sum()),
    }


@dataclass(frozen=True, slots=True)
class _Served:
    requests: float
    accuracy: float
    above: float
    late: float
    p99_s: float


def _serve(
    setting: Setting,
    allocation: Allocation,
    load_rps: NDArray[np.float64],
    waiting: dict[str, float],
) -> _Served:
    """Serve some seconds; `waiting` holds what each network has queued, and is updated."""
    shares = allocation.shares
    above = late = accuracy = p99_s = 0.0
    accuracies = {each.name: each.accuracy for each in setting.candidates}
    for name, share in shares.items():
        sizes = allocation.sizes(name)
        own, capacity = share * load_rps, sum(setting.measured_rps[name][size] for size in sizes)
        grown = np.cumsum(own - capacity)
        queued = grown + np.maximum(waiting.get(name, 0.0), np.maximum.accumulate(-grown))
        latency_s = max(setting.p99_s[name][size] for size in sizes) + queued / capacity
        waiting[name] = float(queued[-1])
        above += float(np.maximum(own - capacity, 0.0).sum())
        late += float(own[latency_s > setting.slo_s].sum())
        accuracy += accuracies[name] * share
        p99_s = max(p99_s, float(latency_s.max()))
    for name in waiting.keys() - shares.keys():
        waiting[name] = 0.0  # what has gone answered all it had
    return _Served(float(load_rps.sum()), accuracy, above, late, p99_s)


def _loading_s(setting: Setting, running: Allocation, wanted: Allocation) -> float:
    load_s = {each.name: each.load_s for each in setting.candidates}
    return max(
        (load_s[name] for name in wanted.units if running.sizes(name) != wanted.sizes(name)),
        default=0.0,
    )


def _weighted(values: NDArray[np.float64], weights: NDArray[np.float64], level: float) -> float:
    order = np.argsort(values)
    shares = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(shares, level * shares[-1])])
