"""Lists grid events, and counts down to their start and end."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cinquefoil.planner.v1.grid_event_pb2 import (
    GridEvent,
    GridEventStatus,
)
from cinquefoil.planner.v1.planner_pb2 import ListGridEventsRequest
from services.cli.client import query
from services.cli.console.messages import Cell, Messages
from services.cli.console.output import document, show
from services.cli.console.quantities import duration
from services.kit.plurals import counted


async def show_list(config: Path, *, over: bool, as_json: bool) -> None:
    """Print the events and the sites' power."""
    request = ListGridEventsRequest(all=over)
    found = await query(config, lambda clients: clients.planner.ListGridEvents(request))
    show(
        document(found),
        lambda: Group(event_table(found.events), *map(site_line, found.sites)),
        as_json=as_json,
    )


def event_table(events: Sequence[GridEvent]) -> RenderableType:
    """Return a table of events."""
    columns: dict[str, Cell] = {
        "event": "event_id",
        "site": "site",
        ">limit": lambda each: power(each.limit_w),
        ">baseline": lambda each: power(each.baseline_w) if each.baseline_w else "",
        "from (UTC)": lambda each: _stamp(each.start.ToDatetime(UTC)),
        "until": lambda each: _stamp(each.end.ToDatetime(UTC)),
        "source": "source",
        "state": lambda each: status_name(each.status),
    }
    return Messages().table("Grid events", events, columns)


def power(power_w: float) -> str:
    """Return a power as people read it."""
    return f"{1e-3 * power_w:.2f} kW" if power_w >= 10_000 else f"{power_w:.0f} W"


def status_name(status: int) -> str:
    """Return the name of a status."""
    return GridEventStatus.Name(status).removeprefix("GRID_EVENT_STATUS_").lower()  # type: ignore[arg-type]


def _stamp(at: datetime) -> str:
    return f"{at:%m-%d %H:%M}"


def site_line(site: Any) -> Text:
    """Return a site's power and limit, of a SitePower or its row, in a sentence."""
    away = f", without {counted(site.nodes_away, 'node')} away" if site.nodes_away else ""
    now = f"site {site.site}: {power(site.metered_w)} at the wall{away}"
    if not site.setting:
        return Text(f"{now}, no limit")
    above = site.metered_w > site.limit_w
    line = "ABOVE the line of" if above else "under the line of"
    return Text(
        f"{now}, {line} {power(site.limit_w)} ({site.setting})", style="red" if above else ""
    )


def countdown(event: GridEvent, now: datetime) -> str:
    """Return an event in a sentence, with the time that is left."""
    start, end = event.start.ToDatetime(UTC), event.end.ToDatetime(UTC)
    what = (
        f"Grid event {event.event_id} ({event.source}): {event.site} at most {power(event.limit_w)}"
    )
    left_s = (start - now).total_seconds()
    if left_s > 0:
        return f"{what} in {duration(left_s)}, for {duration((end - start).total_seconds())}."
    return f"{what}, {duration(max((end - now).total_seconds(), 0))} left."
