"""mu-Serve's power half (ATC'24, sections 3.1-3.4, 4.2, 4.4) in virtual time.

python -m benchmarks.muserve [--json FILE] [--plots [DIR]] [--quick | --live]

Table 1's models on V100s under real arrivals: AlpaServe's placement with and without the clock
loop, mu-Serve's Algorithm 2, the exact program of its objective, and that with groups and clocks
borne out by a simulation of earlier requests. Placement is the planner's own code, the clock loop
the agent's. `power_w` is the mean of a device over time, idle or not; `serving_power_w` while it
serves, as in the paper's Fig. 2; `active_saving` leaves the idle power out. Then the same on real
ONNX networks. --live measures something else: an agent with workers, as processes, in real time.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console

from benchmarks.harness import WIDTH, Figures, Report, Row, Skipped, options, publish
from benchmarks.miad.setting import FLOOR
from benchmarks.muserve import arrivals, live, networks, plots
from benchmarks.muserve.mix import INSENSITIVE
from benchmarks.muserve.planning.clocking import V100
from benchmarks.muserve.replay import POLICIES, Span
from benchmarks.muserve.study import Setting, jobs_of, rows_of, study_of
from services.kit.config.models import DECODE_SENSITIVITY
from services.kit.hardware.clock_curve import RATIOS

SPAN: Final = Span()
LONG: Final = Span(length_s=3300.0)
"""53 minutes: some 900 requests of each model, enough to judge each by itself."""
QUICK: Final = Span(settle_s=60.0, length_s=180.0)
BASE: Final = Setting()
SLO_SCALES: Final = (0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
SCALES_RATE_RPS: Final = 2.0
"""Of the sweep over objectives: AlpaServe meets those of scale 2 at the highest clock, just."""

RATES_RPS: Final = (1.0, 2.0, 4.0, 6.0, 8.0)
RATES_SCALE: Final = 5.0
DEVICES: Final = (4, 6, 8, 10, 12, 14)
SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
SHARES_POLICIES: Final = tuple(each for each in POLICIES if each.name != "alpaserve_sched")
NETWORK_SCALES: Final = (1.5, 2.0, 3.0, 5.0)
LONG_DEVICES: Final = (8, 6)
LONG_POLICIES: Final = tuple(each for each in POLICIES if each.name in {"alpaserve", "muserve"})
TRACES: Final[tuple[arrivals.Name, ...]] = ("azure", "mooncake")

Sweeps = dict[str, list[Setting]]


def settings(*, quick: bool) -> Sweeps:
    """Return what to run, by sweep."""
    if quick:
        return {"slo_scale": [replace(BASE, slo_scale=each) for each in (2.0, 5.0)]}
    return {
        "slo_scale": [
            replace(BASE, trace=trace, slo_scale=each, rate_rps=SCALES_RATE_RPS)
            for trace in TRACES
            for each in SLO_SCALES
        ],
        "rate_rps": [
            replace(BASE, trace=trace, rate_rps=each, slo_scale=RATES_SCALE)
            for trace in TRACES
            for each in RATES_RPS
        ],
        "devices": [
            replace(BASE, trace=trace, devices=each) for trace in TRACES for each in DEVICES
        ],
        "insensitive": [replace(BASE, slo_scale=RATES_SCALE, insensitive=each) for each in SHARES],
    }


def measure(*, quick: bool = False) -> Report:
    """Run it all; quick: two objectives, for a shorter time.

    Raises:
        Skipped: The data is not there.
    """
    arrivals.trace("azure"), arrivals.trace("mooncake")
    span = QUICK if quick else SPAN
    wanted = settings(quick=quick)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = {
            sweep: [pool.submit(_rows, sweep, each, span) for each in todo]
            for sweep, todo in wanted.items()
        }
        found = {
            sweep: [row for future in todo for row in future.result()]
            for sweep, todo in futures.items()
        }
        long = [] if quick else _long(pool)
        real = _networks(pool, span, quick=quick)
    tables = [Figures(f"By {sweep.replace('_', ' ')}", rows) for sweep, rows in found.items()]
    bounds = [_bound(each) for each in (1.0, INSENSITIVE, DECODE_SENSITIVITY)]
    note = f"clocks {FLOOR:g} .. 1; no placement can save more active energy than this"
    tables.append(Figures("What the V100's curve allows", bounds, note))
    if long:
        tables.append(Figures("53 minutes, each model judged by itself", long))
    tables += real
    draw = None if quick else partial(_draw, found)
    return Report(tables, _document(found, long, bounds) | {"networks": real[1].rows}, draw)


def _bound(sensitivity: float) -> Row:
    """Return how much less active energy the curve lets work take, at the loop's clocks."""
    ratio = V100.thriftiest(sensitivity, [each for each in RATIOS if each >= FLOOR])
    return {
        "sensitivity": sensitivity,
        "energy_bound": 1 / V100.energy_ratio(sensitivity, ratio),
        "at_clock_ratio": ratio,
    }


def _long(pool: ProcessPoolExecutor) -> list[Row]:
    futures = [
        pool.submit(rows_of, replace(BASE, devices=each), LONG, LONG_POLICIES)
        for each in LONG_DEVICES
    ]
    return [row for future in futures for row in future.result()]


def measure_live() -> Report:
    """Run the small part that takes real time: two minutes."""
    rows = live.measure()
    note = "2 simulated A100s, agent and workers as processes; power is a GPU's mean, idle or not"
    return Report([Figures("Live", rows, note)], {"live": rows})


def _networks(pool: ProcessPoolExecutor, span: Span, *, quick: bool) -> list[Figures]:
    """Return what the real networks are, and how each policy serves them."""
    cut = tuple(pool.map(networks.cut, networks.names(quick=quick)))
    scales = NETWORK_SCALES[-1:] if quick else NETWORK_SCALES
    futures = [pool.submit(networks.rows_of, cut, scale, span) for scale in scales]
    rows = [row for future in futures for row in future.result()]
    note = f"{networks.DEVICES} V100s, {networks.LOAD:.0%} busy; requests of 512 items"
    return [
        Figures("Real networks", networks.described(cut), "per stage; the V100's roofline"),
        Figures("Real networks by SLO scale", rows, note.replace("%", " %")),
    ]


def _rows(sweep: str, setting: Setting, span: Span) -> list[Row]:
    return rows_of(setting, span, SHARES_POLICIES if sweep == "insensitive" else POLICIES)


def _document(
    found: dict[str, list[Row]], long: Sequence[Row], bounds: Sequence[Row]
) -> dict[str, Any]:
    """Return what mu-Serve saves, the figures by SLO scale and policy on Azure's, and all rows.

    Savings are medians over the settings in which AlpaServe is in time at the highest clock.
    """
    mine = list(_met(row for rows in found.values() for row in rows))
    over = {f"{row['devices']} GPUs": row["models_over_slo"] for row in long if _ours(row)}
    figures = ("power_w", "p99_over_slo", "serving_power_w", "active_saving", "serving_saving")
    document: dict[str, Any] = {
        "limit_active_x": max(each["energy_bound"] for each in bounds),
        "active_x": median(row["active_saving"] for row in mine) if mine else None,
        "serving_x": median(row["serving_saving"] for row in mine) if mine else None,
        "settings": len(mine),
        "models_over_slo": max(over.values(), default=None),
        "models_over_slo_by_gpus": over,
        "long": [dict(each) for each in long],
    }
    for row in found["slo_scale"]:
        if row["trace"] == "azure":
            policies = document.setdefault(f"slo_scale_{row['slo_scale']:g}", {})
            policies[row["policy"]] = {each: row[each] for each in figures}
    sweeps = {sweep: [dict(row) for row in rows] for sweep, rows in found.items()}
    return document | {"sweeps": sweeps, "bounds": [dict(each) for each in bounds]}


def _ours(row: Row) -> bool:
    return bool(row["policy"] == "muserve")


def _met(rows: Iterable[Row]) -> Iterable[Row]:
    """Yield mu-Serve's rows of the settings in which every model is in time under AlpaServe."""
    in_time = False
    for row in rows:
        if row["policy"] == "alpaserve":
            in_time = row["worst_p99_over_slo"] <= 1
        elif _ours(row) and in_time:
            yield row


def _draw(found: dict[str, list[Row]], folder: Path) -> None:
    for trace in TRACES:
        by_axis = {axis: list(_of(found[axis], trace)) for axis in plots.AXES}
        for name, figure, label in (
            ("fig7_power", "power_w", "mean power of a device, W"),
            ("fig7_serving_power", "serving_power_w", "power while it serves, W"),
            ("fig8_p99", "p99_over_slo", "p99 over objective"),
        ):
            plots.sweeps(folder / f"muserve_{name}_{trace}.png", by_axis, figure, label)
    plots.insensitivity(folder / "muserve_fig14a.png", found["insensitive"])
    setting = replace(BASE, trace="mooncake")
    study = study_of(setting, SPAN)
    courses = {
        each.name: study.run(each, jobs_of(setting, SPAN, each))[0]
        for each in POLICIES
        if each.name in {"muserve", "exact_planned"}
    }
    plots.follow(folder / "muserve_fig13.png", courses, SPAN.length_s)


def _of(rows: Iterable[Row], trace: str) -> Iterable[Row]:
    return (row for row in rows if row["trace"] == trace)


def _main() -> None:
    parser = options("muserve")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="run a small part only")
    part.add_argument("--live", action="store_true", help="run two minutes with processes instead")
    arguments = parser.parse_args()
    try:
        report = measure_live() if arguments.live else measure(quick=arguments.quick)
    except Skipped as reason:
        Console(width=WIDTH).print(f"muserve: skipped, {reason}", highlight=False)
        return
    publish("muserve", report, arguments)


if __name__ == "__main__":
    _main()
