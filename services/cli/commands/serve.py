"""`cinquefoil <service> serve`: one service in this process."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.commands.options import Config

WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True)]
NodeName = Annotated[str, typer.Option("--node", help="Default: the file's only node.")]

_EXTRAS = ("predictor", "train")
"""What a plain `pip install cinquefoil` leaves out; images of one service leave out more."""

_DOES = {
    "planner": "Decides which variant runs on which slice, and rolls it out.",
    "router": "Answers inference requests (Open Inference Protocol).",
}


def groups() -> Iterator[typer.Typer]:
    """Yield one command group per service."""
    for name, does in _DOES.items():
        group = typer.Typer(name=name, help=does, no_args_is_help=True)
        group.command("serve", help=f"Run the {name} service until SIGTERM.")(plain(name))
        yield group


def plain(service: str) -> Any:
    """Return the command that runs a service which needs no more than the file."""

    def serve(config: Config = None, with_parent: WithParent = False) -> None:
        launch_service(service, config, with_parent=with_parent)

    return serve


def serve_gpuagent(
    config: Config = None, node: NodeName = "", with_parent: WithParent = False
) -> None:
    """Run the agent of one node until SIGTERM."""
    name = named_node(node, config)
    _launch("gpuagent", partial(_run_of("gpuagent"), node=name), config, with_parent=with_parent)


def named_node(name: str, config: Path | None) -> str:
    """Return the node that a command is about: the named one, or the file's only one."""
    from services.cli.runner import explained
    from services.kit.config.loader import config_path, load

    with explained():
        nodes = list(load(config_path(config)).nodes)
    if name in nodes or (not name and len(nodes) == 1):
        return name or nodes[0]
    if name:
        known = ", ".join(nodes)
        raise typer.BadParameter(f"no node {name!r}; there is {known}", param_hint="--node")
    raise typer.BadParameter(f"say which of {', '.join(nodes)}", param_hint="--node")


def launch_service(service: str, config: Path | None, *, with_parent: bool) -> None:
    """Run a service of the deployment until SIGTERM, and exit."""
    _launch(service, _run_of(service), config, with_parent=with_parent)


def _run_of(service: str) -> Any:
    return imported(service, f"services.{service}.app").run


def imported(service: str, module: str) -> Any:
    """Return a module that needs a service's libraries; where they lack, say so and exit."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("services."):
            raise
        package = f"'cinquefoil[{service}]'" if service in _EXTRAS else "cinquefoil"
        typer.echo(f"{service} needs {error.name}: pip install {package}", err=True)
        raise typer.Exit(1) from error


def _launch(service: str, run: Any, config: Path | None, *, with_parent: bool) -> None:
    from services.kit.process.service import launch
    from services.local.up.orphans import end_with_parent

    if with_parent:
        end_with_parent()
    raise typer.Exit(launch(service, run, config))
