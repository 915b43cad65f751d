"""Does a planner in production come to rest? Whole days in virtual time, with default settings.

Three things that used to keep it busy: a profile that is too kind under constant load (30 % and
2.2 times), the load of Twitter's 14th day for three models on four A100s, and a slow model of which
a request arrives every five seconds. Everything is the planner's own cycle in the simulator; the
segments of the first are sized tightly, so that a wrong profile matters at once.

Missed: minutes after the first hour in which more requests were late or failed than the SLO allows.
The objective of a Twitter day is CLOVER's f of the answers and the energy that it came to. Its loss
is against the same day with free changes: no prices, no stabilisation, no budget.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks._data import data_file
from benchmarks._fleets import EFFICIENTNET
from benchmarks.harness import Figures, Report, in_processes, main
from services.kit.units import S_PER_H
from services.simulator.loader import Setting, read
from services.simulator.report.figures import figures
from services.simulator.run import draw_arrivals, simulate
from services.simulator.stats.run_record import RunRecord

TRACE = "requests/twitter_2021_08_days00-13_1min.csv"
DAY_S = 86_400.0
TWITTER_S = 84_600.0
"""The recording of each day stops 29 minutes early."""

TWITTER_MODELS = {"light": (10.0, 1.0), "medium": (20.0, 0.5), "heavy": (60.0, 0.2)}
"""Arithmetic over EfficientNet's, and load over the trace's."""

CARBON_WEIGHT = 0.1
DEFAULT = {"objective": {"carbon_weight": CARBON_WEIGHT}}
FREE = {
    "objective": {"carbon_weight": CARBON_WEIGHT, "switch_price": 0.0, "layout_price": 0.0},
    "triggers": {"scale_down_s": 0.0, "plans_per_hour": 0},
}
BASE_GCO2E_PER_H = 4 * 400 * 200 / 1000
"""Four A100s at 400 W, at the grid's 200 gCO2e/kWh."""

SAMPLING = {"period_s": 300, "window_s": 10, "settle_s": 5, "load_change": 0.5}


def _variants(scale: float) -> dict[str, Any]:
    return {
        name: {
            "file": f"{name}.onnx",
            "accuracy": accuracy,
            "profile": {"kind": "analytic", "gmacs_per_item": scale * gmacs},
        }
        for name, (gmacs, accuracy) in EFFICIENTNET.items()
    }


def _setting(
    gpus: int, models: Mapping[str, Any], planner: Mapping[str, Any], **rest: Any
) -> Setting:
    """Return a scenario of a node with A100s under `exact`."""
    static = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    data = {
        "version": "v1",
        "policies": ["exact"],
        "deployment": {
            "version": "v1",
            "carbon": {"zones": {"Z": {"source": static}}},
            "nodes": {"n": {"zone": "Z", "simulated": ["a100-40gb"] * gpus}},
            "models": dict(models),
            "planner": dict(planner),
        },
        **rest,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        return read(path)


def _run(setting: Setting) -> RunRecord:
    return simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))


def missed(record: RunRecord) -> float:
    """Return the share of the time after the first hour in which some SLO was missed."""
    total_s = missed_s = 0.0
    for interval in record.intervals:
        if interval.begin_s < S_PER_H:
            continue
        length_s = interval.end_s - interval.begin_s
        total_s += length_s
        for name, model in record.deployment.models.items():
            late = sum(latency_s > model.slo.latency_s for latency_s in interval.latency_s[name])
            bad = late + interval.ended(name) - len(interval.latency_s[name])
            if bad > (1 - model.slo.percentile / 100) * interval.ended(name):
                missed_s += length_s
                break
    return missed_s / total_s if total_s else 0.0


def too_kind(slowdown: float, duration_s: float) -> dict[str, Any]:
    """Return what comes of a profile from which a GPU is `slowdown` times as slow."""
    variant = {"b7": _variants(1.0)["b7"]}
    model = {"slo": {"latency_s": 0.4}, "demand_rps": 12.0, "variants": variant}
    tight = {"batch_sizes": [1, 2], "max_processes": 1, "objective": {"max_utilisation": 0.95}}
    record = _run(
        _setting(
            4,
            {"m": model},
            tight,
            duration_s=duration_s,
            detail="full",
            slowdown={"m": slowdown},
            load={"m": {"kind": "constant", "rate_rps": 12.0}},
        )
    )
    days = duration_s / DAY_S
    return {
        "plans_per_day": len(record.plans) / max(days, 1.0),
        "decisions_per_day": record.decisions / max(days, 1.0),
        "missed": missed(record),
    }


def twitter(duration_s: float, planner: Mapping[str, Any] = DEFAULT) -> dict[str, Any]:
    """Return what comes of Twitter's 14th day, as far as it was recorded, under some settings.

    Raises:
        Skipped: The trace is not here.
    """
    recorded = data_file(TRACE)
    models = {
        name: {"slo": {"latency_s": 0.4}, "demand_rps": 1.0, "variants": _variants(scale)}
        for name, (scale, _) in TWITTER_MODELS.items()
    }
    trace = {
        "kind": "trace",
        "path": str(recorded.resolve()),
        "column": "mean_rps",
        "first_row": 13 * 1440,
    }
    record = _run(
        _setting(
            4,
            models,
            planner,
            duration_s=min(duration_s, TWITTER_S),
            sampling=SAMPLING,
            load={name: {**trace, "scale": part} for name, (_, part) in TWITTER_MODELS.items()},
        )
    )
    later = record.plans[1:]
    return {
        "plans": len(record.plans),
        "segment_starts": sum(plan.starts for plan in later),
        "slices_created": sum(plan.slices_created for plan in later),
        "missed": missed(record),
        "objective": _objective(record),
    }


def _objective(record: RunRecord) -> float:
    """Return CLOVER's f (Eq. 1-3) of what a day came to, percentage points.

    C_base is the carbon of the fleet at full power, which scales the carbon goal.
    """
    found, deployment = figures(record), record.deployment
    hours = record.intervals[-1].end_s / S_PER_H
    base_gco2e = BASE_GCO2E_PER_H * hours
    right = sum(
        model.answered
        * (model.accuracy or 0.0)
        / max(variant.accuracy for variant in deployment.models[name].variants.values())
        for name, model in found.models.items()
    )
    saved = 100.0 * (1.0 - found.carbon_gco2e / base_gco2e)
    lost = 100.0 * (right / found.sent - 1.0)
    weight = deployment.planner.objective.carbon_weight
    return weight * saved + (1.0 - weight) * lost


def slow(duration_s: float) -> dict[str, Any]:
    """Return what comes of a model with a request every five seconds."""
    rate_rps = 0.2
    model = {"slo": {"latency_s": 30.0}, "demand_rps": rate_rps, "variants": _variants(400.0)}
    setting = _setting(
        1,
        {"m": model},
        {},
        duration_s=duration_s,
        detail="full",
        load={"m": {"kind": "constant", "rate_rps": rate_rps}},
    )
    record = _run(setting)
    days = duration_s / DAY_S
    return {
        "provided_ratio": max(plan.demand_rps["m"] for plan in record.plans) / rate_rps,
        "triggers_per_day": (record.decisions - 1) / max(days, 1.0),
        "plans_per_day": len(record.plans) / max(days, 1.0),
    }


@dataclass(frozen=True, slots=True)
class Part:
    """One simulation. Attributes: name, duration_s (of it)."""

    name: str
    duration_s: float

    def __str__(self) -> str:
        return self.name


PARTS: Mapping[str, Callable[[float], dict[str, Any]]] = {
    "sla_30": partial(too_kind, 1.3),
    "sla_220": partial(too_kind, 2.2),
    "twitter": twitter,
    "twitter, free changes": partial(twitter, planner=FREE),
    "slow_0.2": slow,
}
"""By name: returns what comes of so many seconds."""


def _came_to(part: Part) -> dict[str, Any]:
    """Return what comes of a part, and the processor's time for it."""
    began_s = time.process_time()
    return {**PARTS[part.name](part.duration_s), "cpu_s": time.process_time() - began_s}


def measure(duration_s: float = DAY_S) -> Report:
    """Simulate all days, or a part of each.

    Raises:
        Skipped: The trace is not here.
    """
    data_file(TRACE)  # not only after the other parts have run
    parts = [Part(name, duration_s) for name in PARTS]
    found = {part.name: came for part, came in in_processes(_came_to, parts).items()}
    wrong = {name: found[name] for name in ("sla_30", "sla_220")}
    steady, free, sparse = found["twitter"], found["twitter, free changes"], found["slow_0.2"]
    loss = (free["objective"] - steady["objective"]) / abs(free["objective"])
    tables = [
        Figures(
            "Constant load, and a profile that is too kind (wanted: <= 3 plans, missed < 0.3 %)",
            [{"case": name, **came} for name, came in wrong.items()],
        ),
        Figures(
            "Twitter, day 14, three models on four A100s (wanted: <= 160 starts, loss <= 1 %)",
            [
                {"settings": "default", **steady, "objective_loss": loss},
                {"settings": "free changes", **free, "objective_loss": 0.0},
            ],
        ),
        Figures(
            "0.2 req/s (wanted: provided <= 2.5 x the mean, <= 10 triggers)",
            [sparse],
        ),
    ]
    keys = ("segment_starts", "slices_created", "missed")
    document = {
        **{
            name: {key: came[key] for key in ("plans_per_day", "missed")}
            for name, came in wrong.items()
        },
        "twitter": {**{key: steady[key] for key in keys}, "objective_loss": loss},
        "slow_0.2": {key: sparse[key] for key in ("provided_ratio", "triggers_per_day")},
    }
    return Report(tables, {"steadiness": document})


if __name__ == "__main__":
    main("steadiness", measure, quick=partial(measure, 2 * S_PER_H))
