"""Changes settings of a running deployment, and lists the changes."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import typer
import yaml
from google.protobuf.json_format import MessageToJson, Parse
from rich.console import Console

from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import connected, query
from services.cli.console.messages import Messages
from services.cli.console.names import gpu_names
from services.cli.console.output import print_json, working
from services.cli.plan.orders import ORDER_S
from services.cli.plan.render import proposal
from services.cli.reasons import say_holds
from services.kit.config import Deployment
from services.kit.config.differences import keys_of
from services.kit.config.loader import load


def settings_of(pairs: Collection[str]) -> dict[str, Any]:
    """Return values by path, of "PATH=VALUE".

    Raises:
        typer.BadParameter: One has no "=", or its value is not YAML.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        path, given, text = pair.partition("=")
        try:
            found[path.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise typer.BadParameter(f"{path}: not YAML: {text!r}") from error
        if not given or not path.strip():
            raise typer.BadParameter(f"{pair!r}: write PATH=VALUE")
    return found


async def change(
    config: Path,
    values: Mapping[str, Any],
    reset: Collection[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change settings, or show the plan that would follow."""
    request = planner_pb2.ChangeSettingsRequest(reset=reset, dry_run=dry_run)
    for path, value in values.items():
        Parse(json.dumps(value, default=str), request.values[path])
    async with connected(load(config)) as clients:
        with working("The planner tries it" if dry_run else "The planner takes it over"):
            answer = await clients.planner.ChangeSettings(request, timeout=ORDER_S)
        gpus = await gpu_names(clients.planner) if dry_run and not as_json else {}
        if as_json:
            print_json(answer)
            return
        paths = ", ".join(answer.changed) or "nothing"
        if dry_run:
            Console().print(proposal(answer.outcome, gpus))
            typer.echo(f"Would change: {paths}.")
        else:
            typer.echo(f"Changed: {paths}. `cinquefoil config unset` returns to the file's values.")
        await say_holds(clients)


async def show_changed(config: Path, *, as_json: bool) -> None:
    """List the settings changed at run time."""
    request = planner_pb2.ListChangedSettingsRequest()
    answer = await query(config, lambda clients: clients.planner.ListChangedSettings(request))
    if as_json:
        print_json(answer)
        return
    if not answer.settings:
        typer.echo("Every setting is as the deployment file says.")
        return
    columns = {"setting": "path", "value": "value", "by": "principal", "at (UTC)": "at"}
    Console().print(Messages().table("Changed at run time", answer.settings, columns))


async def show_changed_sections(config: Path) -> None:
    """Print the settings changed at run time as sections of the deployment file."""
    deployment = load(config)
    request = planner_pb2.ListChangedSettingsRequest()
    async with connected(deployment) as clients:
        answer = await clients.planner.ListChangedSettings(request, timeout=ORDER_S)
    values = {each.path: json.loads(MessageToJson(each.value)) for each in answer.settings}
    typer.echo(yaml.safe_dump(sections_of(deployment, values), sort_keys=False), nl=False)


def sections_of(deployment: Deployment, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by path as nested sections.

    Args:
        deployment: The file; models and variants that are removed are its own, or unknown.
        values: New values by path; None: removed.
    """
    known, found = deployment.model_dump(), dict[str, Any]()
    for path, value in values.items():
        *parents, last = keys_of(known, path)
        section = found
        for key in parents:
            section = section.setdefault(key, {})
        section[last] = value
    return found
