"""Plans capacity from files and shows what came out."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from services.cli.plan.render_solution import Solution, document, tables
from services.gpuagent.core import gpu_types
from services.kit.errors import InvalidArgument
from services.kit.mig import Geometry
from services.planner.capacity.fleet_sizing import Service, Terms, lay_out, pose
from services.planner.capacity.input_files import read_profiles, read_scenario, read_services
from services.planner.core.model import GpuType
from services.planner.core.strategies import REGISTRY, Strategy


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line says.

    Attributes:
        profiles: Folder of measured tables.
        services: Services in our format, or None.
        rates, latencies: Else the services in ParvaGPU's format.
        scenario: Their row, 1 for the first.
        gpu: GPU type.
        strategy: Who decides.
    """

    profiles: Path
    services: Path | None
    rates: Path | None
    latencies: Path | None
    scenario: int
    gpu: str
    strategy: str


def show_solution(request: Request, terms: Terms, *, as_json: bool) -> bool:
    """Print a plan; return whether the plan serves the whole demand.

    Raises:
        InvalidArgument: A file is wrong, or there is no such strategy.
        NotFound: There is no such GPU type.
    """
    gpu, strategy = gpu_type(request.gpu), _strategy(request.strategy)
    profiles = read_profiles(request.profiles, request.gpu)
    problem = pose(_services(request, tuple(profiles)), profiles, gpu, terms)
    started_s = time.perf_counter()
    found = strategy(problem)
    decided_s = time.perf_counter() - started_s
    solution = Solution(request.strategy, lay_out(problem, found), decided_s)
    console = Console()
    if as_json:
        console.print_json(json.dumps(document(solution)))
    else:
        console.print(tables(solution))
    return not solution.unserved_rps


def _services(request: Request, models: tuple[str, ...]) -> tuple[Service, ...]:
    if request.services is not None:
        return read_services(request.services)
    if request.rates is None or request.latencies is None:
        raise InvalidArgument("give services, or both rates and latencies", field="rates")
    return read_scenario(request.rates, request.latencies, request.scenario, models)


def _strategy(name: str) -> Strategy:
    if name not in REGISTRY:
        known = ", ".join(sorted(REGISTRY))
        raise InvalidArgument(f"no strategy {name!r}; there are {known}", field="strategy")
    return REGISTRY[name]


def gpu_type(name: str) -> GpuType:
    """Return a GPU type as its agent would report it.

    Raises:
        NotFound: There is none.
    """
    table = gpu_types.load(name)
    kinds = tuple(kind for kind in table.geometry.kinds if "+" not in kind.name)
    return GpuType(
        name=name,
        geometry=Geometry(table.geometry.memory_slices, kinds),
        sm_count=table.sm_count,
        idle_power_w=table.idle_power_w,
        max_power_w=table.max_power_w,
        max_clock_mhz=table.max_clock_mhz,
    )
