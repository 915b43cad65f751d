"""`cinquefoil gpuagent export|diff|apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import Config, Json
from services.cli.commands.serve import NodeName, named_node

DIFFERS = 3
"""Exit status of `diff` where there is something to do."""

File = Annotated[Path, typer.Argument(help="How the GPUs shall be; `gpuagent export` writes one.")]


def export(config: Config = None, node: NodeName = "") -> None:
    """Print a node's slices, segments and clocks as a file that `gpuagent apply` reads."""
    from services.cli.desired import agent_calls
    from services.cli.runner import run
    from services.kit.config.loader import config_path

    run(agent_calls.export(config_path(config), named_node(node, config)))


def diff(file: File, config: Config = None, node: NodeName = "", json: Json = False) -> None:
    """Print the steps from what is to what FILE asks for; exit status 3 where there are any."""
    from services.cli.desired import agent_calls
    from services.cli.runner import run
    from services.kit.config.loader import config_path

    name = named_node(node, config)
    if run(agent_calls.diff(config_path(config), name, file, as_json=json)):
        raise typer.Exit(DIFFERS)


def apply(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    file: File,
    config: Config = None,
    node: NodeName = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps only.")] = False,
    allow_gap: Annotated[
        bool, typer.Option("--allow-gap", help="A model may serve with less for a while.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring GPUs to what FILE asks for, all of it or nothing; what may stay is not touched.

    Where a step fails, everything done is undone; so it is on ctrl-c. A planner that runs plans
    on from what it finds: pin or stop it first.
    """
    from services.cli.desired import agent_calls
    from services.cli.runner import run
    from services.kit.config.loader import config_path

    path, name = config_path(config), named_node(node, config)
    if dry_run:
        run(agent_calls.diff(path, name, file, as_json=json))
    else:
        run(agent_calls.apply(path, name, file, allow_gap=allow_gap, as_json=json))
