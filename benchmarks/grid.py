"""Power budgets: plans of a large fleet under budgets that bind, and a sudden or announced event.

python -m benchmarks.grid [--quick] [--json FILE]

The shape of the field trial on 256 GPUs (arXiv 2507.00909): 25 % less power for three hours, with
15 minutes of ramp where the event is announced. Plans are `exact`'s, for 256 A100s of one site.
The event runs in virtual time: the planner's shares, the agents' control and the sites' meters are
the code that runs live; a node's power follows its clock as `services.kit.hardware.clock_curve`
says, profiles state 8 % too little active power, meters average a second, shares arrive half a
second late, and load varies by node. Baseline of the plans: the plan without a budget, with as many
requests refused as the budget takes. Costs are those of a day's prices, beside all configurations.
"""

import math
import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from benchmarks import _fleets as fleets
from benchmarks._cost_optimum import VALUE_EUR, cost_gap
from benchmarks.harness import Figures, Report, main
from services.gpuagent.power_cap.core.control import PowerControl
from services.kit.config import Objective
from services.kit.hardware import gpu_types
from services.planner.core.model import Pool, Problem, Score, SiteLimit
from services.planner.core.power.meters import SiteMeter
from services.planner.core.power.shares import NodeDraw, shares_w, site_wall_w
from services.planner.core.problem.score import score
from services.planner.core.problem.site_power import idle_w
from services.planner.core.strategies import REGISTRY

GPUS_PER_NODE: Final = 8
HOST_W: Final = 400.0
PUE: Final = 1.2
SHARES: Final = (0.9, 0.75, 0.6)
SHED: Final = 0.25
LOOK_S: Final = 0.5
TIME_LIMIT_S: Final = 10.0
RAMP_S: Final = 900.0
PLAN_S: Final = 20.0
"""Time from a budget to its plan in force, s: solve and rollout."""

PROFILE_ERROR: Final = 1.08
UTILISATION: Final = 0.7
LOAD: Final = 6.0
"""Factor on the demand: nearly all GPUs are in use."""

SENSITIVITY: Final = 1.0


def problem(gpus: int) -> Problem:
    """A site of A100s with six families, at about two thirds of what they can serve."""
    pool = Pool(fleets.gpu_type("a100-40gb"), "US-CAL", PUE, 207.13, "site")
    models = [
        fleets.efficientnet(f"m{index}", demand_rps=LOAD * rate * gpus, slo_s=slo_s, scale=scale)
        for index, (rate, slo_s, scale) in enumerate(
            [(60, 0.15, 1), (30, 0.3, 2), (20, 0.2, 1), (10, 0.5, 4), (40, 0.1, 0.5), (15, 0.4, 2)]
        )
    ]
    posed = fleets.problem(
        fleets.fleet([(pool, gpus)]),
        models,
        Objective(carbon_weight=0.05),
        time_limit_s=TIME_LIMIT_S,
    )
    overhead_w = PUE * HOST_W * gpus / GPUS_PER_NODE
    return replace(posed, sites=(SiteLimit("site", 1e9, "sites.site.power_budget_w", overhead_w),))


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan under a budget. Attributes: score, solve_s."""

    score: Score
    solve_s: float


def planned(posed: Problem, limit_w: float) -> Planned:
    """Return the plan under a budget."""
    limited = replace(posed, sites=(replace(posed.sites[0], limit_w=limit_w),))
    began_s = time.perf_counter()
    found = REGISTRY["exact"](limited)
    return Planned(score(limited, found), time.perf_counter() - began_s)


def refused_points(posed: Problem, found: Score) -> float:
    """Return the requests that are not served in time, percentage points of all."""
    total_rps = sum(model.demand_rps for model in posed.models)
    return 100 * sum(found.unserved_rps.values()) / total_rps


def accuracy(posed: Problem, found: Score) -> float:
    """Return the mean accuracy of what is served, percent of the best variants'."""
    served = {m.name: m.demand_rps - found.unserved_rps[m.name] for m in posed.models}
    kept = sum(served[m.name] * found.accuracy[m.name] / m.best.accuracy for m in posed.models)
    return 100 * kept / max(sum(served.values()), 1e-9)


def binding(posed: Problem, free: Score) -> Iterator[dict[str, Any]]:
    """Yield a row for each budget, beside the baseline."""
    drawn_w, least_w = free.site_w["site"], idle_w(posed, posed.sites[0])
    for share in SHARES:
        limit_w = share * drawn_w
        found = planned(posed, limit_w)
        over = found.score.site_w["site"] / limit_w - 1
        refused = max(0.0, 1 - (limit_w - least_w) / (drawn_w - least_w))
        yield {
            "budget_share": share,
            "solve_s": found.solve_s,
            "over": max(0.0, over),
            "missed_points": refused_points(posed, found.score),
            "baseline_missed_points": 100 * min(1.0, refused),
            "accuracy_percent": accuracy(posed, found.score),
            "free_accuracy_percent": accuracy(posed, free),
        }


@dataclass(slots=True)
class Node:
    """A node in virtual time. Attributes: active_w (at the highest clock, as planned), load."""

    name: str
    idle_w: float
    most_w: float
    control: PowerControl
    draw: random.Random
    active_w: float = 0.0
    load: float = 1.0
    share_w: float = math.inf
    meter: deque[float] = field(default_factory=lambda: deque(maxlen=2))

    def step(self, at_s: float) -> float:
        """Draw power for one look, and control it; return it, W."""
        self.load += 0.05 * (1 - self.load) + self.draw.gauss(0, 0.015)
        throttle = self.control.throttle
        ratio = CURVE.power_ratio(throttle.clock)
        power_w = self.idle_w + self.active_w * PROFILE_ERROR * self.load * ratio
        power_w = min(power_w, max(throttle.limit_w, self.idle_w))
        self.meter.append(power_w)
        self.control.look(at_s, self.seen_w, self.idle_w, self.share_w, throttle.clock)
        return power_w

    @property
    def seen_w(self) -> float:
        """Power as the meter shows it, W."""
        return sum(self.meter) / len(self.meter)

    @property
    def late(self) -> bool:
        """True where its clock is too low for its load."""
        stretch = CURVE.stretch(SENSITIVITY, self.control.throttle.clock)
        return UTILISATION * self.load * stretch > 1


CURVE: Final = gpu_types.load("a100-40gb").clock_curve


def nodes_of(gpus: int) -> list[Node]:
    """Return the nodes of the site."""
    table = gpu_types.load("a100-40gb")
    floor = min(table.clocks_mhz) / max(table.clocks_mhz)
    least_w, most_w = (GPUS_PER_NODE * w for w in (0.3 * table.max_power_w, table.max_power_w))
    return [
        Node(
            f"node-{number}",
            GPUS_PER_NODE * table.idle_power_w,
            most_w,
            PowerControl(floor, (least_w, most_w)),
            random.Random(number),  # load, no secret
        )
        for number in range(gpus // GPUS_PER_NODE)
    ]


@dataclass(slots=True)
class Event:
    """A run of an event: 25 % less for a while.

    Attributes:
        gpus: GPUs of the site.
        plans: Power above idle by budget share, as planned, W at the devices.
        ramp_s: Time of the ramp before it, s; 0: it is sudden.
        length_s: Length, s.
    """

    gpus: int
    base_w: float
    plans: dict[float, float]
    ramp_s: float
    length_s: float

    def budget(self, at_s: float) -> float:
        """Return the budget in force over the baseline; the event begins at 0."""
        if at_s < -self.ramp_s:
            return math.inf
        if at_s < 0:
            return 1 - SHED * (1 + math.floor(4 * at_s / self.ramp_s) / 4)
        return 1 - SHED

    def run(self) -> dict[str, Any]:
        """Return what became of the event."""
        nodes, meter = nodes_of(self.gpus), SiteMeter()
        self._plan(nodes, self.plans[1.0])
        drawn: list[tuple[float, float]] = []
        late, changed_s, plan, before = 0.0, -math.inf, 1.0, math.inf
        start_s = -self.ramp_s - 120.0
        for step in range(int((self.length_s - start_s) / LOOK_S)):
            at_s = start_s + LOOK_S * step
            budget = self.budget(at_s)
            wall_w = sum(PUE * (HOST_W + node.step(at_s)) for node in nodes)
            drawn.append((at_s, wall_w))
            if at_s >= 0:
                late += sum(node.late for node in nodes) / len(nodes)
            if budget < math.inf:
                limit_w = budget * self.base_w
                draws = [self._draw(node) for node in nodes]
                for node, share_w in zip(nodes, shares_w(limit_w, draws).values(), strict=True):
                    node.share_w = share_w
                capped = any(not node.control.throttle.none for node in nodes)
                meter.look(at_s, site_wall_w(draws), limit_w, capped=capped)
            wanted = min(1.0, budget) * (1 - meter.margin)
            if wanted != before:
                before, changed_s = wanted, at_s
            if at_s - changed_s >= PLAN_S and plan != wanted:
                plan = wanted
                self._plan(nodes, self._active_w(wanted))
        return self._judged(drawn, late)

    def _draw(self, node: Node) -> NodeDraw:
        return NodeDraw(node.name, PUE, HOST_W, node.idle_w, node.most_w, node.seen_w)

    def _plan(self, nodes: list[Node], active_w: float) -> None:
        for node in nodes:
            node.active_w = active_w / len(nodes)

    def _active_w(self, share: float) -> float:
        """Return the planned active power at a budget: between those of the plans made."""
        known = sorted(self.plans.items())
        for (low, low_w), (high, high_w) in pairwise(known):
            if share <= high:
                part = max(0.0, (share - low) / (high - low))
                return low_w + part * (high_w - low_w)
        return known[-1][1]

    def _judged(self, drawn: list[tuple[float, float]], late: float) -> dict[str, Any]:
        limit_w = (1 - SHED) * self.base_w
        after = [(at_s, wall_w) for at_s, wall_w in drawn if at_s >= 0]
        baseline = [wall_w for at_s, wall_w in drawn if at_s < -self.ramp_s]
        base_w = sum(baseline) / len(baseline)
        reached_s = next((at_s for at_s, wall_w in after if wall_w <= limit_w), math.inf)
        above, longest = 0, 0
        for at_s, wall_w in after:
            above = above + 1 if wall_w > limit_w and at_s > reached_s else 0
            longest = max(longest, above)
        minutes: dict[int, list[float]] = {}
        for at_s, wall_w in after:
            minutes.setdefault(int(at_s // 60), []).append(wall_w)
        shed = [
            (base_w - sum(each) / len(each)) / (base_w - limit_w)
            for minute, each in minutes.items()
            if minute  # the first has the reaction itself
        ]
        return {
            "case": "announced" if self.ramp_s else "sudden",
            "gpus": self.gpus,
            "reached_s": reached_s,
            "above_s": LOOK_S * longest,
            "shed_min": min(shed),
            "slowed_points": 100 * late / len(after),
        }


def measure(
    gpus: int = 256,
    length_s: float = 3 * 3600.0,
    values_eur: tuple[float, ...] = (0.1 * VALUE_EUR, VALUE_EUR, 10 * VALUE_EUR),
) -> Report:
    """Measure plans, events and costs."""
    posed = problem(gpus)
    free = planned(posed, 1e9)
    rows = list(binding(posed, free.score))
    least_w = idle_w(posed, posed.sites[0])
    base_w = least_w + PROFILE_ERROR * (free.score.site_w["site"] - least_w)
    plans = {1.0: (free.score.site_w["site"] - least_w) / PUE}
    found: dict[float, Score] = {}
    for share in (1 - SHED, 0.85 * (1 - SHED), 0.6 * (1 - SHED)):
        found[share] = planned(posed, share * base_w).score
        plans[share] = (found[share].site_w["site"] - least_w) / PUE
    events = [
        {
            **Event(gpus, base_w, plans, ramp_s, length_s).run(),
            "missed_points": refused_points(posed, found[1 - SHED]),
        }
        for ramp_s in (0.0, RAMP_S)
    ]
    cost = cost_gap(values_eur)
    tables = [
        Figures(
            f"Plans under budgets, {gpus} GPUs, six models",
            rows,
            f"exact, {TIME_LIMIT_S:g} s of processor time at most",
        ),
        Figures(
            f"{SHED:.0%} less power for {length_s / 3600:g} h, virtual time",
            events,
            "slowed_points: node-time at a clock too low for its load, during the event",
        ),
        Figures(
            "Total cost by known prices beside the optimum, one GPU, two models",
            [cost],
            "optimum: all sets of segments tried; worst_gap: of an hour",
        ),
    ]
    return Report(tables, {"events": events, "budgets": rows, "cost": cost})


def quick() -> Report:
    """Measure a small site for a few minutes."""
    return measure(32, 600.0, (VALUE_EUR,))


if __name__ == "__main__":
    main("grid", measure, quick=quick)
