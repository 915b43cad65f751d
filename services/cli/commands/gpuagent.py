"""`cinquefoil gpuagent ...`: the agent of a node, and its GPUs for an operator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands import gpuagent_profile, gpuagent_sensitivity
from services.cli.commands.options import DEPLOYMENT, Config, Json
from services.cli.commands.serve import NodeName, named_node, serve_gpuagent

app = typer.Typer(
    name="gpuagent",
    help="Runs a node's segments and configures its GPUs as planned.",
    no_args_is_help=True,
)
app.command("serve")(serve_gpuagent)
app.command()(gpuagent_profile.profile)
app.command()(gpuagent_sensitivity.sensitivity)

DIFFERS = 3
"""Exit status of `diff` where there is something to do."""

File = Annotated[
    Path, typer.Argument(help="Desired state of the GPUs; `gpuagent export` writes one.")
]


@app.command()
async def export(config: Config = DEPLOYMENT, node: NodeName = "") -> None:
    """Print a node's slices, segments and clocks as a file that `gpuagent apply` reads."""
    from services.cli.desired import agent_calls

    await agent_calls.export(config, named_node(node, config))


@app.command()
async def diff(
    file: File, config: Config = DEPLOYMENT, node: NodeName = "", json: Json = False
) -> None:
    """Print the steps from the present state to FILE's; exit status 3 where there are any."""
    from services.cli.desired import agent_calls

    name = named_node(node, config)
    if await agent_calls.diff(config, name, file, as_json=json):
        raise typer.Exit(DIFFERS)


@app.command()
async def apply(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    file: File,
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps only.")] = False,
    allow_gap: Annotated[
        bool, typer.Option("--allow-gap", help="A model may have less capacity for a while.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring GPUs to the state in FILE, all of it or nothing; what may stay is not touched.

    If a step fails, or on ctrl-c, all steps are undone. A running planner re-plans from what it
    finds: pin its plan or stop it first.
    """
    from services.cli.desired import agent_calls

    name = named_node(node, config)
    if dry_run:
        await agent_calls.diff(config, name, file, as_json=json)
    else:
        await agent_calls.apply(config, name, file, allow_gap=allow_gap, as_json=json)


@app.command("smi")
def smi(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    gpus: Annotated[
        bool, typer.Option("-L", "--list-gpus", help="As nvidia-smi -L: GPUs and MIG devices.")
    ] = False,
    instances: Annotated[
        bool,
        typer.Option("-lgi", "--list-gpu-instances", help="As nvidia-smi mig -lgi."),
    ] = False,
    profiles: Annotated[
        bool,
        typer.Option("-lgip", "--list-gpu-instance-profiles", help="As nvidia-smi mig -lgip."),
    ] = False,
    placements: Annotated[
        bool,
        typer.Option(
            "-lgipp",
            "--list-gpu-instance-possible-placements",
            help="As nvidia-smi mig -lgipp.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show a node's GPUs, real or simulated: clock, power, energy, slices and their segments.

    Reads NVML itself and changes nothing; the agent need not run. Run it on the node.
    """
    from services.cli.smi.show import Listing, show

    asked = (gpus, instances, profiles, placements)
    if sum((*asked, json)) > 1:
        raise typer.BadParameter("choose one list, or --json")
    listing = next((kind for kind, wanted in zip(Listing, asked, strict=True) if wanted), None)
    show(config, named_node(node, config), listing, as_json=json)
