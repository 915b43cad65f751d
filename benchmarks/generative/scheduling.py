"""Speculative shortest job first against first come, first served, and others, in virtual time.

An answer takes 0.1 s and 0.02 s per token; lengths and predictions are those of real answers, drawn
at random. SSJF is the router's own dispatcher, learning boosts from nothing; the others are a heap.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from rich.console import Console
from rich.progress import Progress
from scipy.optimize import brentq

from benchmarks.generative.serving import Jobs, Seconds, ranked, routed
from benchmarks.generative.traces import Trace, artifact, imitated, ours, perfect, recorded, sampled
from benchmarks.harness import Figures, Report, Row

LOADS = (0.5, 0.7, 0.9, 0.95)
SLOTS = (1, 2, 4, 8)
JOBS = 20_000
SEEDS, FEW_SEEDS = 10, 4
"""Streams: of mu-Serve's own predictions and Poisson arrivals, and of everything else."""

SLO_S = 20.0
OVERTAKING_S = 10 * SLO_S
"""Default of the router's overtaking bound for an objective of `SLO_S`, s."""

BURSTY = 3.0
"""Deviation of the gaps between bursty arrivals, over their mean; Poisson: 1."""

PEAK_ANSWERS = 100
"""Answers that could be served, one after the other, in a peak. Peaks begin and end idle."""

AGING = 10.0
"""Of shortest job first with aging: a second of waiting makes up for 1/10 s of service."""

TRUE_THETA = 0.6
"""Theta over gamma of the boosts by true lengths: with 1 the tail is lighter, the mean larger."""

_FCFS = "FCFS"
_SSJF = "SSJF (router)"

Arrivals = Literal["Poisson", "bursty", "peaks", "recorded"]

_UNSTEADY: Sequence[tuple[float, Arrivals]] = ((0.7, "bursty"), (0.92, "peaks"))


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of one comparison.

    Attributes:
        trace: The answers.
        load: Mean work that comes in over what can be done, 0..1.
        arrivals: "Poisson"; "bursty": with gaps as `BURSTY` says; "peaks": Poisson in peaks of
            `PEAK_ANSWERS`, the load is that of the peaks; "recorded": the trace's own, as fast as
            the load requires.
        slots: Answers at a time; each as fast as if it was alone.
        others: Compare with other orders, too.
        seeds: Streams of `JOBS` jobs.
    """

    trace: Trace
    load: float
    arrivals: Arrivals = "Poisson"
    slots: int = 1
    others: bool = False
    seeds: int = FEW_SEEDS


def measure(*, quick: bool = False) -> Report:
    """Compare; quick: mu-Serve's predictions and Poisson arrivals only, and fewer streams.

    Raises:
        Skipped: The data is not there.
    """
    settings = _settings(quick=quick)
    with (
        ProcessPoolExecutor(os.cpu_count()) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        done = progress.track(pool.map(rows_of, settings), len(settings), description="orders")
        rows = [row for found in done for row in found]
    headline: dict[str, dict[str, Row]] = {}
    for row in rows:
        if (row["order"], row["arrivals"]) == (_SSJF, "Poisson") and (
            (row["answers"], row["predicted_by"])
            == (settings[0].trace.answers, settings[0].trace.predicted_by)
        ):
            figures = ("streams", "mean_cut_pct", "p99_ratio", "p999_ratio", "max_ratio")
            by_load = headline.setdefault(f"slots_{row['slots']}", {})
            by_load[f"rho_{row['load']:g}"] = {key: row[key] for key in figures}
    note = (
        f"Streams of {JOBS} jobs; statistics of each, then their means, over FCFS's. Bursty: gaps"
        f" deviate by {BURSTY:g} times their mean; peaks: of {PEAK_ANSWERS} answers' time, from"
        f" idle. No request is overtaken by one that arrived more than"
        f" {OVERTAKING_S:g} s later."
    )
    table = Figures("Time in the system against first come, first served", rows, note)
    return Report([table], {"ssjf": headline, "scheduling": [dict(row) for row in rows]})


def _settings(*, quick: bool) -> list[Setting]:
    theirs = artifact()
    seeds = FEW_SEEDS if quick else SEEDS
    steady = [
        Setting(theirs, load, slots=slots, others=slots == 1, seeds=seeds)
        for slots in SLOTS
        for load in LOADS
    ]
    if quick:
        return steady
    compared = ours()
    ideal = [each for trace in compared for each in (imitated(trace, theirs), perfect(trace))]
    return [
        *steady,
        *(Setting(theirs, *each, others=True) for each in _UNSTEADY),
        *(
            Setting(trace, load, "recorded", slots)
            for trace in recorded(theirs)
            for slots in SLOTS
            for load in LOADS
        ),
        *(Setting(trace, load) for trace in compared for load in LOADS),
        *(Setting(trace, *each) for trace in compared for each in _UNSTEADY),
        *(Setting(trace, 0.9) for trace in (*ideal, *sampled(), imitated(theirs, theirs))),
    ]


def rows_of(setting: Setting) -> list[Row]:
    """Return a row for each order."""
    found: dict[str, list[Sequence[float]]] = {}
    for seed in range(setting.seeds):
        jobs, true = stream(setting, seed)
        for order, times_s in _orders(setting, jobs, true).items():
            found.setdefault(order, []).append(_statistics(jobs, times_s))
    means = {order: np.mean(statistics, axis=0) for order, statistics in found.items()}
    first = means[_FCFS]
    return [
        {
            "answers": setting.trace.answers,
            "predicted_by": setting.trace.predicted_by,
            "slots": setting.slots,
            "arrivals": setting.arrivals,
            "load": setting.load,
            "streams": setting.seeds,
            "order": order,
            "mean_s": float(mean[0]),
            "mean_cut_pct": 100 * float(1 - mean[0] / first[0]),
            "p99_ratio": float(mean[1] / first[1]),
            "p999_ratio": float(mean[2] / first[2]),
            "max_ratio": float(mean[3] / first[3]),
            "throughput_ratio": float(mean[4] / first[4]),
        }
        for order, mean in means.items()
    ]


def stream(setting: Setting, seed: int) -> tuple[Jobs, Jobs]:
    """Return jobs with the predicted classes, and the same with their true ones."""
    rng = np.random.default_rng(seed)
    trace = setting.trace
    drawn = rng.integers(0, len(trace.services_s), JOBS)
    service_s = trace.services_s.mean() / setting.slots
    shape = BURSTY**-2 if setting.arrivals == "bursty" else 1.0
    arrivals_s = np.cumsum(rng.gamma(shape, service_s / setting.load / shape, JOBS))
    if setting.arrivals == "recorded":
        gaps = np.resize(np.roll(trace.gaps_s, rng.integers(len(trace.gaps_s))), JOBS)
        arrivals_s = np.cumsum(gaps / gaps.mean() * service_s / setting.load)
    if setting.arrivals == "peaks":
        peak_s = PEAK_ANSWERS * service_s
        arrivals_s += 2 * peak_s * np.floor(arrivals_s / peak_s)
    predicted = Jobs(arrivals_s, trace.services_s[drawn], trace.predicted[drawn])
    return predicted, replace(predicted, classes=trace.true[drawn])


def _orders(setting: Setting, jobs: Jobs, true: Jobs) -> Mapping[str, Seconds]:
    """Return times in the system by order."""
    slots = setting.slots
    found = {
        _FCFS: ranked(jobs, slots, jobs.arrivals_s),
        _SSJF: routed(jobs, slots, OVERTAKING_S),
    }
    if setting.others:
        found |= {
            "SSJF (router), true classes": routed(true, slots, OVERTAKING_S),
            "boosts by true lengths": ranked(jobs, slots, jobs.arrivals_s - _boosts_s(jobs)),
            "SJF, no bound": ranked(jobs, slots, jobs.classes * 1e9 + jobs.arrivals_s),
            "SJF with aging": ranked(jobs, slots, jobs.arrivals_s + AGING * _means_s(jobs)),
        }
    return found


def _statistics(jobs: Jobs, times_s: Seconds) -> Sequence[float]:
    span_s = float((jobs.arrivals_s + times_s).max())
    p99_s, p999_s = np.percentile(times_s, (99, 99.9))
    return (float(times_s.mean()), p99_s, p999_s, float(times_s.max()), len(times_s) / span_s)


def _means_s(jobs: Jobs) -> Seconds:
    """Return for each job the mean service time of its class, s."""
    sums = np.bincount(jobs.classes, jobs.services_s)
    return (sums / np.maximum(np.bincount(jobs.classes), 1))[jobs.classes]


def _boosts_s(jobs: Jobs) -> Seconds:
    """Return the boosts of gamma-Boost for known lengths, one server, s.

    Source: Yu, Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1", 2024.
    """
    services_s = jobs.services_s
    rate_rps = len(services_s) / jobs.arrivals_s[-1]

    def excess(gamma: float) -> float:
        return float(rate_rps * np.mean(np.expm1(gamma * services_s)) - gamma)

    high = 1e-3
    while excess(high) < 0:
        high *= 1.5
    theta = TRUE_THETA * float(brentq(excess, 1e-9, high))
    boosts_s: Seconds = -np.log(-np.expm1(-theta * services_s)) / theta
    return boosts_s
