"""Shows regions, and sends the planner orders about them."""

from pathlib import Path

from rich.console import Group
from rich.text import Text

from cinquefoil.regions.v1 import regions_pb2 as pb
from services.cli.client import query
from services.cli.console.output import show, table
from services.cli.console.quantities import carbon, percent
from services.cli.regions.rows import region_rows

_COLUMNS = (
    "region", "model", ">mg/\nrequest", ">granted\n/s", ">sent\n/s", ">waiting\n/s",
    ">received\n/s", ">ms", ">home if\nlost", ">more/h\nif lost", "state",
)  # fmt: skip


async def show_list(config: Path, *, as_json: bool) -> None:
    """Print every region, with a row for each model that goes between them."""
    found = await query(
        config, lambda clients: clients.regions.ListRegions(pb.ListRegionsRequest())
    )
    rows, shown = region_rows(found), table("", *_COLUMNS)
    for row in rows:
        shown.add_row(
            row.region,
            row.model or "-",
            f"{row.carbon_gco2e * 1e3:.3g}",
            f"{row.granted_rps:.1f}",
            f"{row.sent_rps:.1f}",
            f"{row.waiting_rps:.1f}",
            f"{row.received_rps:.1f}",
            "" if row.round_trip_s is None else f"{row.round_trip_s * 1e3:.1f}",
            "" if row.load_if_lost is None else percent(row.load_if_lost),
            carbon(row.carbon_if_lost_gco2e_per_h) if row.carbon_if_lost_gco2e_per_h else "",
            row.state,
        )
    note = (
        f"{found.regions[0].name}: granted is its capacity, sent the requests of its own clients;"
        " waiting: requests that can wait;"
        " home if lost: load of this region without that one, of its capacity; more: emitted then"
    )
    show(rows, lambda: Group(shown, Text(note, style="dim")), as_json=as_json)


async def order_drain(config: Path, *, resume: bool) -> None:
    """End or resume grants to other regions."""
    await query(
        config, lambda clients: clients.regions.DrainRegion(pb.DrainRegionRequest(resume=resume))
    )
