"""Shows regions, and sends the planner orders about them."""

from pathlib import Path

from rich.console import Group
from rich.text import Text

from cinquefoil.regions.v1 import regions_pb2 as pb
from services.cli.client import query
from services.cli.console.output import show, table

_COLUMNS = (
    "region", "model", ">mg/request", ">granted/s", ">sent/s", ">received/s", ">ms", "state"
)  # fmt: skip


async def show_list(config: Path, *, as_json: bool) -> None:
    """Print every region, with a row for each model that goes between them."""
    found = await query(
        config, lambda clients: clients.regions.ListRegions(pb.ListRegionsRequest())
    )
    home, *peers = found.regions
    rows = table("", *_COLUMNS)
    for region in (home, *peers):
        for flow in region.flows or (pb.Flow(model="-"),):
            rows.add_row(
                region.name,
                flow.model,
                f"{flow.carbon_gco2e * 1e3:.3g}",
                f"{flow.granted_rps:.1f}",
                f"{flow.sent_rps:.1f}",
                f"{flow.received_rps:.1f}",
                "" if region is home else f"{region.round_trip_s * 1e3:.1f}",
                _state(region, home),
            )
    note = f"{home.name}: granted is its capacity, sent the requests of its own clients"
    show(found.regions, lambda: Group(rows, Text(note, style="dim")), as_json=as_json)


def _state(region: pb.Region, home: pb.Region) -> str:
    if not region.reachable:
        return region.reason
    place = "here" if region is home else "reachable"
    return f"{place}, draining" if region.draining else place


async def order_drain(config: Path, *, resume: bool) -> None:
    """End or resume grants to other regions."""
    await query(
        config, lambda clients: clients.regions.DrainRegion(pb.DrainRegionRequest(resume=resume))
    )
