"""Adds models to a deployment file and removes them; a suite that runs here reloads the file."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import typer
from rich.console import Console

from services.cli.client import connected
from services.cli.init.devices import find_devices
from services.cli.init.document import CORE_BATCHES, model_section
from services.cli.init.run import Options, new_model, timed
from services.cli.plan.settings import change
from services.cli.reasons import say_holds
from services.cli.yaml_file import edited, written
from services.kit.config.loader import load
from services.kit.errors import AlreadyExists, FailedPrecondition, NotFound, Unavailable
from services.local.up.running import request_reload


async def add(config: Path, logs: Path, options: Options, *, dry_run: bool) -> None:
    """Add a model to a deployment file, and reload a suite that runs here.

    Args:
        config: Deployment file; its comments are kept.
        logs: Folder of the suite's logs.
        options: The model's files and how to measure them.
        dry_run: Measure, check and print only, and the plan that would follow.

    Raises:
        AlreadyExists: The deployment has a model of this name.
        ServiceError: The model cannot be served as it is.
    """
    console = Console()
    with edited(config, dry_run=dry_run) as document, console.status("Reading the model"):
        said = partial(console.print, soft_wrap=True)
        name, model = new_model(options, config.parent, said)
        if name in document["models"]:
            raise AlreadyExists(f"models.{name} exists in {config}; --name gives another name")
        cores = _cores(document["nodes"])
        if cores is not None and not dry_run:
            sizes = (document.get("planner") or {}).get("batch_sizes") or CORE_BATCHES
            model = timed(name, model, options.data, cores, sizes, config.parent, said)
        document["models"][name] = model_section(model, config.parent)
        added = written({"models": {name: document["models"][name]}})
    if dry_run:
        for each in model.variants.values():
            if options.pytorch is not None and each.network is not None:
                each.network.file.unlink()  # exported to be measured
        typer.echo(f"Would add to {config}:\n\n{added}")
        await _show_plan(config, {f"models.{name}": document["models"][name]})
        return
    await _say(config, f"added models.{name} to {config}", reloaded=request_reload(logs))


def _cores(nodes: Mapping[str, Any]) -> int | None:
    """Return how many cores of this machine all nodes have; None: a node has others, or GPUs."""
    found = {(each.get("cpu") or {}).get("cores") for each in nodes.values()}
    if len(found) != 1 or not isinstance(cores := found.pop(), int):
        return None
    return cores if cores <= find_devices().cores else None


async def remove(config: Path, logs: Path, name: str, *, dry_run: bool) -> None:
    """Remove a model from a deployment file, and reload a suite that runs here.

    Args:
        config: Deployment file.
        logs: Folder of the suite's logs.
        name: The model.
        dry_run: Print the plan that would follow only.

    Raises:
        NotFound: The deployment has no such model.
        FailedPrecondition: It has no other.
    """
    with edited(config, dry_run=dry_run) as document:
        models = document["models"]
        if name not in models:
            known = ", ".join(models)
            raise NotFound(f"no model {name!r} in {config}; it has {known}")
        if len(models) == 1:
            raise FailedPrecondition(f"{name} is the only model of {config}: stop the suite")
        del models[name]
    if dry_run:
        await _show_plan(config, {f"models.{name}": None})
        return
    await _say(config, f"removed models.{name} from {config}", reloaded=request_reload(logs))


async def _show_plan(config: Path, values: Mapping[str, Any]) -> None:
    """Print the plan that would follow; without a planner, the reason why there is none."""
    try:
        await change(config, values, (), dry_run=True, as_json=False)
    except (FailedPrecondition, Unavailable) as error:
        typer.echo(f"The plan that would follow is not known: {error.message}")


async def _say(config: Path, done: str, *, reloaded: bool) -> None:
    then = (
        "the suite that runs here takes it over; `cinquefoil status` shows when it has"
        if reloaded
        else f"`cinquefoil up --config {quote(str(config))}` serves it; services that run "
        "elsewhere take it over at SIGHUP"
    )
    typer.echo(f"{done}; {then}")
    async with connected(load(config)) as clients:
        await say_holds(clients)
