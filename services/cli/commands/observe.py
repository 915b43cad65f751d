"""`cinquefoil observe`: energy and carbon of what runs on this machine now."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json


async def observe(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    minutes: Annotated[
        float, typer.Option(min=0.05, max=86400, help="Time to observe; ctrl-c reports at once.")
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
    store: Annotated[
        Path | None,
        typer.Option(
            help="File of observations, for `cinquefoil advise`: five weeks, by five minutes.",
            dir_okay=False,
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Serve metrics of plans in shadow there; needs --store."
        ),
    ] = "",
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
    if metrics and store is None:
        raise typer.BadParameter("needs --store", param_hint="--metrics")
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
            store=store,
            metrics=metrics,
            out=report,
            as_json=json,
        )
    )


def advise(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    store: Annotated[
        Path,
        typer.Argument(
            help="File of observations: of `observe --store`, or an agent's "
            "STATE_DIR/NODE/observations.db.",
            dir_okay=False,
        ),
    ],
    days: Annotated[int, typer.Option(min=1, max=35, help="Newest days.")] = 7,
    intensity: Annotated[
        float | None,
        typer.Option(min=0, max=5000, help="Carbon intensity where none was recorded, gCO2e/kWh."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Plan again for days that have a result.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Folder for advice.html and advice.json.", file_okay=False)
    ] = None,
    json: Json = False,
) -> None:
    """Report, day by day, what plans would have saved with servers that Cinquefoil only observes.

    Profiles are learnt from the servers' own metrics and the GPUs' meters; the planner then decides
    for the recorded load in virtual time. Nothing is changed. A day takes up to a minute.
    """
    from services.cli.observe.days import report as work

    work(store, days, intensity=intensity, again=again, out=report, as_json=json)
