"""`cinquefoil gpuagent ...`: the agent of a node, and what an operator asks of its GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands import gpuagent_apply, gpuagent_profile, gpuagent_sensitivity
from services.cli.commands.options import DEPLOYMENT, Config, Json
from services.cli.commands.serve import NodeName, named_node, serve_gpuagent

app = typer.Typer(
    name="gpuagent", help="Makes a node's GPUs as the plan says.", no_args_is_help=True
)
app.command("serve")(serve_gpuagent)
app.command()(gpuagent_apply.export)
app.command()(gpuagent_apply.diff)
app.command()(gpuagent_apply.apply)
app.command()(gpuagent_profile.profile)
app.command()(gpuagent_sensitivity.sensitivity)


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
        raise typer.BadParameter("ask for one list, or --json")
    listing = next((kind for kind, wanted in zip(Listing, asked, strict=True) if wanted), None)
    show(config, named_node(node, config), listing, as_json=json)
