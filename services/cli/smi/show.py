"""Surveys a node's GPUs once, and prints a summary or one list."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from services.cli.smi import nvidia
from services.cli.smi.render import summary
from services.gpuagent.survey import survey
from services.kit.config.loader import load

_LISTS = (nvidia.gpus_and_devices, nvidia.gpu_instances, nvidia.profiles, nvidia.placements)
"""What `nvidia-smi` prints with -L, -lgi, -lgip and -lgipp."""


def show(config: Path, node: str, listing: int | None, *, as_json: bool) -> None:
    """Print the GPUs of a node.

    Args:
        config: Deployment file.
        node: The node's name, one of the file's.
        listing: Print this one of `_LISTS`; None: a summary.
        as_json: Print everything as JSON instead.

    Raises:
        ServiceError: The GPUs cannot be read.
    """
    settings = load(config).nodes[node]
    gpus = survey(node, settings)
    if as_json:
        typer.echo(json.dumps({"node": node, "gpus": [asdict(gpu) for gpu in gpus]}, indent=2))
    elif listing is not None:
        typer.echo("\n".join(_LISTS[listing](gpus)))
    else:
        Console().print(summary(node, gpus, simulated=settings.simulated is not None))
