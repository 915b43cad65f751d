"""`cinquefoil <service> serve`: one service in this process."""

import importlib
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.commands.options import DEPLOYMENT, Config, group

WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True)]
NodeName = Annotated[str, typer.Option("--node", help="Default: the file's only node.")]

planner = group("planner", "Decides which variant runs on which slice, and rolls it out.")
router = group("router", "Answers inference requests (Open Inference Protocol).")


console = group(
    "console", "Shows a deployment in a browser: what runs where, why, and what it saves."
)


def serve_command(service: str) -> Callable[..., None]:
    """Return the command that runs a service which needs no more than the file."""

    def serve(config: Config = DEPLOYMENT, with_parent: WithParent = False) -> None:
        launch_service(service, config, with_parent=with_parent)

    serve.__doc__ = f"Run the {service} service until SIGTERM."
    return serve


planner.command("serve")(serve_command("planner"))
router.command("serve")(serve_command("router"))


@console.command("serve")
def serve_console(config: Config = DEPLOYMENT, with_parent: WithParent = False) -> None:
    """Run the console at `console.listen` until SIGTERM."""
    from services.cli.web_console.server import run

    launch("console", run, config, with_parent=with_parent)


def serve_gpuagent(
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    join: Annotated[
        bool,
        typer.Option(
            "--join",
            help="Announce a node that the file does not name; CINQUEFOIL_NODE__NAME, __ADDRESS "
            "and __ZONE say which.",
        ),
    ] = False,
    leave_workers: Annotated[
        bool, typer.Option("--leave-workers", help="Leave workers to the next agent at the end.")
    ] = False,
    with_parent: WithParent = False,
) -> None:
    """Run the agent of one node until SIGTERM.

    Then the planner moves what runs there to other nodes, where they have room. With
    --leave-workers the workers keep serving, and an agent that is started within
    `nodes.<n>.orphan_timeout_s` adopts them.
    """
    name = node if join else named_node(node, config)
    launch_service(
        "gpuagent",
        config,
        with_parent=with_parent,
        node=name,
        join=join,
        leave_workers=leave_workers,
    )


def named_node(name: str, config: Path) -> str:
    """Return the node that a command is about: the named one, the file's only one, or this one."""
    from services.kit.config.loader import load

    deployment = load(config)
    nodes = list(deployment.nodes)
    if name in nodes or (not name and len(nodes) == 1):
        return name or nodes[0]
    if deployment.join is not None and (name or not nodes):
        return name or deployment.node.name or socket.gethostname()
    if name:
        known = ", ".join(nodes)
        raise typer.BadParameter(f"no node {name!r}; there is {known}", param_hint="--node")
    raise typer.BadParameter(f"say which of {', '.join(nodes)}", param_hint="--node")


def launch_service(service: str, config: Path, *, with_parent: bool, **arguments: Any) -> None:
    """Run a service of the deployment until SIGTERM, and exit.

    Args:
        service: The name of the service's package.
        config: Deployment file.
        with_parent: End when the process that started this one ends.
        arguments: Further arguments of the service's `run`.
    """
    run = importlib.import_module(f"services.{service}.app").run
    launch(service, partial(run, **arguments), config, with_parent=with_parent)


def launch(service: str, run: Any, config: Path, *, with_parent: bool) -> None:
    """Run `run` as a service of the deployment until SIGTERM, and exit; as `launch_service`."""
    from services.kit.process import service as process
    from services.local.up.orphans import end_with_parent

    if with_parent:
        end_with_parent()
    raise typer.Exit(process.launch(service, run, config))
