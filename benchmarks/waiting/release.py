"""Requests that can wait: energy and emissions of each way to run them beside interactive ones.

Eight H100 serve an 8-billion-parameter model: its steps by the product's profile, its power as
measured (ML.ENERGY, by batch), 690 W while prompts are computed. Interactive load has the shape of
ServeGen's two weeks with its peak at half of what the objectives allow; GPUs that it does not need
are parked. Waiting work comes in jobs, most in office hours, and is a share of all requests. Hour
by hour, each with the forecast of its time: the planner's own rule (`core.waiting.release`) against

- dedicated: GPUs of its own, first come first served at the best batch, parked while empty
- at once: shared GPUs, first come first served; parked ones are woken for it
- leftover: shared, at once, but only in what runs anyway; woken only for deadlines
- known: arrivals, room and grid known in advance (linear program)
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from benchmarks import _fleets, _grids, _loads
from benchmarks._data import data_file
from benchmarks.harness import Figures, Report, in_processes
from services.carbon.core.forecast.forecaster import forecast
from services.kit.profiles.core.language import CHUNK_TOKENS, FormulaSteps, LanguageProfile
from services.planner.core.waiting.model import Choice, Due, Slot
from services.planner.core.waiting.queue import Backlog
from services.planner.core.waiting.release import at_once, decide

Values = NDArray[np.float64]

ZONES: Final = ("CA-ON", "DE-LU", "GB", "US-CAL-CISO", "US-TEX-ERCO", "PL")
SEASONS: Final = {
    "summer": datetime(2022, 7, 4, tzinfo=UTC),
    "winter": datetime(2022, 11, 21, tzinfo=UTC),
}
SHARES: Final = (0.1, 0.3, 0.5)
WINDOWS_H: Final = (1, 4, 24, 72)
SEEDS: Final = 4

GPUS: Final = 8
PEAK: Final = 0.5
"""Interactive peak, of what the fleet's objectives allow."""

INTERACTIVE_RPS: Final = 8.0
"""Most interactive requests of a GPU within a first token of 1 s and 30 ms between tokens at p99
(`services.simulator`'s server, step by step, Azure's conversations)."""

PROMPT, ANSWER = 1155.0, 211.1
"""Mean tokens of Azure's conversations, which both kinds of requests have."""

TOKEN_S, HEADROOM = 0.030, 0.7
SLOTS: Final = 256
UNEVEN: Final = 0.9
"""Throughput over that of answers of equal length, which leave no slot empty."""

PROMPT_W, IDLE_W, PARKED_W, SINGLE_W = 690.0, 124.0, 74.0, 460.0
WEEK_H, TAIL_H, HISTORY_H, OUTLOOK_H = 168, 72, 112 * 24, 48
HOUR_S: Final = 3600.0


class Replica(NamedTuple):
    """A GPU that serves the model.

    Attributes:
        rates: Interactive load, req/s, from 0.
        watts: Its power at each.
        full_rps, full_w: Filled up with waiting requests.
        alone_rps, alone_w: With nothing but waiting requests.
    """

    rates: Values
    watts: Values
    full_rps: float
    full_w: float
    alone_rps: float
    alone_w: float

    def power_w(self, rate_rps: Any) -> Any:
        """Return the power at a load; above the interactive ones, linear to that of a full GPU."""
        rates, watts = np.r_[self.rates, self.full_rps], np.r_[self.watts, self.full_w]
        return np.interp(rate_rps, rates, watts)


@cache
def replica() -> Replica:
    """Return the replica of the measured power."""
    shape_of = _fleets.gpu_type("h100-80gb")
    whole = max(shape_of.geometry.kinds, key=lambda kind: kind.sm_count)
    steps = LanguageProfile.of(8.0).steps(shape_of.shape(whole))
    if not isinstance(steps, FormulaSteps):
        raise TypeError("the profile of 8 billion parameters is measured")
    sequence_s = steps.sequence_s + steps.context_token_s * (PROMPT + ANSWER / 2)
    prompt_s = PROMPT * steps.prompt_token_s
    batches, watts = _measured_power()

    def at(open_: float) -> tuple[float, float]:
        """Return rate, req/s, and power, W, while so many answers are generated."""
        step_s = steps.fixed_s + sequence_s * open_
        rate = open_ / (ANSWER * step_s + open_ * prompt_s)
        decoding_w = float(np.interp(open_, batches, watts))
        share = rate * prompt_s
        return UNEVEN * rate, share * PROMPT_W + (1 - share) * decoding_w

    states = [at(number) for number in range(1, SLOTS + 1)]
    rates = np.linspace(0.0, INTERACTIVE_RPS, 33)
    limit = (HEADROOM * TOKEN_S - steps.fixed_s - CHUNK_TOKENS * steps.prompt_token_s) / sequence_s
    full, alone = at(limit), states[-1]
    return Replica(rates, np.array([_power_w(rate, states) for rate in rates]), *full, *alone)


def _power_w(rate_rps: float, states: Sequence[tuple[float, float]]) -> float:
    """Return the mean power at a Poisson load: a birth-death process of the open answers."""
    weight, weights, watts = 1.0, [1.0], [IDLE_W]
    for service_rps, power_w in states:
        weight *= rate_rps / service_rps
        weights.append(weight)
        watts.append(power_w)
    return float(np.average(watts, weights=weights))


def _measured_power() -> tuple[list[float], list[float]]:
    """Return batches and the measured power of decoding them, W."""
    with data_file("gpu_power/ml_energy_llm.csv").open() as lines:
        rows = [
            (float(row["avg_batch_size"]), float(row["avg_power_watts"]))
            for row in csv.DictReader(lines)
            if row["model_id"] == "meta-llama/Llama-3.1-8B-Instruct" and row["gpu_model"] == "H100"
        ]
    batches, watts = zip(*sorted(rows), strict=True)
    return [1.0, *batches], [SINGLE_W, *watts]


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid's hours of one season: as they were, and as the product forecast them.

    Attributes:
        actual: gCO2e/kWh, by hour.
        outlook: The forecast of each hour, itself first, shape (hours, OUTLOOK_H).
    """

    actual: Values
    outlook: Values


def grid(zone: str, season: str, hours: int) -> Grid:
    """Return a grid with the product's forecasts."""
    samples = _grids.load(f"lca/{zone}").samples
    first = next(at for at, each in enumerate(samples) if each.since >= SEASONS[season])
    outlook = []
    for at in range(first, first + hours):
        periods = forecast(samples[max(at - HISTORY_H, 0) : at + 1], samples[at].since).periods
        outlook.append([each.intensity_gco2e_per_kwh for each in periods[:OUTLOOK_H]])
    actual = [each.intensity_gco2e_per_kwh for each in samples[first : first + hours]]
    return Grid(np.array(actual), np.array(outlook))


class Case:
    """A week of arrivals on a fleet and a grid, and three days to finish.

    Args:
        known: The grid.
        share: Waiting requests, of all.
        window_h: Hours in which they must be answered.
        seed: Which week of the load, and the arrivals.
    """

    def __init__(self, known: Grid, share: float, window_h: int, seed: int) -> None:
        rng, start = np.random.default_rng(seed), WEEK_H * (seed % 2)
        self.hours, self.window_h, self.gpu = WEEK_H + TAIL_H, window_h, replica()
        part = slice(start, start + self.hours)
        self.actual, self.outlook = known.actual[part], known.outlook[part]
        mean, busiest = (each[part] for each in _interactive())
        self.awake = np.ceil(busiest / (0.9 * INTERACTIVE_RPS))
        self.each = mean / self.awake
        jobs = [
            rng.lognormal(0, 1, rng.poisson(1.43 if 8 <= hour % 24 < 20 else 0.57)).sum()
            for hour in range(WEEK_H)
        ]
        load = mean[:WEEK_H].sum() * share / (1 - share)
        self.arrivals = np.r_[jobs, np.zeros(TAIL_H)] / sum(jobs) * load
        gpu = self.gpu
        self.room = self.awake * (gpu.full_rps - self.each)
        own_w = gpu.power_w(self.each)
        self.room_j = (gpu.full_w - own_w) / (gpu.full_rps - self.each)
        self.woken = (GPUS - self.awake) * gpu.alone_rps
        self.woken_j = (gpu.alone_w - PARKED_W) / gpu.alone_rps

    def run(
        self, rule: Callable[[Backlog, Sequence[Slot]], Choice], pool_rps: float | None = None
    ) -> Course:
        """Decide hour by hour, knowing what a planner knows by then.

        Args:
            rule: Decides.
            pool_rps: GPUs of its own, in place of shared ones, req/s.
        """
        backlog, course = Backlog(()), Course(self)
        for hour in range(self.hours):
            if self.arrivals[hour] > 0:
                due_s = (hour + self.window_h) * HOUR_S
                backlog.add(Due(due_s, self.arrivals[hour] * HOUR_S))
            slots = self._slots(hour)
            if pool_rps is not None:
                slots = [replace(each, room_rps=0.0, woken_rps=pool_rps) for each in slots]
            choice = rule(backlog, slots)
            if choice.rate_rps > 0:
                for due_s, part, at_s in backlog.answer(slots[0], choice.rate_rps):
                    course.late += part * (at_s > due_s + 1e-3)
            course.room[hour], course.woken[hour] = choice.room_rps, choice.woken_rps
        course.late += backlog.requests
        return course

    def _slots(self, hour: int) -> list[Slot]:
        """Return an hour and those after it: room as measured, later as a day before."""
        later = np.arange(hour, min(hour + OUTLOOK_H, self.hours))
        then = later - 24 * (1 + (later - hour - 1) // 24)
        then[then < 0] += 24
        return [
            Slot(
                start_s=at * HOUR_S,
                length_s=HOUR_S,
                intensity_gco2e_per_kwh=float(
                    self.actual[hour] if at == hour else self.outlook[hour][at - hour]
                ),
                room_rps=float(self.room[known]),
                room_j=float(self.room_j[known]),
                woken_rps=float(self.woken[known]),
                replica_rps=self.gpu.alone_rps,
                woken_j=self.woken_j,
            )
            for at, known in zip(later.tolist(), then.tolist(), strict=True)
        ]

    def known(self) -> Course:
        """Return the best course for one who knows arrivals, room and grid."""
        hours, arrived = self.hours, np.cumsum(self.arrivals)
        due = np.r_[np.zeros(self.window_h - 1), arrived[: hours - self.window_h + 1]]
        matrix, hour = lil_matrix((hours, 3 * hours)), np.arange(hours)
        matrix[hour, hour] = matrix[hour, hours + hour] = 1
        matrix[hour, 2 * hours + hour] = -1
        matrix[hour[1:], 2 * hours + hour[:-1]] = 1
        found = linprog(
            np.r_[self.actual * self.room_j, self.actual * self.woken_j, np.zeros(hours)],
            A_eq=matrix.tocsr(),
            b_eq=np.zeros(hours),
            bounds=[
                *((0, each) for each in self.room),
                *((0, each) for each in self.woken),
                *zip(due, arrived, strict=True),
            ],
            method="highs",
        )
        if found.status:
            return self.run(at_once)  # there is too little room: late
        course = Course(self)
        course.room, course.woken = found.x[:hours], found.x[hours : 2 * hours]
        return course


@dataclass(slots=True)
class Course:
    """Rates of each hour.

    Attributes:
        case: The case.
        room, woken: In replicas that run anyway and in woken ones, req/s by hour.
        late: Requests that came too late.
    """

    case: Case
    room: Values
    woken: Values
    late: float = 0.0

    def __init__(self, case: Case) -> None:
        self.case, self.late = case, 0.0
        self.room, self.woken = np.zeros(case.hours), np.zeros(case.hours)

    def figures(self) -> Row:
        """Return its figures: replicas are filled one after the other."""
        case, gpu = self.case, self.case.gpu
        each_room = gpu.full_rps - case.each
        full = np.floor(self.room / each_room + 1e-9)
        rest = np.maximum(self.room - full * each_room, 0.0)
        own_w = gpu.power_w(case.each)
        watts = full * (gpu.full_w - own_w) + gpu.power_w(case.each + rest) - own_w
        watts = watts + self.woken * case.woken_j
        requests = case.arrivals.sum()
        grams = (watts * case.actual).sum() / (1000 * HOUR_S)
        return Row(
            watts.sum() / requests / ANSWER,
            grams / requests / ANSWER,
            self.late / (requests * HOUR_S),
            self.room.sum() / max((self.room + self.woken).sum(), 1e-9),
        )


class Row(NamedTuple):
    """Figures of a course: per output token, its part of the prompt included."""

    j_per_token: float
    g_per_token: float
    late: float
    in_room: float


@cache
def _interactive() -> tuple[Values, Values]:
    """Return mean and busiest ten minutes of each hour of four weeks, req/s."""
    rates = np.array([each.mean_rps for each in _loads.servegen_windows() if each is not None])
    rates = np.tile(rates.reshape(-1, 6), (2, 1)) / rates.max() * PEAK * GPUS * INTERACTIVE_RPS
    return rates.mean(1), rates.max(1)


def _leftover(backlog: Backlog, slots: Sequence[Slot]) -> Choice:
    """Fill what runs anyway at once; wake for deadlines only."""
    return decide(backlog, [replace(each, intensity_gco2e_per_kwh=None) for each in slots])


POLICIES: Final[dict[str, Callable[[Case], Course]]] = {
    "dedicated": lambda case: case.run(at_once, _pool(case) * case.gpu.alone_rps),
    "at_once": lambda case: case.run(at_once),
    "leftover": lambda case: case.run(_leftover),
    "planned": lambda case: case.run(decide),
    "known": lambda case: case.known(),
}


def _pool(case: Case) -> float:
    """Return the GPUs of a pool that keeps the windows."""
    hours = min(case.window_h, 24)
    busiest = float(np.convolve(case.arrivals, np.ones(hours)).max()) / hours
    return max(1.0, float(math.ceil(busiest / case.gpu.alone_rps)))


class Job(NamedTuple):
    """Cases of one grid."""

    zone: str
    season: str
    shares: tuple[float, ...]
    windows_h: tuple[int, ...]
    seeds: int


Found = dict[tuple[float, int, str], list[Row]]


def run(job: Job) -> Found:
    """Run all cases of a grid."""
    weeks = min(job.seeds, 2)
    known, found = grid(job.zone, job.season, weeks * WEEK_H + TAIL_H), defaultdict(list)
    for share, window_h, seed in product(job.shares, job.windows_h, range(job.seeds)):
        case = Case(known, share, window_h, seed)
        for name, policy in POLICIES.items():
            found[share, window_h, name].append(policy(case).figures())
    return dict(found)


def measure(*, quick: bool = False) -> Report:
    """Run all grids, and set the rule beside the others."""
    seasons = ("summer",) if quick else tuple(SEASONS)
    zones = ("GB", "PL") if quick else ZONES
    shares = (0.3,) if quick else SHARES
    windows_h = (4, 24) if quick else WINDOWS_H
    seeds = 1 if quick else SEEDS
    jobs = [Job(zone, each, shares, windows_h, seeds) for zone, each in product(zones, seasons)]
    found = in_processes(run, jobs)
    rows = list(_compared(found))
    by_grid = list(_by_grid(found))
    document = {"waiting": [row for job in jobs for row in _document(job, found[job])]}
    note = "ratios of emissions, means of all grids, seasons and seeds; late: worst case, per cent"
    return Report(
        (
            Figures("waiting work: share of all requests, hours to answer them", rows, note),
            Figures("by grid: 30 % of all requests, 24 h", by_grid),
        ),
        document,
    )


def _compared(found: dict[Job, Found]) -> Iterator[dict[str, Any]]:
    for share, window_h in sorted({key[:2] for each in found.values() for key in each}):
        rows = {
            name: [row for each in found.values() for row in each[share, window_h, name]]
            for name in POLICIES
        }
        grams = {name: np.array([row.g_per_token for row in rows[name]]) for name in rows}
        planned, gained = rows["planned"], grams["at_once"].sum() - grams["known"].sum()
        yield {
            "share": share,
            "window_h": window_h,
            "J_per_token": fmean(row.j_per_token for row in planned),
            "J/dedicated": fmean(row.j_per_token for row in planned)
            / fmean(row.j_per_token for row in rows["dedicated"]),
            **{
                f"g/{name}": float((grams["planned"] / grams[name]).mean())
                for name in ("dedicated", "at_once", "leftover", "known")
            },
            "worst g/leftover": float((grams["planned"] / grams["leftover"]).max()),
            "way to known": (grams["at_once"].sum() - grams["planned"].sum()) / max(gained, 1e-12),
            "in_room_pct": 100 * fmean(row.in_room for row in planned),
            "late_pct": 100 * max(row.late for row in planned),
        }


def lever(*, quick: bool = False) -> Figures:
    """Return what sharing and waiting save of the emissions of a pool of its own, by grid, %."""
    zones, seasons = (("GB",), ("summer",)) if quick else (ZONES, tuple(SEASONS))
    size = (0.3,), (24,), 1 if quick else SEEDS
    jobs = [Job(zone, season, *size) for zone, season in product(zones, seasons)]
    rows = [
        {
            "grid": each["grid"],
            "sharing": 100 * (1 - each["at_once g/Mtoken"] / each["dedicated g/Mtoken"]),
            "waiting": 100
            * (each["at_once g/Mtoken"] - each["planned g/Mtoken"])
            / each["dedicated g/Mtoken"],
        }
        for each in _by_grid(in_processes(run, jobs))
    ]
    note = "% of the emissions of GPUs of their own, at their best batch, at once"
    return Figures("Requests that can wait: 30 % of all, within 24 h", rows, note)


def _by_grid(found: dict[Job, Found]) -> Iterator[dict[str, Any]]:
    for job, each in found.items():
        mean = {name: fmean(row.g_per_token for row in each[0.3, 24, name]) for name in POLICIES}
        yield {
            "grid": f"{job.zone} {job.season}",
            **{f"{name} g/Mtoken": 1e6 * value for name, value in mean.items()},
            "planned/dedicated": mean["planned"] / mean["dedicated"],
            "planned/leftover": mean["planned"] / mean["leftover"],
        }


def _document(job: Job, found: Found) -> Iterator[dict[str, Any]]:
    for (share, window_h, policy), rows in found.items():
        yield {
            "grid": f"{job.zone} {job.season}",
            "share": share,
            "window_h": window_h,
            "policy": policy,
            "j_per_token": fmean(row.j_per_token for row in rows),
            "g_per_token": fmean(row.g_per_token for row in rows),
            "interactive_p99_ratio": None,  # a fluid model knows no percentile
            "late": max(row.late for row in rows),
        }
