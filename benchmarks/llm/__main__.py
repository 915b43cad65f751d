"""Run every policy on every trace; see the package."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.harness import Figures, Report, Skipped, in_processes, options, publish
from benchmarks.llm import disaggregation, heldout, live, night, overhead, prefixes
from benchmarks.llm.bound import bound_j_per_token
from benchmarks.llm.policies import GPUS, policies
from benchmarks.llm.policies import run as run_window
from benchmarks.llm.traces import traces

WINDOWS: Final = 4
_KEPT_AT_WORST: Final = frozenset({"ttft_p99_s", "tpot_p99_s", "gpus", "lost"})


def study(job: tuple[int, float, int]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a trace, and its bound.

    Args:
        job: Index of the trace, share of the usual span of its windows, and their number.
    """
    which, scale, windows = job
    trace = traces(scale, windows)[which]
    reported = trace.windows[1:]
    rows = [
        {"trace": trace.name, "policy": name}
        | _together([run_window(window, trace.limits, setup) for window in reported])
        | {"chosen": setup.chosen}
        for name, setup in policies(trace.windows[0], trace.limits).items()
    ]
    bounds = [bound_j_per_token(window, trace.limits, GPUS) for window in reported]
    base_j = next(row["j_per_token"] for row in rows if row["policy"] == "least requests")
    bound_j = float(np.mean(bounds))
    for row in rows:
        row["saved"] = 1 - row["j_per_token"] / base_j
        row["of_bounds_saving"] = (base_j - row["j_per_token"]) / (base_j - bound_j)
    return rows, {trace.name: {"j_per_token": bound_j, "saved": 1 - bound_j / base_j}}


def _together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return figures of several windows: means; of the tails and the GPUs, the greatest."""
    together: dict[str, Any] = {}
    for key in found[0]:
        values = [each[key] for each in found]
        together[key] = max(values) if key in _KEPT_AT_WORST else float(np.mean(values))
        if key == "attainment":
            together["least_attainment"] = min(values)
    return together


def measure(*, quick: bool) -> Report:
    """Run every policy on every trace."""
    scale, windows = (0.2, 2) if quick else (1.0, WINDOWS)
    found = in_processes(study, [(which, scale, windows) for which in range(3)])
    rows = [row for rows, _ in found.values() for row in rows]
    bounds = {name: bound for _, each in found.values() for name, bound in each.items()}
    said = ", ".join(f"{name}: {each['j_per_token']:.3g}" for name, each in bounds.items())
    title = f"Eight billion parameters on {GPUS} H100, {windows - 1} windows of each trace"
    return Report(
        [Figures(title, rows, f"Bound, J per token: {said}")], {"traces": rows, "bound": bounds}
    )


PARTS: Final[Mapping[str, Callable[..., Report]]] = {
    "traces": measure,
    "heldout": heldout.measure,
    "prefixes": prefixes.measure,
    "disaggregation": disaggregation.measure,
    "live": live.measure,
    "night": night.measure,
    "overhead": overhead.measure,
}
"""By name; each takes `quick`."""


def main() -> None:
    """Run one part, or all."""
    parser = options("llm")
    parser.add_argument("--part", choices=sorted(PARTS), help="run this part only")
    parser.add_argument("--quick", action="store_true", help="run a small part of each")
    usual = heldout.Options()
    parser.add_argument("--windows", default="", help="heldout: folder of CSV files")
    parser.add_argument(
        "--zones", default=",".join(usual.zones), help="heldout: two recorded grids"
    )
    parser.add_argument("--start", default=usual.start, help="heldout: time of the grids, UTC")
    parser.add_argument("--boot", type=float, default=usual.boot_s, help="heldout: of a server, s")
    parser.add_argument("--ttft", type=float, default=usual.ttft_s, help="heldout: objective, s")
    parser.add_argument("--tpot", type=float, default=usual.tpot_s, help="heldout: objective, s")
    arguments = parser.parse_args()
    chosen = heldout.Options(
        arguments.windows,
        tuple(arguments.zones.split(",")),
        arguments.start,
        arguments.boot,
        arguments.ttft,
        arguments.tpot,
    )
    run = dict(PARTS) | {"heldout": partial(heldout.measure, options=chosen)}
    wanted = [arguments.part] if arguments.part else list(PARTS)
    reports = []
    for name in wanted:
        try:
            reports.append(run[name](quick=arguments.quick))
        except Skipped as reason:
            print(f"llm, {name}: skipped, {reason}")
    found: dict[str, Any] = {}
    for report in reports:
        found |= report.document or {}
    tables = [table for report in reports for table in report.tables]
    publish("llm", Report(tables, found), arguments)


if __name__ == "__main__":
    main()
