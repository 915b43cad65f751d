"""The demo's savings on other grids: its two days in the simulator, on ten real ones.

`examples/scenarios/two-days.yaml` (`cinquefoil simulate`) with two recorded days of each region in
place of the synthetic curve, and fewer of its stretches of steady state request by request. Carbon
and accuracy weigh as lambda says, since two days have no history for a mean over weeks. Every
policy gets the same requests. The saving is against BASE, the largest variant on whole GPUs, at the
same load.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks import _grids
from benchmarks.harness import Figures, Report, in_processes, main
from services.simulator.loader import read
from services.simulator.report.report import Result, chosen, run

SCENARIO = Path(__file__).parents[1] / "examples/scenarios/two-days.yaml"
KIND = "lca"
START = "2022-06-14T00:00:00Z"
"""A Tuesday in a year that every record has."""

BASE = "base"
LAMBDA = 0.05
POLICIES: Mapping[str, Mapping[str, Any]] = {
    BASE: {"strategy": "base"},
    "co2opt": {"strategy": "co2opt"},
    "exact": {"strategy": "exact", "carbon_weight": LAMBDA},
    "exact, 24 h ahead": {"strategy": "exact", "carbon_weight": LAMBDA, "horizon_s": 86_400},
}
"""By name: what a scenario says of them."""

SAMPLING = {"period_s": 900}
QUICK_REGIONS, QUICK_DURATION_S = 3, 6 * 3600


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation. Attributes: region, policy (its name), duration_s (None: all)."""

    region: str
    policy: str
    duration_s: float | None

    def __str__(self) -> str:
        return f"{self.region}: {self.policy}"


def measure(regions: int | None = None, duration_s: float | None = None) -> Report:
    """Simulate every policy on every region, or on the first few."""
    names = [name.removeprefix(f"{KIND}/") for name in _grids.names() if name.startswith(KIND)]
    jobs = [Job(name, policy, duration_s) for name, policy in product(names[:regions], POLICIES)]
    found = in_processes(_simulate, jobs)
    rows = [_row(job, found) for job in jobs]
    days = (duration_s or yaml.safe_load(SCENARIO.read_text())["duration_s"]) / 86_400
    table = Figures(
        f"{SCENARIO.name} on {len(jobs) // len(POLICIES)} grids, {days:g} days from {START}",
        rows,
        "saved: of BASE's carbon; p95: objective 0.4 s; late: answered after it, or not at all",
    )
    document: dict[str, dict[str, Any]] = {}
    for row in rows:
        figures = {key: row[key] for key in row if key not in {"region", "policy"}}
        document.setdefault(row["region"], {})[row["policy"]] = figures
    return Report([table], document)


def _simulate(job: Job) -> Result:
    """Return what came of the scenario on this grid."""
    data = yaml.safe_load(SCENARIO.read_text(encoding="utf-8"))
    deployment = (SCENARIO.parent / data["deployment"]).resolve()
    zones = yaml.safe_load(deployment.read_text(encoding="utf-8"))["carbon"]["zones"]
    trace = _grids.trace_file(f"{KIND}/{job.region}").resolve()
    data |= {
        "deployment": str(deployment),
        "start": START,
        "policies": [{"name": job.policy, **POLICIES[job.policy]}],
        "carbon": {zone: {"kind": "trace", "path": str(trace)} for zone in zones},
        "duration_s": job.duration_s or data["duration_s"],
        "sampling": SAMPLING,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SCENARIO.name
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        setting = read(path)
    report = run(job.region, setting, chosen(setting, ()), lambda *_: None)
    return report.results[job.policy]


def _row(job: Job, found: Mapping[Job, Result]) -> dict[str, Any]:
    result = found[job]
    figures, base = result.figures, _base(job, found).figures
    (model,) = figures.models.values()
    (intensity,) = result.series.intensity_gco2e_per_kwh.values()
    return {
        "region": job.region,
        "gco2e_per_kwh": sum(intensity) / len(intensity),
        "policy": job.policy,
        "carbon_gco2e": figures.carbon_gco2e,
        "saved_percent": 100 * (1 - figures.carbon_gco2e / base.carbon_gco2e),
        "accuracy": model.accuracy,
        "p95_s": model.p95_s,
        "late_percent": 100 * (model.late + model.failed) / model.sent,
        "changes": figures.reconfigurations,
    }


def _base(job: Job, found: Mapping[Job, Result]) -> Result:
    return next(r for j, r in found.items() if j.region == job.region and j.policy == BASE)


if __name__ == "__main__":
    main("regions", measure, quick=partial(measure, QUICK_REGIONS, QUICK_DURATION_S))
