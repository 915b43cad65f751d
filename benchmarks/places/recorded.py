"""One service in several regions: carbon saved by sending demand to cleaner grids, by policy.

A folder (or several) has carbon_intensity/lca*/ZONE.csv (hourly) and
requests/servegen_m-large_rate_10min.csv, as `cinquefoil data fetch` lays them. Every region has the
same demand in its own local time (noise of 4 % in 5 s) and 1.5 times its peak as capacity. It
decides each 5 s on old news, by the planner's own rule (`services.planner.core.regions`):

- home: nothing leaves;
- latency first: the nearest region with room, which is home as long as home has room;
- always cleanest: the cleanest region that looked free;
- even split: the same part to every region in reach;
- cinquefoil: wishes and grants;
- optimum: a linear program that knows everything at once and needs no headroom.

Work above a region's capacity missed its objective; its carbon counts at the regions' mean, and it
counts against attainment. Power is a straight line in the work of packed GPUs (H100 with an 8B
model, ML.ENERGY: 70 W parked, 621 W more per GPU of work; 31 J a request).
"""

import csv
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from benchmarks._round_trips import UTC_OFFSET_H, round_trip_s
from benchmarks.harness import Figures, Report, Skipped, in_processes
from services.planner.core.regions.grants import VALID_S, Granter, GrantsHeld
from services.planner.core.regions.offers import Limits, Offer, worth_sending_to
from services.planner.core.regions.shares import Wish, shares

Array = NDArray[np.float64]

STEP_S: Final = 5
STEPS_H: Final = 3600 // STEP_S
CAPACITY: Final = 1.5
NOISE: Final = 0.04
IDLE_W, WORK_W = 70.0, 621.0
REQUEST_J: Final = 31.0
LATE_S: Final = (5, 15, 30)
DAYS: Final = (15, 105, 196, 287)

SETS: Final[dict[str, tuple[tuple[str, ...], float]]] = {
    "US4": (("US-CAL-CISO", "US-TEX-ERCO", "US-MIDA-PJM", "US-NY-NYIS"), 0.1),
    "NA5": (("US-CAL-CISO", "US-TEX-ERCO", "US-MIDA-PJM", "US-NY-NYIS", "CA-ON"), 0.1),
    "EU4": (("GB", "DE-LU", "PL", "SE-SE4"), 0.1),
    "EU5": (("GB", "DE-LU", "SE-SE4", "FR", "ES"), 0.1),
    "World5": (("US-CAL-CISO", "US-MIDA-PJM", "GB", "DE-LU", "AU-NSW"), 0.2),
    "APAC4": (("AU-NSW", "JP-TK", "IN-WE", "SG"), 0.2),
    "GB+DE, data of DE in the EU": (("GB", "DE-LU"), 0.1),
}
"""By name: zones, and the longest round trip allowed, s."""
BOUND: Final = {"GB+DE, data of DE in the EU": {"DE-LU": ("DE-LU",)}}
"""By set and zone: where its data may be."""


@dataclass(frozen=True, slots=True)
class Job:
    """One set on some days of a year. Attributes: late_s (age of news), hours of each day."""

    name: str
    folders: tuple[Path, ...]
    year: int
    days: tuple[int, ...]
    late_s: int
    hours: int = 24

    def __str__(self) -> str:
        return f"{self.name} {self.year}, news {self.late_s} s late"


@dataclass(frozen=True, slots=True)
class World:
    """A day in some regions, in steps of 5 s.

    Attributes:
        zones: The regions.
        intensity: Shape (steps, regions), gCO2e/kWh.
        demand: Shape (steps, regions), GPUs of work.
        reach: Shape (from, to): whether requests may go there.
        round_trip_s: Shape (from, to), s.
        limits: By region.
    """

    zones: tuple[str, ...]
    intensity: Array
    demand: Array
    reach: NDArray[np.bool_]
    round_trip_s: Array
    limits: tuple[Limits, ...]


def load(job: Job, day: int) -> World:
    """Return one day of a set.

    Raises:
        Skipped: A zone's record is not in the folders.
    """
    zones, budget_s = SETS[job.name]
    hours = np.arange(job.hours * STEPS_H) / STEPS_H + 24 * day
    records = [_intensity(job.folders, zone, job.year) for zone in zones]
    intensity = np.array([record[hours.astype(int) % len(record)] for record in records]).T
    windows = _demand(job.folders)
    knots = np.arange(len(windows))
    local = [(hours + UTC_OFFSET_H[zone]) * 6 % len(windows) for zone in zones]
    mean = np.array([np.interp(each, knots, windows) for each in local]).T
    demand = np.minimum(mean * (1 + _noise(mean.shape, seed=day)), CAPACITY)
    trips = np.array([[round_trip_s(here, there) for there in zones] for here in zones])
    bound = BOUND.get(job.name, {})
    limits = tuple(Limits(bound.get(zone, ("*",)), budget_s) for zone in zones)
    allowed = np.array([[limit.permit(there) for there in zones] for limit in limits])
    return World(zones, intensity, demand, (trips <= budget_s) & allowed, trips, limits)


@cache
def _intensity(folders: tuple[Path, ...], zone: str, year: int) -> Array:
    for folder in folders:
        for path in sorted((folder / "carbon_intensity").glob(f"lca*/{zone}.csv")):
            with path.open() as file:
                rows = [row for row in csv.DictReader(file) if row["timestamp"][:4] == str(year)]
            if len(rows) > 8_000:
                return np.array([float(row["carbon_intensity_gco2_per_kwh"]) for row in rows])
    raise Skipped(f"no record of {zone} in {year}")


@cache
def _demand(folders: tuple[Path, ...]) -> Array:
    """Return two weeks of demand in windows of 10 min; 1 is the highest hour."""
    name = "requests/servegen_m-large_rate_10min.csv"
    path = next((folder / name for folder in folders if (folder / name).exists()), None)
    if path is None:
        raise Skipped(f"no {name}")
    with path.open() as file:
        rates = np.array([float(row["total_rps"]) for row in csv.DictReader(file)])
    whole = np.roll(rates[: len(rates) // 6 * 6], -24)  # the least at 4:30 of local time
    scaled: Array = whole / whole.reshape(-1, 6).mean(1).max()
    return scaled


def _noise(shape: tuple[int, ...], seed: int) -> Array:
    draws = np.random.default_rng(seed).normal(size=shape) * NOISE
    noise = np.zeros(shape)
    for step in range(1, shape[0]):
        noise[step] = 0.85 * noise[step - 1] + (1 - 0.85**2) ** 0.5 * draws[step]
    return noise


# ---- policies: work sent, shape (steps, from, to) ---------------------------------------------


def home(world: World, _late_s: int) -> Array:
    """Keep everything at home."""
    sent: Array = world.demand[:, :, None] * np.eye(len(world.zones))
    return sent


def even_split(world: World, _late_s: int) -> Array:
    """Send the same part to every region in reach."""
    parts: Array = world.reach / world.reach.sum(1, keepdims=True)
    sent: Array = world.demand[:, :, None] * parts
    return sent


def latency_first(world: World, late_s: int) -> Array:
    """Fill the nearest region that looked free."""
    return _taking(
        world, late_s, np.broadcast_to(world.round_trip_s, (len(world.demand), *world.reach.shape))
    )


def always_cleanest(world: World, late_s: int) -> Array:
    """Fill the cleanest region that looked free."""
    return _taking(world, late_s, np.repeat(world.intensity[:, None, :], len(world.zones), 1))


def _taking(world: World, late_s: int, cost: Array) -> Array:
    """Take what looked free `late_s` ago, the least cost first; the rest stays home."""
    count, lag = len(world.zones), late_s // STEP_S
    sent = home(world, late_s)
    for step in range(1, len(sent)):
        before = sent[max(0, step - lag)].sum(0)
        for here in range(count):
            left, row = world.demand[step, here], np.zeros(count)
            for there in np.argsort(cost[step, here], kind="stable"):
                if there == here or left <= 0:
                    break
                if world.reach[here, there]:
                    free = sent[step - 1, here, there] + CAPACITY - before[there]
                    row[there] = min(left, max(0.0, free))
                    left -= row[there]
            row[here] += left
            sent[step, here] = row
    return sent


@dataclass(frozen=True, slots=True)
class Cut:
    """A region that is unreachable for a while, in steps."""

    region: int
    first: int
    last: int

    def severs(self, step: int, here: int, there: int) -> bool:
        """Return whether nothing passes between two regions."""
        return self.first <= step < self.last and self.region in {here, there}


def cinquefoil(world: World, late_s: int, cut: Cut | None = None) -> Array:
    """Exchange wishes and grants: each arrives `late_s` after it was sent."""
    regions = [Region(world, here) for here in range(len(world.zones))]
    lag = max(1, late_s // STEP_S)
    wished: deque[list[dict[str, Wish]]] = deque(maxlen=lag)
    answers: deque[list[tuple[int, int, float]]] = deque(maxlen=lag)
    sent = np.zeros((len(world.demand), len(regions), len(regions)))
    for step in range(len(sent)):
        open_pairs = [
            (here, there)
            for here, there in product(range(len(regions)), repeat=2)
            if not (cut and cut.severs(step, here, there))
        ]
        granted = [
            (here, there, regions[there].grant(here, step, wish))
            for here, there in open_pairs
            if len(wished) == lag and (wish := wished[0][here].get(world.zones[there]))
        ]
        if len(answers) == lag:
            for here, there, rate in answers[0]:
                regions[here].held.hold(
                    world.zones[there], rate, valid_s=VALID_S, since_s=step * STEP_S
                )
        answers.append(granted)
        for here, there in set(product(range(len(regions)), repeat=2)).difference(open_pairs):
            regions[here].held.drop(world.zones[there])
        wished.append([region.send(step, sent[step]) for region in regions])
    return sent


@dataclass(slots=True)
class Region:
    """One region of a world: what it grants, and what it got."""

    world: World
    here: int
    granter: Granter = field(default_factory=Granter)
    held: GrantsHeld = field(default_factory=GrantsHeld)

    def grant(self, sender: int, step: int, wish: Wish) -> float:
        """Grant what its own demand leaves."""
        return self.granter.grant(
            self.world.zones[sender],
            wish,
            capacity_rps=CAPACITY,
            own_rps=float(self.world.demand[step, self.here]),
            now_s=float(step * STEP_S),
        )

    def send(self, step: int, sent: Array) -> dict[str, Wish]:
        """Divide its demand into its row of `sent`; return its wishes."""
        world, here = self.world, self.here
        offers = [
            Offer(name, REQUEST_J, float(intensity), float(trip))
            for name, intensity, trip in zip(
                world.zones, world.intensity[step], world.round_trip_s[here], strict=True
            )
        ]
        own = offers.pop(here)
        order = worth_sending_to(own, offers, world.limits[here], (REQUEST_J, REQUEST_J))
        granted = self.held.in_force(step * STEP_S)
        found = shares(float(world.demand[step, here]), own, order, granted)
        sent[here, here] = found.home_rps
        for name, rate in found.sent_rps.items():
            sent[here, world.zones.index(name)] = rate
        return dict(found.wishes)


def optimum(world: World, _late_s: int) -> Array:
    """Solve each hour's linear program: the least carbon of all that capacity and reach permit."""
    count = len(world.zones)
    sent = np.zeros((len(world.demand), count, count))
    for first in range(0, len(sent), STEPS_H):
        demand = world.demand[first : first + STEPS_H]
        steps = len(demand)
        cost = np.repeat(world.intensity[first : first + steps, None, :], count, 1).ravel()
        every = sparse.eye(steps * count)
        leaving = sparse.kron(every, np.ones((1, count)), "csr")
        arriving = sparse.kron(
            sparse.eye(steps), np.tile(np.eye(count), count).reshape(count, -1), "csr"
        )
        upper = np.where(np.tile(world.reach.ravel(), steps), CAPACITY, 0.0)
        solved = linprog(
            cost,
            arriving,
            np.full(steps * count, CAPACITY),
            leaving,
            demand.ravel(),
            np.column_stack([np.zeros_like(upper), upper]),
            method="highs",
        )
        sent[first : first + steps] = solved.x.reshape(steps, count, count)
    return sent


POLICIES: Final = {
    "home": home,
    "latency first": latency_first,
    "even split": even_split,
    "always cleanest": always_cleanest,
    "cinquefoil": cinquefoil,
    "optimum": optimum,
}


# ---- figures -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Course:
    """Sums of a policy on some days. Attributes: carbon and work in the units of the world."""

    moving: float
    idle: float
    demand: float
    above: float
    forwarded: float
    turns: float
    worst: float


def measured(world: World, sent: Array) -> Course:
    """Add up what a policy emitted, and what it put where no room was."""
    load = sent.sum(1)
    above = np.maximum(0.0, load - CAPACITY)
    counted = (load - above) * world.intensity
    moving = counted.sum() + (above.sum(1) * world.intensity.mean(1)).sum()
    away = sent.sum() - np.trace(sent, axis1=1, axis2=2).sum()
    parts = sent / world.demand[:, :, None]
    back = np.abs(parts[2:] - parts[1:-1]) + np.abs(parts[1:-1] - parts[:-2])
    back -= np.abs(parts[2:] - parts[:-2])
    return Course(
        moving=float(moving),
        idle=float(world.intensity.sum() * CAPACITY),
        demand=float(world.demand.sum()),
        above=float(above.sum()),
        forwarded=float(away),
        turns=float(back.sum() / 4 / world.demand.size),
        worst=float((load / CAPACITY).max()),
    )


def run(job: Job) -> list[dict[str, Any]]:
    """Run every policy on a set's days; none where a record is missing."""
    courses: dict[str, list[Course]] = {name: [] for name in POLICIES}
    failures = []
    for day in job.days:
        try:
            world = load(job, day)
        except Skipped:
            return []
        for name, policy in POLICIES.items():
            sent = policy(world, job.late_s)
            courses[name].append(measured(world, sent))
            if name == "cinquefoil":
                failures.append(_cut_off(world, job.late_s, sent))
    kept, best = (_sum(courses[name], "moving") for name in ("home", "optimum"))
    rows = [_row(job, name, found, kept, kept - best) for name, found in courses.items()]
    return [*rows, {"set": job.name, "late_s": job.late_s, "cut_above_%": max(failures)}]


def _cut_off(world: World, late_s: int, sent: Array) -> float:
    """Cut off the largest receiver for its busiest hour; return work above capacity in it, %."""
    foreign = sent.sum(1) - np.diagonal(sent, axis1=1, axis2=2)
    region = int(foreign.sum(0).argmax())
    hours = foreign[:, region].reshape(-1, min(STEPS_H, len(foreign))).sum(1)
    first = int(hours.argmax()) * STEPS_H
    last = min(first + STEPS_H, len(foreign))
    load = cinquefoil(world, late_s, Cut(region, first, last))[first:last].sum(1)
    return float(np.maximum(0, load - CAPACITY).sum() / world.demand[first:last].sum() * 100)


def _sum(courses: list[Course], name: str) -> float:
    return float(sum(getattr(course, name) for course in courses))


def _row(job: Job, policy: str, found: list[Course], kept: float, best: float) -> dict[str, Any]:
    demand = _sum(found, "demand")
    grams = WORK_W * _sum(found, "moving") + IDLE_W * _sum(found, "idle")
    per_request = grams / 3.6e6 / (demand * (IDLE_W + WORK_W) / REQUEST_J)
    whole = WORK_W * kept + IDLE_W * _sum(found, "idle")
    saved = kept - _sum(found, "moving")
    return {
        "set": job.name,
        "late_s": job.late_s,
        "policy": policy,
        "g_per_request": per_request,
        "saved_%": 100 * WORK_W * saved / whole,
        "of_optimum": saved / best if best > 1e-3 * kept else None,
        "attainment": 1 - _sum(found, "above") / demand,
        "above_%": 100 * _sum(found, "above") / demand,
        "worst_load": max(course.worst for course in found),
        "forwarded": _sum(found, "forwarded") / demand,
        "turns_%": None if policy == "optimum" else 100 * _sum(found, "turns") / len(found),
    }


def measure(jobs: list[Job]) -> Report:
    """Run every set, and print what came of each policy."""
    found = in_processes(run, jobs)
    rows = [row for job in jobs for row in found[job]]
    if not rows:
        raise Skipped("no set has all its records in the folders")
    places = [row for row in rows if "policy" in row]
    cuts = [row for row in rows if "policy" not in row]
    about = f"{jobs[0].year}, days {', '.join(map(str, jobs[0].days))}, {jobs[0].hours} h each"
    note = "above_%: work on full regions; turns_%: of demand moved and moved back, per step"
    return Report(
        [Figures(f"Places, {about}", places, note), Figures("The largest receiver cut off", cuts)],
        {"places": places, "cuts": cuts, "year": jobs[0].year, "days": jobs[0].days},
    )
