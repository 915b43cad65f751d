"""The report of a grid event: as text, HTML, CSV or JSON."""

import asyncio
import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from cinquefoil.planner.v1.grid_event_pb2 import GridEventReport, ModelInEvent
from cinquefoil.planner.v1.planner_pb2 import ReportGridEventRequest
from services.cli.client import query
from services.cli.console.output import as_line, table
from services.cli.console.quantities import carbon, energy, percent
from services.cli.grid.show import power, status_name
from services.console import page
from services.kit.config.loader import load

_TIMEOUT_S: Final = 60.0
_KWH_J: Final = 3.6e6


async def write_report(
    config: Path, name: str, form: Literal["text", "html", "csv", "json"], output: Path | None
) -> None:
    """Write the report of an event to a file, or print it."""
    request = ReportGridEventRequest(event_id=name)
    answer = await query(
        config, lambda its: its.planner.ReportGridEvent(request, timeout=_TIMEOUT_S)
    )
    zones = load(config).carbon.zones
    report, zone = answer.report, zones.get(answer.report.zone)
    signal = "average" if zone is None else zone.signal
    if form == "text" and output is None:
        Console().print(_text(report, signal))
        return
    written = {
        "text": lambda: _plain(report, signal),
        "html": lambda: _html(report, signal),
        "csv": lambda: as_csv(report),
        "json": lambda: as_line(report),
    }[form]()
    if output is None:
        typer.echo(written, nl=not written.endswith("\n"))
    else:
        await asyncio.to_thread(output.write_text, written, encoding="utf-8")


def summary(report: GridEventReport, signal: str) -> list[tuple[str, str]]:
    """Return the figures of an event, each with its name.

    Args:
        report: The report.
        signal: Signal of the zone's intensity.
    """
    event, within_j = report.event, report.energy_j
    start, end = event.start.ToDatetime(UTC), event.end.ToDatetime(UTC)
    points = f"{report.metered_points} of {report.event_points}"
    found = [
        ("event", f"{event.event_id} ({event.source}, {status_name(event.status)})"),
        ("announced (UTC)", f"{_iso(event.announced_at.ToDatetime(UTC))}{_by(event.principal)}"),
        ("site", event.site),
        ("time (UTC)", f"{_iso(start)} to {_iso(end)}"),
        ("limit", f"{power(event.limit_w)}{_ramp(event.ramp_s)}"),
        ("baseline", report.baseline_method or "not known"),
        ("metered", f"{points} points of {report.step_s} s; others are left out"),
        ("above the limit", f"{report.points_above} of {report.metered_points} points"),
        ("energy", f"{within_j / _KWH_J:.3g} kWh ({energy(within_j)}) at the wall"),
    ]
    if report.HasField("shed_j"):
        found.append(("shed", f"{report.shed_j / _KWH_J:.3g} kWh below the baseline"))
    if report.HasField("shed_share_min"):
        found.append(("shed of promised", f"{percent(report.shed_share_min)} at the least"))
    return [*found, *_emissions(report, signal)]


def _by(principal: str) -> str:
    return f" by {principal}" if principal else ""


def _ramp(ramp_s: float) -> str:
    return f", reached {ramp_s:.0f} s after the start" if ramp_s else ""


def _emissions(report: GridEventReport, signal: str) -> Iterable[tuple[str, str]]:
    """Yield emissions as GHG Protocol and ISO/IEC 21031 (SCI) name them.

    Scope 2 takes average intensities: by others they are stated as what they are.
    """
    if not report.HasField("carbon_gco2e"):
        return
    scope = "GHG Protocol scope 2, location-based, operational"
    if signal != "average":
        scope = (
            f"by {signal} intensities: not scope 2 of the GHG Protocol, which takes average ones"
        )
    yield "emissions", f"{carbon(report.carbon_gco2e)} ({scope}); zone {report.zone}"
    requests = sum(each.answered for each in report.models)
    if requests:
        each_g = report.carbon_gco2e / requests
        yield (
            "SCI (ISO/IEC 21031)",
            (
                f"{carbon(each_g)} per request, R = {requests} requests of the deployment; E and "
                "I of the site, M (embodied) left out"
            ),
        )


def _objectives(report: GridEventReport) -> list[tuple[str, ...]]:
    return [(each.model, *_shares(each)) for each in report.models]


def _shares(model: ModelInEvent) -> tuple[str, str, str]:
    within = _missed(model.answered, model.late, model.refused)
    before = _missed(model.answered_before, model.late_before, model.refused_before)
    return str(model.answered), within, before


def _missed(answered: int, late: int, refused: int) -> str:
    requests = answered + refused
    return percent((late + refused) / requests) if requests else "no requests"


_OBJECTIVE_COLUMNS: Final = ("model", ">answered", ">missed", ">missed before")


def _text(report: GridEventReport, signal: str) -> RenderableType:
    lines = table(f"Grid event {report.event.event_id}", "", "", rows=summary(report, signal))
    return Group(lines, table("Objectives", *_OBJECTIVE_COLUMNS, rows=_objectives(report)), Text())


def _plain(report: GridEventReport, signal: str) -> str:
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(_text(report, signal))
    return capture.get()


COLUMNS: Final = (
    "event",
    "site",
    "since",
    "length_s",
    "metered_w",
    "baseline_w",
    "limit_w",
    "promised_w",
    "shed_w",
    "intensity_gco2e_per_kwh",
)


def as_csv(report: GridEventReport) -> str:
    """Return a row for each point; a figure that is not known is empty."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    of = (report.event.event_id, report.event.site)
    for row in _rows(report):
        cells = ["" if each is None else f"{each:.6g}" for each in row[1:]]
        rows.writerow([*of, _iso(datetime.fromtimestamp(row[0], UTC)), report.step_s, *cells])
    return written.getvalue()


_Row = tuple[
    float, float | None, float | None, float | None, float | None, float | None, float | None
]


def _rows(report: GridEventReport) -> list[_Row]:
    found: list[_Row] = []
    for each in report.points:
        metered, baseline, limit = (
            getattr(each, name) if each.HasField(name) else None
            for name in ("metered_w", "baseline_w", "limit_w")
        )
        found.append(
            (
                each.since.seconds,
                metered,
                baseline,
                limit,
                None if limit is None or baseline is None else max(baseline - limit, 0.0),
                None
                if limit is None or baseline is None or metered is None
                else baseline - metered,
                each.intensity_gco2e_per_kwh if each.HasField("intensity_gco2e_per_kwh") else None,
            )
        )
    return found


def _html(report: GridEventReport, signal: str) -> str:
    rows = _rows(report)
    times_s = [row[0] for row in rows]
    above = report.points_above
    headline = (
        f"Site {report.event.site} stayed under {power(report.event.limit_w)}."
        if report.metered_points and not above
        else f"Site {report.event.site}: {above} of {report.metered_points} points above "
        f"{power(report.event.limit_w)}."
    )
    lines = [
        page.Line("metered", [row[1] for row in rows]),
        page.Line("baseline", [row[2] for row in rows], dashed=True),
        page.Line("limit", [row[3] for row in rows], dashed=True),
    ]
    return page.html(
        page.Report(
            f"Grid event {report.event.event_id}",
            headline,
            f"Baseline: {report.baseline_method or 'not known'}.",
            [
                page.Chart("Power at the wall", "W", times_s, lines, stepped=True),
                page.Table("Summary", ("", ""), summary(report, signal)),
                page.Table("Objectives", _OBJECTIVE_COLUMNS, _objectives(report)),
            ],
        )
    )


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
