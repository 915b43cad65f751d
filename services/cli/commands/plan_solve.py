"""`cinquefoil plan solve`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import Json


class Aim(StrEnum):
    """What a good plan is."""

    FEWEST_GPUS = "fewest-gpus"
    INFADAPTER = "infadapter"


def solve(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    profiles: Annotated[Path, typer.Option(help="Folder of measured tables, one per model.")],
    services: Annotated[
        Path | None,
        typer.Option(help="What to serve, CSV or YAML: model, rate_rps, latency_s."),
    ] = None,
    rates: Annotated[
        Path | None, typer.Option(help="Or ParvaGPU's format: requests/s, a row per scenario ...")
    ] = None,
    latencies: Annotated[
        Path | None, typer.Option(help="... and latency objectives, ms, a row per scenario.")
    ] = None,
    scenario: Annotated[int, typer.Option(help="Row of --rates and --latencies, from 1.")] = 1,
    objective: Annotated[Aim, typer.Option(help="What a good plan is.")] = Aim.FEWEST_GPUS,
    strategy: Annotated[str, typer.Option(help="exact, parvagpu, annealing, ...")] = "exact",
    gpu: Annotated[str, typer.Option(help="GPU type that was measured.")] = "a100-80gb",
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="Number of GPUs available. Default: as many as needed."),
    ] = None,
    latency_share: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="Share of the latency objective that a batch may take."),
    ] = 0.5,
    max_utilisation: Annotated[
        float, typer.Option(min=0.01, max=1, help="Maximum share of a segment's throughput to use.")
    ] = 1.0,
    max_processes: Annotated[
        int, typer.Option(min=1, help="Maximum number of processes per segment.")
    ] = 5,
    time_limit: Annotated[
        float, typer.Option(min=0.01, help="Time limit of the search, seconds.")
    ] = 10.0,
    json: Json = False,
) -> None:
    """Plan capacity from measured profiles: which segments on how many GPUs, without a suite.

    Reads ParvaGPU's files (--rates, --latencies) or a list of services (--services). Exit status 1
    if a file is invalid, or if the GPUs cannot serve the whole demand.
    """
    from services.cli.plan.solve import show_solution
    from services.kit.config import Goals
    from services.planner.capacity.fleet_sizing import Terms

    demand: Path | tuple[Path, Path, int]
    if services is not None and rates is None and latencies is None:
        demand = services
    elif services is None and rates is not None and latencies is not None:
        demand = rates, latencies, scenario
    else:
        raise typer.BadParameter("give --services, or both --rates and --latencies")
    terms = Terms(
        goals=Goals.model_validate({"clover": 0, objective.value.replace("-", "_"): 1}),
        gpus=gpus,
        latency_share=latency_share,
        max_utilisation=max_utilisation,
        max_processes=max_processes,
        time_limit_s=time_limit,
    )
    if not show_solution(profiles, demand, gpu, strategy, terms, as_json=json):
        raise typer.Exit(1)
