"""The work, cut into pieces that can run side by side."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.clover import day
from benchmarks.clover.applications import TITLES
from benchmarks.clover.day import STRATEGIES, Hour
from benchmarks.clover.searching import SEARCHERS, Searched
from benchmarks.clover.setting import GPUS, HOURS, TRACES, Setting

COARSE_STEP, QUICK_STEP = 6, 12
"""Hours between plans, beside the headline's hourly ones; and with --quick everywhere."""

PAPERS_LOAD = 0.2
"""BASE's load per GPU in the artifact's comparison, over CLOVER's."""

LAMBDAS = tuple(step / 10 for step in range(1, 10))
LOSSES = (0.002, 0.004, 0.006, 0.008)
FLEETS = (10, 4, 2)
FIXED_GCO2E_PER_KWH = 100.0
"""Carbon intensity of Fig. 14."""

COMPARED = ("base", "co2opt", "random", "annealing", "exact", "oracle")

Section = Literal["day", "lambda", "threshold", "gpus", "papers", "live"]


@dataclass(frozen=True, slots=True)
class Job:
    """One strategy in one setting. Attributes: hours: of the trace; empty: Fig. 14's intensity."""

    section: Section
    setting: Setting
    strategy: str
    hours: tuple[int, ...] = ()


Results = dict[Job, list[Hour] | Searched]


def result(job: Job) -> list[Hour] | Searched:
    """Return what a job finds."""
    if job.section == "live":
        return SEARCHERS[job.strategy](job.setting)
    if not job.hours:
        return day.plan(job.setting, job.strategy, [(0, FIXED_GCO2E_PER_KWH)])
    return day.run(job.setting, job.strategy, job.hours)


def jobs(*, quick: bool) -> list[Job]:
    """Return all jobs, the longest first."""
    coarse = tuple(range(0, HOURS, QUICK_STEP if quick else COARSE_STEP))
    hours = coarse if quick else tuple(range(HOURS))
    found = []
    for name in ("efficientnet",) if quick else TITLES:
        found += [*_days(name, hours, coarse, quick=quick), *_sweeps(name, coarse, quick=quick)]
    return sorted(found, key=lambda job: -len(job.hours) * job.strategy.startswith("a"))


def _days(
    name: str, hours: tuple[int, ...], coarse: tuple[int, ...], *, quick: bool
) -> Iterator[Job]:
    settings = [Setting(name, carbon_weight=weight) for weight in (0.5, 0.1)]
    for setting in settings:
        for strategy in STRATEGIES:
            yield Job("day", setting, strategy, hours)
        for strategy in SEARCHERS:
            if not quick or strategy == "exact":
                yield Job("live", setting, strategy)
    papers = [replace(setting, base_p95=True) for setting in settings]
    for setting in papers[:1] if quick else papers:
        for strategy in STRATEGIES:
            yield Job("day", setting, strategy, coarse)
    parked = [Setting(name, carbon_weight=weight, park=True) for weight in (0.5, 0.1)]
    elsewhere = [Setting(name, trace=trace) for trace in TRACES][1:]
    for setting in parked[:1] if quick else parked + elsewhere:
        for strategy in STRATEGIES:
            yield Job("day", setting, strategy, coarse)


def _sweeps(name: str, coarse: tuple[int, ...], *, quick: bool) -> Iterator[Job]:
    for weight in LAMBDAS[:: 4 if quick else 1]:
        for strategy in COMPARED:
            yield Job("lambda", Setting(name, carbon_weight=weight), strategy)
    for loss in LOSSES[:: 3 if quick else 1]:
        for strategy in COMPARED:
            setting = Setting(name, carbon_weight=1.0, accuracy_floor=1.0 - loss)
            yield Job("threshold", setting, strategy, coarse)
    for gpus in FLEETS:
        for strategy in ("base", "annealing", "exact"):
            yield Job("gpus", Setting(name, gpus=gpus), strategy)
    yield Job("papers", Setting(name, load=PAPERS_LOAD, gpus=GPUS), "base", coarse)
