"""Tables and JSON out of the results."""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean

from benchmarks.clover import applications
from benchmarks.clover.applications import TITLES
from benchmarks.clover.calibration import errors
from benchmarks.clover.day import Hour, compare
from benchmarks.clover.jobs import FIXED_GCO2E_PER_KWH, PAPERS_LOAD, Results, Section
from benchmarks.clover.searching import Searched
from benchmarks.clover.setting import Setting
from benchmarks.harness import Figures, Row

HEADLINE = ("carbon_saving_pct", "accuracy_loss_pct", "sla_violations", "gap_to_oracle_points")
EQUAL = (
    "saving: against BASE at equal load and equal number of GPUs; violations: plans that refuse "
)
EQUAL += "load or miss the SLO; gap: to the better of exact and oracle"


Days = Mapping[Setting, Mapping[str, Mapping[str, float]]]


def headline(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by application and strategy, CISO March at lambda 0.5, all GPUs powered."""
    found = {}
    for setting, rows in days(results).items():
        if setting == Setting(setting.application):
            found[TITLES[setting.application]] = {
                name: {key: row[key] for key in HEADLINE} for name, row in rows.items()
            }
    return found


def tables(results: Results) -> list[Figures]:
    """Return every table."""
    found = [Figures("the calibrated profile against the artifact's points", errors(), FITTED)]
    for setting, by_strategy in days(results).items():
        rows = [{"strategy": name, **row} for name, row in by_strategy.items()]
        found.append(Figures(_title(setting), rows, EQUAL))
    found += [
        Figures("the paper's own comparison (not at equal load)", list(_papers(results)), PAPERS),
        Figures(f"lambda, at {FIXED_GCO2E_PER_KWH:g} gCO2e/kWh", list(weights(results)), EQUAL),
        Figures("accuracy as a threshold", list(thresholds(results)), EQUAL),
        Figures("fewer GPUs, the same load", list(fleets(results)), "p95: over BASE's on 10 GPUs"),
        Figures("live evaluations in 48 h", list(_live(results)), LIVE),
    ]
    return [figures for figures in found if figures.rows]


FITTED = "two A100-40GB; p95 above a second means overload and was not fitted"
PAPERS = f"BASE serves {PAPERS_LOAD:g} of the load on as many GPUs; carbon per request"
LIVE = "the paper's searchers know no profiles; online: see benchmarks/clover/searching.py"


def _title(setting: Setting) -> str:
    powered = "idle GPUs parked (consolidation)" if setting.park else "all GPUs powered"
    name = TITLES[setting.application]
    slo = ", SLO = BASE's p95 (the paper's)" if setting.base_p95 else ""
    return f"{name}, {setting.trace}, lambda {setting.carbon_weight}, {powered}{slo}"


def days(results: Results) -> Days:
    """Return the figures of every setting that was run through the trace, by strategy."""
    return {setting: _compared(setting, each) for setting, each in _days(results, "day").items()}


def _compared(setting: Setting, found: Mapping[str, list[Hour]]) -> dict[str, dict[str, float]]:
    best = max(applications.accuracies(setting.application).values())
    return compare(found, best)


def _days(results: Results, section: Section) -> dict[Setting, dict[str, list[Hour]]]:
    found: dict[Setting, dict[str, list[Hour]]] = {}
    for job, result in results.items():
        if job.section == section and not isinstance(result, Searched):
            found.setdefault(job.setting, {})[job.strategy] = result
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def _papers(results: Results) -> Iterator[Row]:
    light = {s.application: each["base"] for s, each in _days(results, "papers").items()}
    hours = {job.setting.application: job.hours for job in results if job.section == "papers"}
    for setting, by_strategy in _days(results, "day").items():
        if setting != Setting(setting.application):
            continue
        name = setting.application
        all_hours = next(j.hours for j in results if j.section == "day" and j.setting == setting)
        picked = [all_hours.index(hour) for hour in hours[name]]
        base_g = fmean(hour.carbon_g_per_h for hour in light[name]) / PAPERS_LOAD
        for strategy, found in by_strategy.items():
            mine_g = fmean(found[index].carbon_g_per_h for index in picked)
            yield {
                "application": TITLES[name],
                "strategy": strategy,
                "carbon_saving_pct": 100 * (1 - mine_g / base_g),
            }


def weights(results: Results) -> Iterator[Row]:
    """Yield the figures by lambda."""
    for setting, found in _days(results, "lambda").items():
        for strategy, row in _compared(setting, found).items():
            yield {
                "application": TITLES[setting.application],
                "lambda": setting.carbon_weight,
                "strategy": strategy,
                **{key: row[key] for key in HEADLINE},
            }


def thresholds(results: Results) -> Iterator[Row]:
    """Yield the figures by allowed loss of accuracy."""
    for setting, found in _days(results, "threshold").items():
        for strategy, row in _compared(setting, found).items():
            yield {
                "application": TITLES[setting.application],
                "allowed_loss_pct": round(100 * (1 - setting.accuracy_floor), 3),
                "strategy": strategy,
                **{key: row[key] for key in HEADLINE},
                "kept_hours": sum(hour.floor_kept for hour in found[strategy]),
            }


def fleets(results: Results) -> Iterator[Row]:
    """Yield the figures by number of GPUs; no p95: overload."""
    found = _days(results, "gpus")
    for setting, each in found.items():
        ten = next(
            other["base"][0]
            for s, other in found.items()
            if s.application == setting.application and s.gpus == max(f.gpus for f in found)
        )
        for strategy, (hour,) in each.items():
            yield {
                "application": TITLES[setting.application],
                "gpus": setting.gpus,
                "strategy": strategy,
                "p95_over_base": None if math.isinf(hour.p95_s) else hour.p95_s / ten.p95_s,
                "keeps_sla": not hour.broken,
                "accuracy_pct": hour.accuracy,
            }


def _live(results: Results) -> Iterator[Row]:
    for job, result in results.items():
        if isinstance(result, Searched):
            yield {
                "application": TITLES[job.setting.application],
                "lambda": job.setting.carbon_weight,
                "searcher": job.strategy,
                **result.figures,
            }
