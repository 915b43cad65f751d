"""Fetches the account and shows it."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from cinquefoil.planner.v1 import planner_pb2 as pb
from services.cli.account.render import render
from services.cli.account.report import by_hour, rows
from services.cli.client import connected
from services.cli.console.messages import write_csv
from services.cli.console.output import print_json
from services.console.page import Account, Report, write
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
    page: Path | None = None,
) -> None:
    """Print the account of a window, and write a page of it on request.

    Args:
        config: Deployment file.
        window: From when to when, whole hours.
        by: "model", "node", "zone"; "all": each for itself.
        form: "table", "csv" or "json".
        page: The HTML file; None: none.
    """
    since, until = window
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
    request = pb.ReadAccountRequest(by=_BY[by])
    request.since.FromDatetime(since)
    request.until.FromDatetime(until)
    async with connected(load(config)) as clients:
        responses = clients.planner.ReadAccount(request, timeout=_TIMEOUT_S)
        entries = [entry async for response in responses for entry in response.entries]
    by = "model" if by == "all" else by
    span = f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    if page is not None:
        write_page(entries, by, span, page)
    match form:
        case "csv":
            write_csv(entries, pb.AccountEntry, sys.stdout)
        case "json":
            print_json(
                {
                    "since": since.isoformat(),
                    "until": until.isoformat(),
                    "by": by,
                    "rows": rows(entries, by),
                    "hours": entries,
                }
            )
        case _:
            Console().print(render(rows(entries, by), by, span))


def write_page(entries: Sequence[pb.AccountEntry], by: str, span: str, path: Path) -> None:
    """Write the account as one HTML file, as the console shows it."""
    account = Account(by, rows(entries, by), by_hour(entries, by))
    write(Report("Carbon account", "", f"{span}.", [account]), path)
