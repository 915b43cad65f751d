"""`cinquefoil observe`: energy and carbon of what runs on this machine now."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json


async def observe(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    minutes: Annotated[
        float, typer.Option(min=0.05, max=4320, help="Time to observe; ctrl-c reports at once.")
    ] = 10.0,
    zone: Annotated[
        str,
        typer.Option(
            help="Zone of the electricity: of the deployment file, GB, or one of Electricity Maps "
            "(ELECTRICITY_MAPS_API_KEY)."
        ),
    ] = "",
    intensity: Annotated[
        float | None,
        typer.Option(min=0, max=5000, help="Its carbon intensity, gCO2e/kWh, in place of a zone."),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Metrics page of an inference server, host:port or URL. Others are found on the "
            "ports of processes on GPUs.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.html and report.json.", file_okay=False)
    ] = None,
    every: Annotated[
        float, typer.Option(min=0, help="Minutes between two reports in --report; 0: one, last.")
    ] = 0.0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Report energy and carbon of what runs on this machine's GPUs now, and what could be saved.

    Nothing is changed, started or restarted, and no deployment file is needed. vLLM, SGLang,
    llama.cpp, TGI, Triton, Ray Serve and KServe are recognised by their metrics; of any other
    process the energy alone is known.
    """
    from services.cli.observe.run import Options
    from services.cli.observe.run import observe as work

    if every and report is None:
        raise typer.BadParameter("needs --report", param_hint="--every")
    if zone and intensity is not None:
        raise typer.BadParameter("give one of --zone and --intensity", param_hint="--intensity")
    await work(
        Options(
            seconds=60 * minutes,
            zone=zone,
            intensity=intensity,
            servers=tuple(server or ()),
            config=config,
            every_s=60 * every,
            out=report,
            as_json=json,
        )
    )
