"""Plans capacity from files and shows the plan; describes the strategies."""

import inspect
import time
from functools import partial
from pathlib import Path
from typing import Any

from services.cli.console.output import show, table, working
from services.cli.plan.render_solution import Solution, document, tables
from services.kit.errors import InvalidArgument
from services.planner.capacity.fleet_sizing import Terms, lay_out, pose
from services.planner.capacity.input_files import read_profiles, read_scenario, read_services
from services.planner.core.strategies import REGISTRY
from services.simulator.device import gpu_type


def show_solution(  # noqa: PLR0913 - the options of the command
    profiles: Path,
    demand: Path | tuple[Path, Path, int],
    gpu: str,
    strategy: str,
    terms: Terms,
    *,
    as_json: bool,
) -> bool:
    """Print a plan; return whether the plan serves the whole demand.

    Args:
        profiles: Folder of measured tables.
        demand: Services in our format; or rates, latencies and their row, 1 for the first, in
            ParvaGPU's format.
        gpu: GPU type.
        strategy: Name of the strategy.
        terms: Objective and resources of the plan.
        as_json: Print JSON instead of tables.

    Raises:
        InvalidArgument: A file is wrong, or there is no such strategy.
        NotFound: There is no such GPU type.
    """
    if strategy not in REGISTRY:
        known = ", ".join(sorted(REGISTRY))
        raise InvalidArgument(f"no strategy {strategy!r}; there are {known}", field="strategy")
    gpu_kind, tables_of = gpu_type(gpu), read_profiles(profiles, gpu)
    if isinstance(demand, Path):
        services = read_services(demand)
    else:
        services = read_scenario(*demand, tuple(tables_of))
    problem = pose(services, tables_of, gpu_kind, terms)
    started_s = time.perf_counter()
    with working(f"{strategy} solves"):
        found = REGISTRY[strategy](problem)
    decided_s = time.perf_counter() - started_s
    solution = Solution(strategy, lay_out(problem, found), decided_s)
    show(document(solution), lambda: tables(solution), as_json=as_json)
    return not solution.unserved_rps


def show_strategies(*, as_json: bool) -> None:
    """Print the first line of each strategy's docstring."""
    said = [(name, _summary(strategy)) for name, strategy in sorted(REGISTRY.items())]
    show(
        [{"name": name, "summary": summary} for name, summary in said],
        lambda: table("", "strategy", "what it does", rows=said),
        as_json=as_json,
    )


def _summary(strategy: Any) -> str:
    made = strategy.func if isinstance(strategy, partial) else strategy
    return (inspect.getdoc(made) or "").partition("\n")[0]
