"""The account of energy and carbon, by model, node, zone or region, and per request."""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.plan_pb2 import Plan
from cinquefoil.planner.v1.planner_pb2 import AccountEntry
from services.cli import saving, waiting_account
from services.cli.carbon_budgets import budget_sentence
from services.cli.client import Clients, connected
from services.cli.console.messages import write_csv
from services.cli.console.output import print_json, table
from services.cli.console.quantities import carbon, energy, percent
from services.console.page import Account, Report, write
from services.console.palette import lines
from services.kit.config import Model
from services.kit.config.loader import load

KEYS: Final = ("hour", "zone", "node", "model", "origin", "emitted_in")
FIGURES: Final = tuple(name for name in AccountEntry.DESCRIPTOR.fields_by_name if name not in KEYS)

Row = SimpleNamespace
Figures = Mapping[str, float]
"""By field of AccountEntry."""

ERRORS: Final = {
    "profiles": "profile_error_gco2e",
    "meters": "meter_error_gco2e",
    "intensities": "intensity_error_gco2e",
}
"""Sources of the uncertainty of savings, and the fields with how much each adds."""

MOST_OVER_BASE: Final = 10.0
"""Emissions over BASE's from which on the two are taken to be of other hardware; an assumption: no
entry says what hardware it is of, and a loss as large as that on the same would not be counted."""

IDLE: Final = "(idle)"
UNATTRIBUTED: Final = "(other)"
TOTAL: Final = "total"


def rows(entries: Iterable[AccountEntry], by: str) -> list[Row]:
    """Return a row per model, node, zone or region of the client, in order of name, and the total.

    Two rows at the end have the energy of no model: idle and unattributed energy. The total is the
    sum of all rows. Models have their shares of idle energy; nodes, zones and the total have
    all of it already.

    Args:
        entries: Grouped by `by`.
        by: "model", "node", "zone" or "region".
    """
    groups: defaultdict[str, list[AccountEntry]] = defaultdict(list)
    for entry in entries:
        if not entry.emitted_in:  # else it is in another region's account
            groups[getattr(entry, _NAMES.get(by, by))].append(entry)
    summed = {
        name: {key: sum(getattr(each, key) for each in groups[name]) for key in FIGURES}
        for name in sorted(groups)
    }
    nobodys = summed.pop("", None)
    if by != "model":
        summed = {name: _without_shares(figures) for name, figures in summed.items()}
    others = {name for name, figures in summed.items() if _is_of_other_hardware(figures)}
    for name in others:  # as where BASE has no place: no saving is claimed
        alike = {key: summed[name][key.removeprefix("base_")] for key in _BASE}
        summed[name] |= alike | dict.fromkeys(ERRORS.values(), 0.0)
    if nobodys is not None:
        # Carbon embodied in GPUs meanwhile counts as idle.
        summed[IDLE] = _nobodys("idle", nobodys) | {"embodied_gco2e": nobodys["embodied_gco2e"]}
        summed[UNATTRIBUTED] = _nobodys("unattributed", nobodys)
    total = {key: sum(figures[key] for figures in summed.values()) for key in FIGURES}
    found = [_row(*each) for each in (*summed.items(), (TOTAL, _without_shares(total)))]
    for row in found:
        if row.name in others:
            row.compared, row.saved_ratio = False, None
    return found


_NAMES: Final = {"region": "origin"}
"""Fields of groupings that have another name."""


def elsewhere(entries: Iterable[AccountEntry]) -> list[Row]:
    """Return what peer regions emitted for this one's clients, a row for each; not in any total."""
    found: dict[str, Row] = {}
    for each in entries:
        if each.emitted_in:
            row = found.setdefault(
                each.emitted_in,
                Row(region=each.emitted_in, requests=0, energy_j=0.0, carbon_gco2e=0.0),
            )
            row.requests += each.requests
            row.energy_j += each.energy_j
            row.carbon_gco2e += each.carbon_gco2e
    return [found[name] for name in sorted(found)]


_BASE: Final = ("base_energy_j", "base_carbon_gco2e")


def _is_of_other_hardware(figures: Figures) -> bool:
    """Return whether figures are taken to be of other hardware than BASE's."""
    return figures["carbon_gco2e"] > MOST_OVER_BASE * figures["base_carbon_gco2e"] > 0


def by_hour(entries: Iterable[AccountEntry], by: str) -> list[dict[str, Any]]:
    """Return the total of each hour, in order of the hours.

    `hour` is its start (ISO 8601, UTC), `parts_gco2e` what each model, node or zone emitted, gCO2e.
    """
    hours: dict[str, list[AccountEntry]] = {}
    for entry in (each for each in entries if not each.emitted_in):
        start = entry.hour.ToDatetime(UTC).isoformat(timespec="seconds")
        hours.setdefault(start, []).append(entry)
    found = []
    for start, of_it in hours.items():
        *parts, total = rows(of_it, by)
        emitted = {row.name: row.carbon_gco2e for row in parts}
        found.append(vars(total) | {"hour": start, "parts_gco2e": emitted})
    return found


def _without_shares(figures: Figures) -> dict[str, float]:
    return {**figures, "idle_share_j": 0.0, "idle_share_gco2e": 0.0}


def _nobodys(kind: str, figures: Figures) -> dict[str, float]:
    """Return the row of one kind of energy of no model; BASE would have used it, too."""
    joules, grams = figures[f"{kind}_j"], figures[f"{kind}_gco2e"]
    share = joules / figures["energy_j"] if figures["energy_j"] else 0.0
    nothing: dict[str, float] = dict.fromkeys(FIGURES, 0)
    return nothing | {
        **dict.fromkeys((f"{kind}_j", "energy_j", "base_energy_j"), joules),
        **dict.fromkeys((f"{kind}_gco2e", "carbon_gco2e", "base_carbon_gco2e"), grams),
        "cost_eur": share * figures["cost_eur"],
    }


def _row(name: str, figures: Figures) -> Row:
    """Return figures with those derived from them; None where the divisor is 0.

    `compared` is False where BASE's figures are of other hardware, and count as equal.

    `saved_gco2e` is what BASE would have emitted more for the same requests, gCO2e; `saved_ratio`
    is its share of what BASE would have emitted; `saved_error_gco2e` is the half-width of the 95 %
    interval around it. Per request and per generated token: the Software
    Carbon Intensity (ISO/IEC 21031), which is operational and embodied carbon, with the charged
    share of idle energy, gCO2e.
    """
    base_gco2e, spent_gco2e = figures["base_carbon_gco2e"], figures["carbon_gco2e"]
    sci_gco2e = spent_gco2e + figures["embodied_gco2e"] + figures["idle_share_gco2e"]
    requests, tokens = figures["requests"], figures["output_tokens"]
    return Row(
        name=name,
        **figures,
        compared=True,
        saved_gco2e=base_gco2e - spent_gco2e,
        saved_error_gco2e=math.hypot(*(figures[error] for error in ERRORS.values())),
        saved_ratio=(base_gco2e - spent_gco2e) / base_gco2e if base_gco2e > 0 else None,
        gco2e_per_request=sci_gco2e / requests if requests else None,
        gco2e_per_token=sci_gco2e / tokens if tokens else None,
    )


Words = Callable[[Row], str]


def render(rows: Sequence[Row], by: str, window: str) -> RenderableType:
    """Return the rows, the total last; columns of which all is 0 are left out.

    Args:
        rows: As `report.rows` returns them.
        by: "model", "node" or "zone".
        window: Text of the window.
    """
    total = rows[-1]
    if not any(getattr(total, name) for name in FIGURES):
        return Text(f"No energy was drawn, {window}: nothing ran (run: cinquefoil status).")
    columns: list[tuple[str, Words]] = [
        ("energy", lambda row: energy(row.energy_j)),
        ("CO2e", lambda row: _mass(row.carbon_gco2e)),
    ]
    if by != "model":
        columns.append(("of it\nidle", lambda row: _mass(row.idle_gco2e)))
    if any(row.idle_share_gco2e for row in rows):
        columns.append(("idle\nshare", lambda row: _mass(row.idle_share_gco2e)))
    if total.embodied_gco2e:
        columns.append(("em-\nbodied", lambda row: _mass(row.embodied_gco2e)))
    if total.cost_eur:
        columns.append(("EUR", lambda row: f"{row.cost_eur:.3g}"))
    columns += [
        ("BASE", lambda row: _mass(row.base_carbon_gco2e) if row.compared else ""),
        ("saved", _saved),
    ]
    columns.append(("requests", lambda row: _count(row.requests)))
    columns.append(("per\nrequest", lambda row: _mass(row.gco2e_per_request)))
    if total.output_tokens:
        columns.append(("per\ntoken", lambda row: _mass(row.gco2e_per_token)))
    made = table(f"Energy and carbon, {window}", by, *(f">{name}" for name, _ in columns))
    made.columns[0].min_width = 7
    for column in made.columns[1:]:
        column.no_wrap = True
    for row in rows:
        if row.name == TOTAL:
            made.add_section()
        style = "bold" if row.name == TOTAL else "dim" if row.name.startswith("(") else ""
        made.add_row(Text(row.name), *(words(row) for _, words in columns), style=style)
    others = [row.name for row in rows if not row.compared]
    return Group(made, Text(" ".join(filter(None, (_note(total), _not_compared(others))))))


def _not_compared(names: Sequence[str]) -> str:
    """Return why there is no comparison with BASE, as a sentence; "": there is one for all."""
    if not names:
        return ""
    return (
        f"Not compared: {', '.join(names)}. More than {MOST_OVER_BASE:.0f} times BASE's emissions "
        "are taken to come from other hardware than its profiles are of, such as CPU cores."
    )


_NOTE: Final = (
    "BASE: each model's best variant on whole GPUs, the same requests, the same idle power."
)


def _note(total: Row) -> str:
    ratio = total.saved_ratio
    if ratio is None:
        return _NOTE
    word = "saved" if total.saved_gco2e >= 0 else "spent more than BASE"
    base_gco2e = total.base_carbon_gco2e
    parts = {name: abs(getattr(total, error)) / base_gco2e for name, error in ERRORS.items()}
    sources = ", ".join(f"{name} {percent(part)}" for name, part in parts.items() if part)
    within = f"{percent(abs(ratio))} \u00b1 {percent(total.saved_error_gco2e / base_gco2e)}"
    because = f"; of it {sources}" if sources else ""
    return f"{carbon(abs(total.saved_gco2e))} {word} ({within}{because}). {_NOTE}"


def _saved(row: Row) -> str:
    ratio = row.saved_ratio
    if ratio is None or row.name.startswith("("):
        return ""
    error = row.saved_error_gco2e / row.base_carbon_gco2e
    return f"{percent(ratio)} \u00b1 {100 * error:.0f}" if error else percent(ratio)


def _mass(gco2e: float | None) -> str:
    """Return a mass, without its substance, which the heading states."""
    return carbon(gco2e).replace("CO2e", "") if gco2e else ""


def _count(number: float) -> str:
    """Return a count in three or four figures."""
    for limit, unit in ((1e4, ""), (1e7, "k"), (1e10, "M")):
        if number < limit:
            return f"{number / limit * 1e4:.0f}{unit}" if number else ""
    return f"{number / 1e9:.0f}G"


def _elsewhere(found: Sequence[Row]) -> RenderableType:
    made = table("Elsewhere, for clients of this region, by receipts", "region", *_ELSEWHERE)
    for row in found:
        made.add_row(
            Text(row.region),
            energy(row.energy_j),
            _mass(row.carbon_gco2e),
            _count(row.requests),
            _mass(row.carbon_gco2e / row.requests) if row.requests else "",
        )
    return made


_ELSEWHERE: Final = (">energy", ">CO2e", ">requests", ">per\nrequest")

_TIMEOUT_S: Final = 60.0
_PAGE: Final = 200
_MAX_PLANS: Final = 2000
"""Plans, newest first, by which a saving is split: a week of a plan every five minutes."""
GROUPINGS: Final = {
    "all": pb.ACCOUNT_GROUPING_UNSPECIFIED,
    "model": pb.ACCOUNT_GROUPING_MODEL,
    "node": pb.ACCOUNT_GROUPING_NODE,
    "zone": pb.ACCOUNT_GROUPING_ZONE,
    "region": pb.ACCOUNT_GROUPING_REGION,
}


async def show_account(
    config: Path,
    window: tuple[datetime, datetime],
    by: str,
    form: str = "table",
    page: Path | None = None,
) -> None:
    """Print the account of a window, and write a page of it on request.

    Args:
        config: Deployment file.
        window: Start and end, whole hours.
        by: "model", "node", "zone", "region"; "all": each for itself.
        form: "table", "csv" or "json".
        page: The HTML file; None: none.
    """
    since, until = window
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
    request = pb.ReadAccountRequest(by=GROUPINGS[by])
    request.since.FromDatetime(since)
    request.until.FromDatetime(until)
    deployment = load(config)
    async with connected(deployment) as clients:
        responses = clients.planner.ReadAccount(request, timeout=_TIMEOUT_S)
        entries = [entry async for response in responses for entry in response.entries]
        parts = {} if form == "csv" else await _saved_by(clients, request, entries, window)
        waited = [] if form == "csv" else await waiting_account.fetch(clients, window)
        fleet = await clients.planner.GetFleet(pb.GetFleetRequest(), timeout=_TIMEOUT_S)
    by = "model" if by == "all" else by
    span = f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    if page is not None:
        known_until = min(until, datetime.now(UTC))
        write_page(entries, by, (span, known_until), deployment.models, page)
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
                    "saved_gco2e_by": parts,
                    "hours": entries,
                    "elsewhere": elsewhere(entries),
                    "waited": waited,
                    "carbon_budgets": list(fleet.carbon_budgets),
                }
            )
        case _:
            found = rows(entries, by)
            Console().print(render(found, by, span))
            if away := elsewhere(entries):
                Console().print(_elsewhere(away))
            if owed := saving.words(parts, found[-1].base_carbon_gco2e):
                Console().print(f"Saved, of BASE, by: {owed}.")
            for each in fleet.carbon_budgets:
                Console().print(budget_sentence(each, fleet.carbon_budget_price_gco2e))
            if waited:
                Console().print(waiting_account.render(waited))


async def _saved_by(
    clients: Clients,
    request: pb.ReadAccountRequest,
    entries: list[pb.AccountEntry],
    window: tuple[datetime, datetime],
) -> dict[str, float]:
    """Return the saving of a window by lever, gCO2e."""
    if request.by != pb.ACCOUNT_GROUPING_MODEL:
        grouped = pb.ReadAccountRequest()
        grouped.CopyFrom(request)
        grouped.by = pb.ACCOUNT_GROUPING_MODEL
        responses = clients.planner.ReadAccount(grouped, timeout=_TIMEOUT_S)
        entries = [entry async for response in responses for entry in response.entries]
    plans: list[Plan] = []
    query = pb.ListPlansRequest(page_size=_PAGE)
    while len(plans) < _MAX_PLANS:
        page = await clients.planner.ListPlans(query, timeout=_TIMEOUT_S)
        plans += page.plans
        oldest = page.plans[-1].created_at.ToDatetime(UTC) if page.plans else window[0]
        if not page.next_page_token or oldest <= window[0]:
            break
        query.page_token = page.next_page_token
    return saving.split(entries, saving.active_within(plans, *window))


def write_page(
    entries: Sequence[pb.AccountEntry],
    by: str,
    window: tuple[str, datetime],
    models: Mapping[str, Model],
    path: Path,
) -> None:
    """Write the account as one HTML file, as the console shows it.

    Args:
        entries: Grouped by `by`.
        by: "model", "node" or "zone".
        window: In words, and the end of what is known.
        models: The deployment's, for their colours.
        path: The file.
    """
    span, until = window
    colours = lines(models) if by == "model" else {}
    account = Account(by, rows(entries, by), by_hour(entries, by), until.isoformat(), colours)
    write(Report("Carbon account", "", f"{span}.", [account]), path)
