"""Surveys a node's GPUs once, and prints a summary or one list."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import typer
from rich.console import Console

from services.cli.smi import nvidia
from services.cli.smi.render import summary
from services.gpuagent.survey import SurveyedGpu, survey
from services.kit.config.loader import load

Lines = Callable[[Iterable[SurveyedGpu]], Iterator[str]]


class Listing(StrEnum):
    """A list that `nvidia-smi` prints with this option."""

    DEVICES = "-L"
    INSTANCES = "-lgi"
    PROFILES = "-lgip"
    PLACEMENTS = "-lgipp"


_LINES: Mapping[Listing, Lines] = MappingProxyType(
    {
        Listing.DEVICES: nvidia.gpus_and_devices,
        Listing.INSTANCES: nvidia.gpu_instances,
        Listing.PROFILES: nvidia.profiles,
        Listing.PLACEMENTS: nvidia.placements,
    }
)


def show(config: Path, node: str, listing: Listing | None, *, as_json: bool) -> None:
    """Print the GPUs of a node.

    Args:
        config: Deployment file.
        node: The node's name, one of the file's.
        listing: Print this list of `nvidia-smi`'s; None: a summary.
        as_json: Print everything as JSON instead.

    Raises:
        ServiceError: The GPUs cannot be read.
    """
    settings = load(config).nodes[node]
    gpus = survey(node, settings)
    if as_json:
        typer.echo(json.dumps({"node": node, "gpus": [asdict(gpu) for gpu in gpus]}, indent=2))
    elif listing is not None:
        typer.echo("\n".join(_LINES[listing](gpus)))
    else:
        Console().print(summary(node, gpus, simulated=settings.simulated is not None))
