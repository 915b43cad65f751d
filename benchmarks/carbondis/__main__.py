"""CARBONDIS on its own Table V, and the carbon-aware policy beside it.

python -m benchmarks.carbondis [--json FILE] [--plots [DIR]] [--quick]

Both sets in virtual time on the router's own policies. Savings are against HIGHPERF, in the same
simulation; the bound is every request at its least energy, and the idle power that is unavoidable.
Set 2 is drawn many times, for how near to it the carbon-aware policy comes. --quick: 2,000 requests
of each job instead of 20,000, few draws, and no sensitivities.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from statistics import fmean, median
from typing import Any

from benchmarks.carbondis import plots
from benchmarks.carbondis.setting import ARRIVALS, PAPERS, REQUESTS, SETS, Arrivals, grid
from benchmarks.carbondis.simulate import Case
from benchmarks.carbondis.study import (
    SEEDS,
    SHORT,
    THRESHOLDS,
    Outcome,
    draws,
    of_bound,
    parked,
    sensitivities,
    solved,
    sweep,
)
from benchmarks.harness import Figures, Report, Row, main

PAPER_PCT = {"set1": {"carbondis": 16.21}, "set2": {"carbondis": 11.22}}
FEW_SEEDS = 3
Found = dict[Arrivals, dict[str, dict[str, Outcome]]]


def measure(*, quick: bool = False) -> Report:
    """Run it all."""
    requests = SHORT if quick else REQUESTS
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = _main_runs(pool, requests)
        drawn = {
            arrivals: solved(pool, draws(arrivals, requests, FEW_SEEDS if quick else SEEDS))
            for arrivals in ARRIVALS
        }
        thresholds = dict(zip(THRESHOLDS, pool.map(sweep, THRESHOLDS), strict=True))
        others = _others(pool) if not quick else []
        parking = _parking(pool)
    tables = [
        *(
            table(arrivals, name, found[arrivals][name])
            for arrivals in ARRIVALS
            for name in PAPER_PCT
            for table in (_table, _jobs)
        ),
        Figures("CARBONDIS on set 1 by CIT", _thresholds(thresholds)),
        Figures("GPUs parked: the fewest on which carbon-aware keeps every SLO", parking),
    ]
    near = {arrivals: _near(each) for arrivals, each in drawn.items()}
    rows: list[Row] = [{"arrivals": arrivals, **each} for arrivals, each in near.items()]
    tables.append(Figures("Carbon-aware on draws of set 2: share of the bound's saving", rows))
    if others:
        tables.append(Figures("Other loads, other scalings", others, "saving: % of HIGHPERF"))
    document: dict[str, Any] = {name: _document(found[PAPERS][name], name) for name in PAPER_PCT}
    document["poisson-process"] = {
        name: _document(found["poisson-process"][name], name) for name in PAPER_PCT
    }
    document["set2"] |= near[PAPERS]
    document["poisson-process"]["set2"] |= near["poisson-process"]
    document["sensitivity"], document["parking"] = others, parking
    document["cit"] = _thresholds(thresholds)
    document["grids"] = {jobs.name: grid(jobs).source for jobs in SETS}
    return Report(tables, document, partial(plots.draw, found=found[PAPERS], sweep=thresholds))


def _main_runs(pool: Executor, requests: int) -> Found:
    """Run every policy on both sets and both arrival processes."""
    keys = [(arrivals, jobs) for arrivals in ARRIVALS for jobs in SETS]
    outcomes = solved(pool, [Case(jobs, arrivals, requests) for arrivals, jobs in keys])
    found: Found = {arrivals: {} for arrivals in ARRIVALS}
    for (arrivals, jobs), each in zip(keys, outcomes, strict=True):
        found[arrivals][jobs.name] = each
    return found


def _near(drawn: Sequence[Mapping[str, Outcome]]) -> dict[str, Any]:
    """Return how near to the bound draws come, and in how many all SLOs are met."""
    shares = [of_bound(each) for each in drawn]
    return {
        "of_bound_min": min(shares),
        "of_bound_median": median(shares),
        "seeds": len(shares),
        "slos_met": sum(all(each["carbon-aware"].slo_met) for each in drawn),
    }


def _table(arrivals: Arrivals, name: str, outcomes: Mapping[str, Outcome]) -> Figures:
    rows: list[Row] = []
    base = outcomes["highperf"]
    for policy, each in outcomes.items():
        rows.append(
            {
                "policy": policy,
                "carbon_gco2e": each.carbon_gco2e,
                "active_gco2e": each.active_gco2e,
                "idle_gco2e": each.idle_gco2e,
                "saving_pct": each.saving_pct(base),
                "paper_pct": PAPER_PCT[name].get(policy, ""),
                "own_end_pct": each.saving_pct(base, own_end=True),
                "slo_met": f"{sum(each.slo_met)} of 5" if each.slo_met else "",
            }
        )
    note = "own end: each job's own GPU is powered until its job is done, not to the common end"
    return Figures(f"{name}, {arrivals}", rows, note)


def _jobs(arrivals: Arrivals, name: str, outcomes: Mapping[str, Outcome]) -> Figures:
    rows = [
        {"policy": policy}
        | {f"p95_ms_{job}": tail for job, tail in enumerate(each.tails_ms, start=1)}
        | {f"high_end_{job}": count for job, count in enumerate(each.high_use, start=1)}
        for policy, each in outcomes.items()
        if each.tails_ms
    ]
    slos = ", ".join(f"{row.slo_ms:g}" for jobs in SETS if jobs.name == name for row in jobs.jobs)
    return Figures(
        f"{name}, {arrivals}: by job", rows, f"SLOs, ms: {slos}; high end: requests served there"
    )


def _document(outcomes: Mapping[str, Outcome], name: str) -> dict[str, Any]:
    base = outcomes["highperf"]
    found: dict[str, Any] = {
        policy: {
            "carbon_gco2e": each.carbon_gco2e,
            "active_gco2e": each.active_gco2e,
            "idle_gco2e": each.idle_gco2e,
            "slo_met": list(each.slo_met),
            "tail_ms": list(each.tails_ms),
            "high_end_requests": list(each.high_use),
            "saving_vs_highperf_pct": each.saving_pct(base),
            "saving_own_end_pct": each.saving_pct(base, own_end=True),
        }
        for policy, each in outcomes.items()
        if policy != "bound"
    }
    bound = outcomes["bound"]
    found["bound"] = {
        "saving_vs_highperf_pct": bound.saving_pct(base),
        "saving_own_end_pct": bound.saving_pct(base, own_end=True),
    }
    found["paper_saving_pct"] = PAPER_PCT[name]["carbondis"]
    return found


def _thresholds(found: Mapping[float, Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "cit": threshold,
            "carbon_gco2e": each.carbon_gco2e,
            "active_gco2e": each.active_gco2e,
            "idle_gco2e": each.idle_gco2e,
            "high_end_requests": sum(each.high_use),
            "late": " ".join(map(str, each.late)),
            "late_sum": sum(each.late),
        }
        for threshold, each in found.items()
    ]


def _parking(pool: Executor) -> list[dict[str, Any]]:
    return [
        {
            "set": jobs.name,
            "low_end_gpus_on": len(fleet.low),
            "high_end_gpus_on": fleet.high,
            "saving_vs_highperf_pct": saving_pct,
        }
        for jobs, (fleet, saving_pct) in zip(SETS, pool.map(parked, SETS), strict=True)
    ]


def _others(pool: Executor) -> list[dict[str, Any]]:
    cases = sensitivities()
    found = iter(solved(pool, [draw for draws in cases.values() for draw in draws]))
    return [_other(name, [next(found) for _ in draws]) for name, draws in cases.items()]


def _other(name: str, draws: Sequence[Mapping[str, Outcome]]) -> dict[str, Any]:
    """Return a row: mean savings, and the SLOs kept in the draw that went worst."""
    saved = {
        policy: fmean(draw[policy].saving_pct(draw["highperf"]) for draw in draws)
        for policy in ("carbondis", "carbon-aware", "bound")
    }
    return {
        "case": name,
        "carbondis_pct": saved["carbondis"],
        "carbondis_slo_met": min(sum(draw["carbondis"].slo_met) for draw in draws),
        "carbon_aware_pct": saved["carbon-aware"],
        "carbon_aware_slo_met": min(sum(draw["carbon-aware"].slo_met) for draw in draws),
        "bound_pct": saved["bound"],
        "of_bound": saved["carbon-aware"] / saved["bound"],
    }


if __name__ == "__main__":
    main("carbondis", measure, quick=partial(measure, quick=True))
