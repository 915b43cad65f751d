"""Carbon saved on one fleet of two zones, by lever: a held-out year of two grids at a time.

python -m benchmarks.levers [--grids FOLDER] [--json FILE] [--quick]

FOLDER has hourly records, a CSV file per zone (a time and gCO2e/kWh in each row); else those of
`cinquefoil data fetch carbon_intensity` that nothing here was tuned on. The fleet has H100s in both
zones and serves vision and language, with the loads of Twitter and ServeGen; every day a GPU is
away for three hours and an hour has a third more load. Each hour the planner's own parts decide:
the price of accuracy from the hours seen so far (`services.planner.core.accuracy_mean`), then
`exact`. A plan stays while no intensity, load or price has moved by 5 %.

- base (a): the largest variants on whole GPUs, all of them in use, evenly loaded;
- autoscaler (c): the largest variants on as few whole GPUs as the load needs, at the lowest clocks
  that keep the objectives, blind to the grid;
- blind (b): the best standing choice at the same promise: it knows the zones' means alone;
- hours: follows the hours, as if both zones had one shape;
- cinquefoil: follows the hours of both zones;
- best variants: the same with the largest variants alone, for comparison with the autoscaler.

Savings are split as in `services.planner.core.accounting.levers`: what the blind choice saves by
place, variant, slice, clocks and consolidation, then what following adds in time, and in place.
Requests that can wait are a lever of their own, with the rule of `benchmarks.waiting`: what sharing
replicas with interactive ones saves, and then waiting for clean hours.
Attainment is by the planner's queueing model; requests are simulated in `benchmarks.regions`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from benchmarks import _fleets as fleets
from benchmarks import _loads
from benchmarks._data import data_file
from benchmarks._grids import regular
from benchmarks.harness import Figures, Report, Skipped, in_processes, options, publish
from benchmarks.waiting import release
from services.carbon.sources.csv_trace import read_trace
from services.kit.config import AccuracyMean, Objective
from services.kit.profiles.core.language import LanguageProfile
from services.planner.core.accounting.levers import LEVERS, saved_by_lever
from services.planner.core.accuracy_mean.control import AccuracyControl
from services.planner.core.accuracy_mean.frontier import frontier
from services.planner.core.accuracy_mean.ledger import AccuracyLedger
from services.planner.core.model import Configuration, Model, Pool, Problem, Variant
from services.planner.core.problem import catalog
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact

GPUS: Final = 2
"""Of each zone."""
PUE: Final = 1.2
BATCHES: Final = (1, 32)
CLOCKS: Final = (1.0, 0.7)
MOVED: Final = 0.05
AT_LEAST: Final = 0.98
FLOOR: Final = 0.9
TIME_LIMIT_S: Final = 1.0

LANGUAGE: Final = {"1b": (1.2, 49.3), "3b": (3.2, 63.4), "8b": (8.0, 69.4)}
"""Parameters, 1e9, and MMLU of Llama 3.2 1B and 3B and of Llama 3.1 8B (Meta's model cards)."""

Grid = Mapping[str, Sequence[float]]
See = Callable[[int], Mapping[str, float]]
"""Returns the intensities that a policy sees in an hour."""


@dataclass(frozen=True, slots=True)
class Span:
    """Hours of a run. Attributes: history (hours seen before), length, period, all h."""

    history: int
    length: int
    period: int


YEAR: Final = Span(672, 12 * 672, 672)
QUICK: Final = Span(24, 48, 48)


@dataclass(frozen=True, slots=True)
class Job:
    """One policy on one pair of grids."""

    zones: tuple[str, str]
    folder: Path
    policy: str
    span: Span

    def __str__(self) -> str:
        return f"{' + '.join(self.zones)}: {self.policy}"


@dataclass(slots=True)
class Course:
    """Sums of a run. Attributes: carbon_g, parts_g by lever, answers and accuracy by model."""

    carbon_g: float = 0.0
    parts_g: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LEVERS, 0.0))
    demand: float = 0.0
    unserved: float = 0.0
    accuracy: dict[str, float] = field(default_factory=dict)
    answers: dict[str, float] = field(default_factory=dict)
    plans: int = 0
    hours: int = 0

    @property
    def base_g(self) -> float:
        """Emissions of BASE for the same load."""
        return self.carbon_g + sum(self.parts_g.values())


POLICIES: Final = ("cinquefoil", "hours", "blind", "best variants", "autoscaler")


def measure(folder: Path, span: Span, pairs: int | None) -> Report:
    """Run every policy on pairs of the folder's grids that have the same year."""
    names = sorted(path.stem for path in folder.glob("*.csv"))
    alike = [
        pair
        for pair in combinations(names, 2)
        if _first(folder, pair[0]) == _first(folder, pair[1])
    ]
    chosen = alike if pairs is None else alike[: max(pairs, 1)]
    jobs = [Job(pair, folder, policy, span) for pair in chosen for policy in POLICIES]
    found = in_processes(run, jobs)
    rows = [_row(pair, {j.policy: found[j] for j in jobs if j.zones == pair}) for pair in chosen]
    figures = {key: [row[key] for row in rows] for key in rows[0] if key != "zones"}
    spread = [
        {"of all pairs": name} | {key: pick(values) for key, values in figures.items()}
        for name, pick in (("min", min), ("median", median), ("max", max))
    ]
    title = f"{len(rows)} pairs of {folder.name}, {span.length} h after {span.history} h of history"
    note = "saved: % of base's carbon; levers: points of it; accuracy: % of the best variants'"
    return Report(
        [Figures(title, rows, note), Figures("Spread", spread)],
        {"pairs": rows, "spread": spread, "folder": folder.name, "hours": span.length},
    )


def _first(folder: Path, name: str) -> str:
    with (folder / f"{name}.csv").open(encoding="utf-8") as lines:
        next(lines)
        return next(lines)[:4]


def _row(zones: tuple[str, str], found: Mapping[str, Course]) -> dict[str, Any]:
    ours, blind, hours = found["cinquefoil"], found["blind"], found["hours"]
    best, autoscaler, base_g = found["best variants"], found["autoscaler"], ours.base_g

    def saved(course: Course) -> float:
        return 100 * (1 - course.carbon_g / base_g)

    return {
        "zones": " + ".join(zones),
        "saved": saved(ours),
        **{lever: 100 * blind.parts_g[lever] / base_g for lever in LEVERS},
        "time": saved(hours) - saved(blind),
        "place over time": saved(ours) - saved(hours),
        "of blind": 100 * (1 - ours.carbon_g / blind.carbon_g),
        "of autoscaler": 100 * (1 - ours.carbon_g / autoscaler.carbon_g),
        "best variants of autoscaler": 100 * (1 - best.carbon_g / autoscaler.carbon_g),
        **{f"accuracy {name}": 100 * ours.accuracy[name] / n for name, n in ours.answers.items()},
        "accuracy blind": 100 * min(blind.accuracy[n] / c for n, c in blind.answers.items()),
        "attainment": 100 * (1 - ours.unserved / ours.demand),
        "attainment autoscaler": 100 * (1 - autoscaler.unserved / autoscaler.demand),
        "plans per day": 24 * ours.plans / ours.hours,
    }


# ---- one run -----------------------------------------------------------------------------------


def run(job: Job) -> Course:
    """Return what came of a policy on a pair of grids."""
    grid = {zone: _values(job.folder / f"{zone}.csv", job.span) for zone in job.zones}
    return _Run(job, grid).course()


def _values(path: Path, span: Span) -> list[float]:
    samples = regular(read_trace(path), timedelta(hours=1))
    return [each.intensity_gco2e_per_kwh for each in samples[: span.history + span.length]]


class _Run:
    """A policy's hours, one after the other."""

    def __init__(self, job: Job, grid: Grid) -> None:
        self._job, self._grid, self._span = job, grid, job.span
        self._largest = job.policy in ("best variants", "autoscaler")
        self._blind_to_zones = job.policy == "autoscaler"
        goal = 1.0 if self._largest else AT_LEAST
        self._objective = Objective(
            accuracy_floor=goal if self._largest else FLOOR,
            accuracy_mean=AccuracyMean(at_least=goal, over=f"{job.span.period}h"),
            park_idle_gpus=True,
        )
        self._control = AccuracyControl(AccuracyLedger(job.span.period))
        self._control.configure(self._objective.accuracy_mean)
        self._loads = _hourly_loads(job.span)
        self._means = {zone: fmean(values) for zone, values in grid.items()}

    def course(self) -> Course:
        """Return the sums over all hours after the history."""
        found, decided = Course(), None
        for hour in range(self._span.history + self._span.length):
            seen, demand = self._seen(hour), self._loads[hour]
            self._control.ledger.hold(3600.0 * hour, intensity=seen, demand_rps=demand)
            if hour < self._span.history:
                continue
            known = self._known(hour, seen, demand)
            if decided is None or _moved(decided[0], known):
                decided = known, self._decided(hour, seen, demand)
                found.plans += 1
            self._add(found, hour, *decided[1], demand)
        return found

    def _seen(self, hour: int) -> dict[str, float]:
        """Return the intensities that the policy decides by."""
        now = {zone: values[hour] for zone, values in self._grid.items()}
        match self._job.policy:
            case "blind":
                return self._means
            case "autoscaler":
                return dict.fromkeys(now, fmean(self._means.values()))
            case "hours":
                shape = sum(now.values()) / sum(self._means.values())
                return {zone: shape * mean for zone, mean in self._means.items()}
        return now

    def _known(
        self, hour: int, seen: Mapping[str, float], demand: Mapping[str, float]
    ) -> dict[str, float]:
        """Return all that a plan depends on, by name."""
        prices = {} if self._largest else self._prices(hour)
        return {
            **seen,
            **demand,
            "gpus": float(sum(_present(hour))),
            **{f"price {n}": p for n, p in prices.items()},
        }

    def _prices(self, hour: int) -> Mapping[str, float]:
        now_s = 3600.0 * hour
        usual = self._control.usual("fleet", now_s)
        if usual is not None:
            problem = self._problem(
                (GPUS, GPUS), usual.intensity_gco2e_per_kwh, usual.demand_rps, {}
            )
            self._control.learn(usual, frontier(problem, usual.loads, exact, 5.0))
        return self._control.prices(now_s)

    def _decided(
        self, hour: int, seen: Mapping[str, float], demand: Mapping[str, float]
    ) -> tuple[Problem, Configuration]:
        prices = {} if self._largest else self._control.prices(3600.0 * hour)
        problem = self._problem(_present(hour), seen, demand, prices)
        return problem, exact(problem)

    def _problem(
        self,
        present: tuple[int, int],
        intensity: Mapping[str, float],
        demand: Mapping[str, float],
        prices: Mapping[str, float],
    ) -> Problem:
        pools = [Pool(_GPU, zone, PUE, intensity[zone]) for zone in self._job.zones]
        gpus = fleets.fleet(list(zip(pools, present, strict=True)))
        models = tuple(_models(demand, self._largest))
        kinds = catalog.build(models, pools, self._objective, BATCHES, 1, clock_ratios=CLOCKS)
        if self._blind_to_zones:
            whole = catalog.whole(pools[0]).name
            kinds = tuple(kind for kind in kinds if kind.profile == whole)
        weight = 0.5 if prices or self._largest else 1e-3
        return Problem(
            gpus=gpus,
            models=models,
            catalog=kinds,
            objective=self._objective.model_copy(update={"carbon_weight": weight}),
            time_limit_s=TIME_LIMIT_S,
            batch_sizes=BATCHES,
            accuracy_price=prices,
        )

    def _add(
        self,
        course: Course,
        hour: int,
        problem: Problem,
        configuration: Configuration,
        demand: Mapping[str, float],
    ) -> None:
        """Add an hour of a plan at the grid as it was."""
        real = {zone: values[hour] for zone, values in self._grid.items()}
        now, ran = _on(problem, configuration, real)
        judged = score(now, ran)
        course.hours += 1
        course.carbon_g += judged.carbon_gco2e_per_h
        for lever, grams in saved_by_lever(now, ran, judged).items():
            course.parts_g[lever] += grams
        answered, relative = dict[str, float](), dict[str, float]()
        for model in now.models:
            served = 3600 * (model.demand_rps - judged.unserved_rps[model.name])
            relative[model.name] = judged.accuracy[model.name] / _BEST[model.name]
            answered[model.name] = served
            course.demand += demand[model.name] / _PEAK_RPS[model.name]
            course.unserved += judged.unserved_rps[model.name] / _PEAK_RPS[model.name]
            course.answers[model.name] = course.answers.get(model.name, 0.0) + served
            gained = served * relative[model.name]
            course.accuracy[model.name] = course.accuracy.get(model.name, 0.0) + gained
        self._control.ledger.answer(3600.0 * hour + 1.0, answered, relative)


def _on(
    problem: Problem, configuration: Configuration, intensity: Mapping[str, float]
) -> tuple[Problem, Configuration]:
    """Return a problem and its configuration at other intensities."""
    pools = {
        pool: replace(pool, intensity_gco2e_per_kwh=intensity[pool.zone]) for pool in problem.pools
    }
    moved = {kind: replace(kind, pool=pools[kind.pool]) for kind in configuration.segments}
    return (
        replace(
            problem,
            gpus=tuple(replace(gpu, pool=pools[gpu.pool]) for gpu in problem.gpus),
            catalog=(),
        ),
        Configuration(
            {moved[kind]: n for kind, n in configuration.segments.items()},
            {moved[kind]: rps for kind, rps in configuration.load_rps.items()},
        ),
    )


def _moved(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return whether a figure has moved by what triggers a plan; the number of GPUs at once."""
    return before.keys() != now.keys() or any(
        abs(value - before[name]) > (0.0 if name == "gpus" else MOVED) * before[name]
        for name, value in now.items()
    )


# ---- fleet, models, loads, events --------------------------------------------------------------

_GPU: Final = fleets.gpu_type("h100-80gb")
_PEAK_RPS: Final = {"vision": 700.0, "language": 7.0}
_BEST: Final = {
    "vision": max(accuracy for _, accuracy in fleets.EFFICIENTNET.values()),
    "language": max(accuracy for _, accuracy in LANGUAGE.values()),
}


def _models(demand: Mapping[str, float], largest: bool) -> Iterator[Model]:
    vision = fleets.efficientnet("vision", demand_rps=demand["vision"], slo_s=0.3)
    variants = tuple(
        Variant(name, accuracy, LanguageProfile.of(parameters))
        for name, (parameters, accuracy) in LANGUAGE.items()
    )
    language = Model("language", 20.0, 95.0, demand["language"], variants)
    for model in (vision, language):
        yield replace(model, variants=(model.best,)) if largest else model


def _hourly_loads(span: Span) -> list[dict[str, float]]:
    """Return the load of each hour by model, req/s, in five levels, with a burst every day."""
    vision = [each.mean_rps if each else math.nan for each in _loads.twitter_minutes()]
    language = [each.mean_rps if each else math.nan for each in _loads.servegen_windows()]
    shapes = {"vision": _levels(vision, 60), "language": _levels(language, 6)}

    def load(model: str, hour: int) -> float:
        shape = shapes[model]
        burst = 1.33 if hour % 24 == (7 * (hour // 24)) % 24 else 1.0
        return _PEAK_RPS[model] * 0.7 * burst * shape[hour % len(shape)]

    return [
        {model: load(model, hour) for model in shapes} for hour in range(span.history + span.length)
    ]


def _levels(values: Sequence[float], per_hour: int) -> list[float]:
    """Return hourly means over the busiest one, rounded up to fifths."""
    hours = [
        [v for v in values[at : at + per_hour] if not math.isnan(v)]
        for at in range(0, len(values) // per_hour * per_hour, per_hour)
    ]
    means = [fmean(hour) if hour else 0.0 for hour in hours]
    return [max(math.ceil(5 * mean / max(means)), 1) / 5 for mean in means]


def _present(hour: int) -> tuple[int, int]:
    """Return the GPUs of each zone: every day one is away for three hours."""
    day, of_day = divmod(hour, 24)
    away = 0 <= of_day - (11 * day) % 21 < 3
    return (GPUS - (away and not day % 2), GPUS - (away and day % 2))


def _with_waiting(report: Report, *, quick: bool) -> Report:
    """Add the lever of requests that can wait, where its grids are at hand."""
    try:
        waiting = release.lever(quick=quick)
    except Skipped:
        return report
    document = {**(report.document or {}), "waiting": waiting.rows}
    return Report([*report.tables, waiting], document)


if __name__ == "__main__":
    parser = options("levers")
    parser.add_argument("--grids", type=Path, help="folder of hourly records, one per zone")
    parser.add_argument("--pairs", type=int, help="how many pairs of zones")
    parser.add_argument("--quick", action="store_true", help="one pair, two days")
    given = parser.parse_args()
    records = given.grids or data_file("carbon_intensity") / "direct"
    span, pairs = (QUICK, given.pairs or 1) if given.quick else (YEAR, given.pairs)
    publish("levers", _with_waiting(measure(records, span, pairs), quick=given.quick), given)
