"""Policies on windows that no setting was chosen on: a folder of CSV files.

python -m benchmarks.llm --part heldout --windows FOLDER [--zones ZONE,ZONE] [--start TIME]
                         [--boot S] [--ttft S] [--tpot S] [--json FILE]

A window is a file with `arrival_s`, `input_tokens` and `output_tokens`, or with Azure's TIMESTAMP,
ContextTokens and GeneratedTokens. Eight H100 are half in each of two zones, and all serve at the
start; an hour of the grids passes in a minute of the window. Every policy learns from the window
itself, as it goes, and every server boots as long. Energy is with idle: 124 W of a GPU with a
context, 74 W of a parked one; `released_j_per_token` leaves parked ones out.

What Cinquefoil saves is taken apart by adding one thing after the other to least requests on all
GPUs at their highest clock: the plan's clock, consolidation, GPUs that leave and return, zones.

What a lower clock saves was measured on a V100, and of an H100's decoding only that it is less: so
the whole is also computed with curves by which the active energy at 0.6 falls by 34 and by 19 %,
the most and the least that were reported for decoding on H100 and H200; the V100's is 53 %.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import _grids
from benchmarks.harness import Figures, Report, Skipped, in_processes
from benchmarks.llm.baselines import STABILISATION_S, Hpa, Keda, LeastRequests, SlaPlanner
from benchmarks.llm.elastic import GPUS, Policy, Site, figures
from benchmarks.llm.engine import CLOCKS, POOL, Limits, Request
from benchmarks.llm.ours import Cinquefoil
from services.kit.hardware.clock_curve import ClockCurve
from services.kit.hardware.gpu_types import curve_of

GRID_SPEED: Final = 60.0
ZONES: Final = ("lca/US-CAL-CISO", "lca/US-MIDA-PJM")
START: Final = "2022-05-10T12:00"
BOOT_S: Final = 60.0
"""Eight billion parameters from a local disk, with graphs to capture: vLLM's posts on sleep mode
state 30 to 100 s (blog.vllm.ai/2025/10/26/sleep-mode.html)."""

V100: Final = curve_of(POOL.type.performance)
CURVES: Final[Mapping[str, ClockCurve]] = {
    "V100's": V100,
    "34 % at 0.6": replace(V100, fixed=0.44),
    "19 % at 0.6": replace(V100, fixed=0.69),
}
OURS: Final = "cinquefoil"
BASELINE: Final = "KEDA on waiting, clocks locked"
_STEPS: Final = ("clocks", "consolidation", "elasticity", "zone")


class Options(NamedTuple):
    """Settings of a run. Attributes: as the command line has them, zones of `_grids`."""

    windows: str = ""
    zones: tuple[str, ...] = ZONES
    start: str = START
    boot_s: float = BOOT_S
    ttft_s: float = 2.0
    tpot_s: float = 0.04
    curve: str = "V100's"

    @property
    def limits(self) -> Limits:
        """The objective."""
        return Limits(self.ttft_s, self.tpot_s)

    def site(self) -> Site:
        """Return the GPUs: every second one is in the same zone."""
        start = datetime.fromisoformat(self.start + "+00:00")
        grids = {zone: _grids.load(zone) for zone in self.zones}
        first = {zone: round((start - g.samples[0].since) / g.step) for zone, g in grids.items()}
        values = {zone: grid.values() for zone, grid in grids.items()}
        step_s = {zone: grid.step / timedelta(seconds=GRID_SPEED) for zone, grid in grids.items()}

        def intensity(zone: str, now_s: float) -> float:
            return values[zone][first[zone] + int(now_s / step_s[zone])]

        zones = tuple(self.zones[index % len(self.zones)] for index in range(GPUS))
        return Site(zones, intensity, self.boot_s, CURVES[self.curve])


class Job(NamedTuple):
    """A window, and the options."""

    path: str
    options: Options

    @property
    def trace(self) -> str:
        """Name of the window."""
        return Path(self.path).stem

    def __str__(self) -> str:
        return f"{self.trace}, clock curve {self.options.curve}"


Make = Callable[[Sequence[Request]], Policy]


def policies(limits: Limits, site: Site) -> dict[str, Make]:
    """Return baselines and ours, by name; parts of ours are named after what they add."""
    locked, (usual_s, short_s) = CLOCKS[0], STABILISATION_S

    def ours(**parts: bool) -> Make:
        return lambda window: Cinquefoil(window, limits, site, **parts)

    return {
        "least requests": lambda _: LeastRequests(),
        "clocks locked at 0.6": lambda _: LeastRequests(locked),
        "HPA on utilisation": lambda _: Hpa(CLOCKS[-1], usual_s),
        BASELINE: lambda _: Keda(locked, usual_s),
        f"{BASELINE}, {short_s:.0f} s": lambda _: Keda(locked, short_s),
        "SLA planner, clocks": lambda window: SlaPlanner(window, limits),
        "clocks": ours(consolidates=False, elastic=False, zones=False),
        "consolidation": ours(elastic=False, zones=False),
        "elasticity": ours(zones=False),
        OURS: ours(),
    }


def read(path: Path) -> tuple[Request, ...]:
    """Return the requests of a window, from time 0 on."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    azure = bool(rows) and "TIMESTAMP" in rows[0]
    prompt = "ContextTokens" if azure else "input_tokens"
    answer = "GeneratedTokens" if azure else "output_tokens"
    times_s = [
        datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        if azure
        else float(row["arrival_s"])
        for row in rows
    ]
    first_s = min(times_s, default=0.0)
    found = [
        Request(at_s - first_s, _count(row[prompt]), _count(row[answer]))
        for at_s, row in zip(times_s, rows, strict=True)
    ]
    return tuple(sorted(found, key=lambda request: request.arrived_s))


def _count(text: str) -> int:
    return max(int(float(text)), 1)


def study(job: Job) -> list[dict[str, Any]]:
    """Return the rows of one window."""
    window, limits, site = read(Path(job.path)), job.options.limits, job.options.site()
    return [
        {"trace": job.trace, "policy": policy} | figures(window, limits, site, make)
        for policy, make in policies(limits, site).items()
    ]


def measure(*, quick: bool, options: Options = Options()) -> Report:  # noqa: B008  # a value
    """Run every policy on every window of a folder; by the other curves, ours and the baseline."""
    files = sorted(str(path) for path in Path(options.windows or "/nowhere").glob("*.csv"))
    if not files:
        raise Skipped("name a folder with windows: --windows FOLDER")
    curves = list(CURVES)[: 1 if quick else None]
    jobs = [Job(path, options._replace(curve=curve)) for curve in curves for path in files]
    by_job = in_processes(study, jobs)
    first = {job.trace: rows for job, rows in by_job.items() if job.options.curve == curves[0]}
    rows = [row for each in first.values() for row in each]
    saved: dict[str, dict[str, Any]] = {curve: {} for curve in curves}
    for job, found in by_job.items():
        saved[job.options.curve][job.trace] = _against(found, BASELINE)
    parts = {trace: _parts(found) for trace, found in first.items()}
    shown = [row for row in rows if row["policy"] not in _STEPS]
    tables = [
        Figures(f"{GPUS} H100 in {' and '.join(options.zones)}", shown, _headline(saved)),
        Figures(
            "What saves, of least requests on all GPUs at the highest clock",
            [{"trace": trace} | each for trace, each in parts.items()],
        ),
    ]
    document = {"heldout": rows, "decomposition": parts, "against_baseline_by_curve": saved}
    return Report(tables, document)


def _against(rows: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, float]:
    """Return how much less ours takes than a baseline, as shares."""
    by_name = {row["policy"]: row for row in rows}
    mine, its = by_name[OURS], by_name[baseline]
    keys = ("j_per_token", "released_j_per_token", "g_per_token")
    return {key: 1 - mine[key] / its[key] for key in keys}


def _parts(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of energy, and of carbon, that each part saves; their sums are the whole."""
    by_name = {row["policy"]: row for row in rows}
    chain = [by_name[name] for name in ("least requests", *_STEPS[:-1], OURS)]
    found: dict[str, float] = {}
    for key in ("j_per_token", "g_per_token"):
        whole = chain[0][key]
        for name, before, after in zip(_STEPS, chain[:-1], chain[1:], strict=True):
            found[f"{key[0]} {name}"] = (before[key] - after[key]) / whole
    return found


def _headline(saved: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    def span(key: str) -> str:
        each = [by[key] for traces in saved.values() for by in traces.values()]
        return f"{min(each):.0%} to {max(each):.0%}"

    return (
        f"Less than {BASELINE}, over windows and clock curves: energy {span('j_per_token')}, "
        f"{span('released_j_per_token')} where parked GPUs are released; carbon "
        f"{span('g_per_token')}."
    )
