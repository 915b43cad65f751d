"""Runs that the benchmark makes, and the figures that it keeps of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import combinations

from benchmarks.carbondis.baselines import HighPerf
from benchmarks.carbondis.setting import ARRIVALS, PAPERS, SET1, SET2, SETS, Arrivals, Set
from benchmarks.carbondis.shared import InTurn, SharedCarbonAware, by_violations
from benchmarks.carbondis.simulate import (
    ALL_HIGH,
    MIXED,
    POLICIES,
    Case,
    Fleet,
    Run,
    bound_gco2e,
    run,
    work,
)
from services.router.core.balancing.carbondis import Carbondis

SHORT = 2000
"""Requests of each job where many settings are tried; the hours of the trace pass as fast."""

FEW_POLICIES = ("highperf", "carbondis", "carbon-aware")
LOADS = (0.5, 0.75, 1.25, 1.5)
DRAWS = 3
"""Draws of the requests where loads differ: one of 2,000 may keep an SLO that another misses."""
TIGHTNESS = (0.8, 0.9, 1.1, 1.2)
SEEDS = 20
"""Draws of set 2, where the carbon-aware policy is farthest from the bound."""
THRESHOLDS = (0.8, 0.9, 1.0, 1.1, 1.2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a policy, or of the bound.

    Attributes:
        carbon_gco2e: All emissions, GPUs powered to the common end.
        own_end_gco2e: The same, each job's own GPU powered to the end of its job.
        active_gco2e, idle_gco2e: Parts of the first: while GPUs compute, and while not.
        tails_ms: 95th percentile of each job, ms.
        slo_met: By job.
        high_use: Requests that a high-end GPU served, by job.
        late: Requests over their constraint, by job.
        first_job_ms: Latencies of the first job at each percentile 0..100, ms (Fig. 7).
    """

    carbon_gco2e: float
    own_end_gco2e: float
    active_gco2e: float = 0.0
    idle_gco2e: float = 0.0
    tails_ms: tuple[float, ...] = ()
    slo_met: tuple[bool, ...] = ()
    high_use: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    first_job_ms: tuple[float, ...] = ()

    def saving_pct(self, highperf: Outcome, *, own_end: bool = False) -> float:
        """Return by how much it emits less, %."""
        if own_end:
            return 100 * (1 - self.own_end_gco2e / highperf.own_end_gco2e)
        return 100 * (1 - self.carbon_gco2e / highperf.carbon_gco2e)


def outcome(found: Run) -> Outcome:
    """Return what is kept of a run."""
    total, idle = found.carbon_gco2e(), found.idle_gco2e()
    return Outcome(
        carbon_gco2e=total,
        own_end_gco2e=found.carbon_gco2e(own_end=True),
        active_gco2e=total - idle,
        idle_gco2e=idle,
        tails_ms=tuple((1e3 * found.tails_s()).tolist()),
        slo_met=tuple(found.slo_met()),
        high_use=tuple(found.high_use),
        late=found.late(),
        first_job_ms=found.percentiles_ms(0),
    )


def solve(case: Case) -> dict[str, Outcome]:
    """Return the outcome of each policy of a case, and the bound."""
    todo = work(case)
    found = {}
    for name in case.policies or POLICIES:
        fleet, policy = POLICIES[name]
        found[name] = outcome(run(todo, fleet, policy()))
    found["bound"] = Outcome(bound_gco2e(todo), bound_gco2e(todo, own_end=True))
    return found


def draws(arrivals: Arrivals, requests: int, seeds: int) -> list[Case]:
    """Return set 2 with the carbon-aware policy, drawn so many times."""
    policies = ("highperf", "carbon-aware")
    case = Case(SET2, arrivals, requests, policies=policies)
    return [replace(case, seed=seed) for seed in range(seeds)]


def of_bound(found: Mapping[str, Outcome]) -> float:
    """Return the share of the possible saving that the carbon-aware policy reaches."""
    base = found["highperf"]
    return found["carbon-aware"].saving_pct(base) / found["bound"].saving_pct(base)


def sweep(threshold: float) -> Outcome:
    """Return CARBONDIS on set 1 with a CIT."""
    todo = work(Case(SET1, requests=SHORT))
    return outcome(run(todo, MIXED, InTurn(Carbondis(threshold), by_violations)))


def parked(jobs: Set) -> tuple[Fleet, float]:
    """Return the fewest GPUs on which the carbon-aware policy keeps every SLO, and what it saves.

    Returns:
        The fleet, and its saving against HIGHPERF, %.
    """
    todo = work(Case(jobs, requests=SHORT))
    highperf = run(todo, ALL_HIGH, InTurn(HighPerf())).carbon_gco2e()
    for fleet in _fleets():
        found = run(todo, fleet, SharedCarbonAware())
        if all(found.slo_met()):
            return fleet, 100 * (1 - found.carbon_gco2e() / highperf)
    raise AssertionError(f"{jobs.name}: no fleet keeps every SLO")


def _fleets() -> Iterator[Fleet]:
    """Yield fleets with one high-end GPU, those with the least idle power first."""
    for count in range(6):
        for low in combinations(range(5), count):
            yield Fleet(low, 1)


def sensitivities() -> dict[str, tuple[Case, ...]]:
    """Return other loads and scalings of both sets, by name: the draws of each."""
    cases: dict[str, tuple[Case, ...]] = {}
    for jobs in SETS:
        for arrivals in ARRIVALS:
            for rate in LOADS:
                case = Case(jobs, arrivals, SHORT, rate=rate, policies=FEW_POLICIES)
                draws = tuple(replace(case, seed=seed) for seed in range(DRAWS))
                cases[f"{jobs.name} {arrivals} load x{rate}"] = draws
        for tightness in TIGHTNESS:
            case = Case(jobs, PAPERS, SHORT, tightness=tightness, policies=FEW_POLICIES)
            cases[f"{jobs.name} {PAPERS} tightness {tightness}"] = (case,)
    return cases


def solved(pool: Executor, cases: Iterable[Case]) -> list[dict[str, Outcome]]:
    """Solve cases side by side."""
    return list(pool.map(solve, cases))
