"""MIAD clock scaling (mu-Serve, ATC'24, section 3.4) on a simulated V100.

python -m benchmarks.miad [--json FILE] [--plots [DIR]] [--quick]

In virtual time with the agent's own governor, then live with agent and workers as processes
(--quick: virtual only). Power is the mean over time: `board` with the idle power of the GPU, as its
sensor shows it; `active` without.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import Figures, Report, Row, main
from benchmarks.miad import live, plots
from benchmarks.miad.setting import GPU, LARGE, PERCENTILE, SLO_S, TABLE, Served, served
from benchmarks.miad.virtual import DEFAULT, MIAD, PRINTED, Course, Policy, Rate, run

HALF, LOW, HIGH = 0.5, 0.175, 0.7
"""Loads over what the highest clock can serve; the planner provides for HIGH at most."""

SETTLE_S, LENGTH_S = 60.0, 660.0
STEPS = 20
LIVE_SETTLE_S, LIVE_S, LIVE_AFTER_S = 45.0, 15.0, 8.0
BIN_S = 0.1
CALM_S = 3.0
"""Latency is back once no bin has been late for so long."""


def steady(known: Served, policy: Policy, share: float, slo_s: float) -> dict[str, float]:
    """Serve a steady load for ten minutes; return power, latency and moves."""
    rate_rps = share * known.capacity_rps
    course = run(known, lambda _: rate_rps, LENGTH_S, replace(policy, slo_s=slo_s))
    active_w = course.active_power_w(SETTLE_S, LENGTH_S)
    latency_s = float(np.percentile(course.latencies_s(SETTLE_S, LENGTH_S), PERCENTILE))
    return {
        "active_w": active_w,
        "board_w": active_w + TABLE.idle_power_w,
        "p99_over_slo": latency_s / slo_s,
        "last_mhz": course.clocks[-1][1],
        "ups": course.moves["up"],
    }


def best_fixed(known: Served, share: float, slo_s: float) -> dict[str, float]:
    """Return the clock of least power that keeps the objective, held throughout: the bound."""
    clocks = TABLE.clocks_mhz[::4]
    found = [steady(known, Policy(ceiling_mhz=mhz), share, slo_s) for mhz in clocks]
    return min((each for each in found if each["p99_over_slo"] <= 1), key=lambda e: e["active_w"])


def compared(known: Served, share: float, batches: int) -> list[dict[str, Any]]:
    """Return one row per policy, on one load and an objective of so many full batches."""
    slo_s = round(batches * known.full_s, 1)
    segment = f"{known.processes} x {known.batch_size}"
    policies: dict[str, Callable[[], dict[str, float]]] = {
        name: partial(steady, known, policy, share, slo_s)
        for name, policy in {"default clock": DEFAULT, "alg. 3": PRINTED, "miad": MIAD}.items()
    }
    policies["best fixed clock"] = partial(best_fixed, known, share, slo_s)
    found = {name: measure() for name, measure in policies.items()}
    base = found["default clock"]
    return [
        {"segment": segment, "load": share, "slo_s": slo_s, "policy": name}
        | row
        | {f"{kind}_ratio": base[f"{kind}_w"] / row[f"{kind}_w"] for kind in ("active", "board")}
        for name, row in found.items()
    ]


def recovery_s(answers: list[tuple[float, float]], step_s: float, until_s: float) -> float:
    """Return how long after a step of the load requests were late, s."""
    late_s = 0.0
    for start_s in np.arange(step_s, until_s, BIN_S):
        here = [latency for at, latency in answers if start_s <= at < start_s + BIN_S]
        since_s = float(start_s) - step_s
        if since_s > late_s + CALM_S:
            break
        if here and np.percentile(here, PERCENTILE) > SLO_S:
            late_s = since_s + BIN_S
    return late_s


def step_at(known: Served, at_s: float) -> Rate:
    """Return a load that quadruples."""
    return lambda now_s: (HIGH if now_s >= at_s else LOW) * known.capacity_rps


def recoveries(known: Served) -> list[float]:
    """Return the recovery after steps at many phases of the loop, s."""
    found = []
    for seed in range(STEPS):
        at_s = 90.0 + seed * 0.137
        course = run(known, step_at(known, at_s), at_s + 12, MIAD, seed=seed)
        found.append(recovery_s(course.answers, at_s, at_s + 12))
    return found


async def lived(known: Served) -> dict[str, float]:
    """Measure the same live: half the load with and without the loop, then the step."""
    rate_rps = HALF * known.capacity_rps
    with TemporaryDirectory() as folder:
        async with live.node(Path(folder), rate_rps, loop=False) as node:
            await asyncio.sleep(2)
            default_w = await node.power_w(LIVE_S)
    with TemporaryDirectory() as folder:
        async with live.node(Path(folder), rate_rps, loop=True) as node:
            await asyncio.sleep(LIVE_SETTLE_S)
            since_s = time.monotonic()
            miad_w = await node.power_w(LIVE_S)
            latencies_s = node.latencies_s(since_s, time.monotonic())
            clock_mhz = node.clocks[-1][1]
            node.rate_rps = LOW * known.capacity_rps
            await asyncio.sleep(LIVE_SETTLE_S)
            low_mhz, step_s = node.clocks[-1][1], time.monotonic()
            node.rate_rps = HIGH * known.capacity_rps
            await asyncio.sleep(LIVE_AFTER_S)
            recovered_s = recovery_s(node.answers, step_s, step_s + LIVE_AFTER_S)
    idle_w = TABLE.idle_power_w
    return {
        "board_ratio": default_w / miad_w,
        "active_ratio": (default_w - idle_w) / (miad_w - idle_w),
        "p99_over_slo": float(np.percentile(latencies_s, PERCENTILE)) / SLO_S,
        "clock_mhz": clock_mhz,
        "low_clock_mhz": low_mhz,
        "recovery_s": recovered_s,
    }


def measure(*, with_live: bool = True) -> Report:
    """Run it all; the last rows, of the large segment, are the ones that the document names."""
    known = served()
    rows: list[Row] = [
        row
        for segment, share, batches in (
            (known, HALF, 2),
            (known, HALF, 3),
            (known, HALF, 4),
            (known, 2 * LOW, 3),
            (known, HIGH, 3),
            (served(*LARGE), HALF, 4),
        )
        for row in compared(segment, share, batches)
    ]
    after_s = recoveries(known)
    step = {"steps": len(after_s), "median_s": median(after_s), "worst_s": max(after_s)}
    tables = [
        Figures(f"Ten minutes of a steady load on a {GPU}", rows, "ratios: over the default clock"),
        Figures("A load that quadruples: time until p99 is back in its objective", [step]),
    ]
    mine = next(r for r in reversed(rows) if r["policy"] == "miad")
    document = {
        "power_ratio": {"board": mine["board_ratio"], "active": mine["active_ratio"]},
        "p99_over_slo": mine["p99_over_slo"],
        "cases": cases(rows),
        "recovery_s": step["worst_s"],
        "steady": rows,
        "step": step,
    }
    if with_live:
        document["live"] = asyncio.run(lived(known))
        tables.append(Figures("Live: agent and workers as processes", [document["live"]]))
    return Report(tables, document, partial(_draw, known))


def cases(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what the loop saves of active power in each case, and the most that a clock could."""
    best = iter([row for row in rows if row["policy"] == "best fixed clock"])
    return [
        {
            "segment": row["segment"],
            "load": row["load"],
            "slo_s": row["slo_s"],
            "active_x": row["active_ratio"],
            "limit_x": next(best)["active_ratio"],
            "p99_ratio": row["p99_over_slo"],
        }
        for row in rows
        if row["policy"] == "miad"
    ]


def _draw(known: Served, folder: Path) -> None:
    shares = (LOW, HIGH, HALF, LOW, HIGH)
    length_s = 40.0 * len(shares)

    def rate_rps(now_s: float) -> float:
        return shares[min(int(now_s // 40), len(shares) - 1)] * known.capacity_rps

    course: Course = run(known, rate_rps, length_s, MIAD)
    plots.follow(folder / "miad_fig13.png", course, rate_rps, length_s)


if __name__ == "__main__":
    main("miad", measure, quick=partial(measure, with_live=False))
