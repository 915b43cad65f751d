"""Brings a node's GPUs to a desired state through its agent, and says what was done."""

from pathlib import Path

import yaml
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import steps_pb2
from services.cli.client import ask
from services.cli.console.names import slice_name
from services.cli.console.output import show
from services.cli.desired.desired_state import read, written

APPLY_S = 900.0
"""Workers may take a minute each to load, and slices are changed one after another."""


async def export(config: Path, node: str) -> None:
    """Print the document that describes a node's present state."""
    request = pb.GetNodeRequest()
    found = await ask(config, lambda clients: clients.agents[node].GetNode(request), node)
    document = written(found.node)
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)
    Console().out(text.rstrip(), highlight=False)


async def diff(config: Path, node: str, file: Path, *, as_json: bool) -> bool:
    """Print what would be done; return whether there is anything."""
    request = pb.ReconfigureRequest(gpus=read(file), dry_run=True)
    found = await ask(config, lambda clients: clients.agents[node].Reconfigure(request), node)
    show(found, lambda: rendered(found, "Would be done"), as_json=as_json)
    return bool(found.change.groups)


async def apply(config: Path, node: str, file: Path, *, allow_gap: bool, as_json: bool) -> None:
    """Bring the node's GPUs to the desired state; ctrl-c takes everything back."""
    request = pb.ReconfigureRequest(gpus=read(file), allow_gap=allow_gap)
    found = await ask(
        config, lambda clients: clients.agents[node].Reconfigure(request, timeout=APPLY_S), node
    )
    title = f"Done in {found.elapsed_s:.1f} s"
    show(found, lambda: rendered(found, title), as_json=as_json)


def rendered(found: pb.ReconfigureResponse, title: str) -> Group | Table | Text:
    """Return the steps in order; those of one number happen at the same time."""
    if not found.change.groups:
        return Text("All is as desired: nothing to do.")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    for number, group in enumerate(found.change.groups, start=1):
        for index, action in enumerate(group.actions):
            table.add_row("" if index else f"{number}.", *_words(action))
    if not found.gaps:
        return table
    models = ", ".join(found.gaps)
    warning = f"No room to start first and stop then: fewer segments for a while of {models}."
    return Group(table, Text(warning))


def _words(action: steps_pb2.Action) -> tuple[str, str, str]:
    """Return an action as verb, thing and place."""
    kind = action.WhichOneof("action") or ""
    what = getattr(action, kind)
    place = getattr(what, "gpu_uuid", "")
    match kind:
        case "create_slice" | "destroy_slice":
            words = kind.removesuffix("_slice"), slice_name(what.placement), place
        case "start_segment":
            spec = what.spec
            words = "start", f"{spec.segment_id} on {slice_name(spec.placement)}", spec.gpu_uuid
        case "lock_clock":
            words = "clock", f"{what.clock_mhz} MHz" if what.clock_mhz else "free", place
        case "set_mig_mode":
            words = "MIG mode", "on" if what.enabled else "off", place
        case _:
            words = "stop", what.segment_id, ""
    return words
