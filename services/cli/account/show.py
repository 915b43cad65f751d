"""Fetches the account and shows it."""

import csv
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console

from cinquefoil.planner.v1 import planner_pb2 as pb
from services.cli.account.render import render
from services.cli.account.report import FIGURES, KEYS, rows
from services.cli.client import connected
from services.cli.console.proto_json import print_json
from services.kit.config.loader import load

_TIMEOUT_S: Final = 60.0
_BY: Final = {
    "all": pb.ACCOUNT_GROUPING_UNSPECIFIED,
    "model": pb.ACCOUNT_GROUPING_MODEL,
    "node": pb.ACCOUNT_GROUPING_NODE,
    "zone": pb.ACCOUNT_GROUPING_ZONE,
}


async def show(
    config: Path,
    window: tuple[datetime, datetime],
    by: str,
    form: str = "table",
    plot: Path | None = None,
) -> None:
    """Print the account of a window, and draw it on request.

    Args:
        config: Deployment file.
        window: From when to when, whole hours.
        by: "model", "node", "zone"; "all": each for itself.
        form: "table", "csv" or "json".
        plot: Where to draw it; None: nowhere.
    """
    since, until = window
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
    request = pb.ReadAccountRequest(by=_BY[by])
    request.since.FromDatetime(since)
    request.until.FromDatetime(until)
    async with connected(load(config)) as clients:
        responses = clients.planner.ReadAccount(request, timeout=_TIMEOUT_S)
        entries = [entry async for response in responses for entry in response.entries]
    by = "model" if by == "all" else by
    if plot is not None:
        from services.cli.account.chart import draw  # noqa: PLC0415  # matplotlib takes a second

        draw(entries, by, plot)
    match form:
        case "csv":
            write_csv(entries, sys.stdout)
        case "json":
            print_json(
                {
                    "since": since.isoformat(),
                    "until": until.isoformat(),
                    "by": by,
                    "rows": [vars(row) for row in rows(entries, by)],
                    "hours": [hour(entry) for entry in entries],
                }
            )
        case _:
            span = f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
            Console().print(render(rows(entries, by), by, span))


def write_csv(entries: Iterable[pb.AccountEntry], file: TextIO) -> None:
    """Write one line per hour and entry; units are in the header's names."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*KEYS, *FIGURES))
    writer.writerows(hour(entry).values() for entry in entries)


def hour(entry: pb.AccountEntry) -> dict[str, str | float]:
    """Return an entry as it is written, in order of KEYS and FIGURES."""
    began = f"{entry.hour.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
    return {
        "hour": began,
        **{name: getattr(entry, name) for name in (*KEYS[1:], *FIGURES)},
    }
