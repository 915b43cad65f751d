"""ParvaGPU's scenarios S1-S6 (SC'24, Table IV): fewest GPUs, by the optimum and by the heuristic.

Eleven models measured on A100-80GB; batches take at most half the SLO (section IV-A), segments hold
at most five processes. "shipped" are the maps in the authors' repository, made for the rule 0.45 x
SLO. Heuristics are counted on their own maps; a plan's placement may need fewer GPUs.
"""

import csv
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from matplotlib import pyplot as plt

from benchmarks import _fleets as fleets
from benchmarks._data import DATA, data_file
from benchmarks.harness import Figures, Report, main, timed_s
from cinquefoil.gpuagent.v1.records import Placement
from services.kit.mig import Layout
from services.planner.capacity.fleet_sizing import Terms, lay_out, pose
from services.planner.capacity.input_files import read_profiles, read_scenario
from services.planner.core.model import Problem
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.parvagpu.strategy import allocate, single

T = TypeVar("T")

PARVAGPU = DATA / "parvagpu"
GPU = fleets.gpu_type("a100-80gb")
GPCS = 7
SLICES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}
SCENARIOS = range(1, 7)

LARGE, TIMES = 5, 10
"""The scenario that the paper multiplies, and by how much (section IV-D)."""

SHIPPED = {"shipped": "deployment", "shipped-public-code": "deployment_public_code_max3procs"}
LABELS = {"gpus": "GPUs", "unallocated_pct": "unallocated GPCs, %"}
BAR = 0.14

Rows = dict[str, dict[str, Any]]
"""Figures by strategy."""


def measure() -> Report:
    """Plan every scenario by every strategy, and S5 with ten times the services."""
    data_file("parvagpu")
    found = {f"S{number}": _planned(_problem(number)) | _shipped(number) for number in SCENARIOS}
    found[f"S{LARGE}x{TIMES}"] = _planned(_problem(LARGE, TIMES), repeats=1)
    rows = [
        {"scenario": scenario, "strategy": strategy, **row}
        for scenario, strategies in found.items()
        for strategy, row in strategies.items()
    ]
    note = "ms: median, the catalog known; overlaps: GPUs with slices that cannot exist together"
    return Report(
        [Figures("ParvaGPU's scenarios on A100-80GB", rows, note)],
        document=found,
        draw=partial(draw, found),
    )


def _problem(number: int, times: int = 1) -> Problem:
    """Return a scenario with `times` copies of each service."""
    profiles = read_profiles(PARVAGPU / "prof_data", GPU.name)
    rates, latencies = PARVAGPU / "SLO" / "SLO_req_rate.csv", PARVAGPU / "SLO" / "SLO_latency.csv"
    services = read_scenario(rates, latencies, number, tuple(profiles))
    copies = {f"{each.model}-{copy}": each for copy in range(times) for each in services}
    return pose(
        [replace(each, model=name) for name, each in copies.items()],
        {name: profiles[each.model] for name, each in copies.items()},
        GPU,
        Terms(),
    )


def _planned(problem: Problem, repeats: int = 5) -> Rows:
    found, exact_s = _median_s(partial(exact, problem), repeats)
    rows = {"exact": _row(lay_out(problem, found).layouts.values(), exact_s, found.gap)}
    heuristics = {
        "parvagpu": partial(allocate, problem),
        "parvagpu-single": partial(allocate, single(problem)),
        "parvagpu-unoptimized": partial(allocate, problem, optimise=False),
    }
    for name, heuristic in heuristics.items():
        allocation, took_s = _median_s(heuristic, 10 * repeats)
        assert not allocation.unserved_rps, f"{name} leaves {allocation.unserved_rps}"
        rows[name] = _row([tuple(each.segments) for each in allocation.gpus], took_s)
    best = rows["exact"]["gpus"]
    return {name: row | {"above_exact": row["gpus"] - best} for name, row in rows.items()}


def _shipped(number: int) -> Rows:
    """Return the maps in the authors' repository, and those of their code as published."""
    rows = {}
    for name, folder in SHIPPED.items():
        gpus: dict[tuple[str, str], list[Placement]] = {}
        path = PARVAGPU / folder / f"SLO{number}_ParvaGPU_deploy.csv"
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
            where = gpus.setdefault((row["Num instance"], row["Num GPU"]), [])
            where.append(Placement(SLICES[int(row["Instance size"])], int(row["Placement"])))
        rows[name] = _row(map(tuple, gpus.values()))
    return rows


def _row(layouts: Iterable[Layout], took_s: float | None = None, gap: float | None = None) -> Any:
    gpus, geometry = tuple(layouts), GPU.geometry
    gpcs = sum(geometry.kind(each.profile).compute_slices for layout in gpus for each in layout)
    return {
        "gpus": len(gpus),
        "gpcs": gpcs,
        "unallocated_pct": 100 * (1 - gpcs / (GPCS * len(gpus))),
        "overlaps": sum(bool(geometry.problem(layout)) for layout in gpus),
        "gap": gap,
        "ms": None if took_s is None else 1e3 * took_s,
    }


def _median_s(call: Callable[[], T], repeats: int) -> tuple[T, float]:
    answers = [timed_s(call) for _ in range(repeats)]
    return answers[0][0], statistics.median(took_s for _, took_s in answers)


def draw(found: Mapping[str, Rows], folder: Path) -> None:
    """Draw GPUs and unallocated GPCs by scenario (the paper's Fig. 5 and 7)."""
    plt.switch_backend("agg")
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    scenarios = [f"S{number}" for number in SCENARIOS]
    names = tuple(found[scenarios[0]])
    for panel, (key, label) in zip(panels, LABELS.items(), strict=True):
        for offset, name in enumerate(names):
            at = [index + (offset - len(names) / 2) * BAR for index in range(len(scenarios))]
            heights = [found[scenario][name][key] for scenario in scenarios]
            panel.bar(at, heights, BAR, label=name, align="edge")
        panel.set_xticks(range(len(scenarios)), scenarios)
        panel.set_ylabel(label)
    panels[0].legend(fontsize="small")
    figure.savefig(folder / "parvagpu.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main("parvagpu", measure)
