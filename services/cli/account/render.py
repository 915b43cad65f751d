"""The account as a table."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.account.report import ERRORS, FIGURES, TOTAL, Row
from services.cli.console.output import table
from services.cli.console.quantities import carbon, energy, percent

Words = Callable[[Row], str]


def render(rows: Sequence[Row], by: str, window: str) -> RenderableType:
    """Return the rows, the total last; columns of which all is 0 are left out.

    Args:
        rows: As `report.rows` returns them.
        by: "model", "node" or "zone".
        window: From when to when, for people.
    """
    total = rows[-1]
    if not any(getattr(total, name) for name in FIGURES):
        return Text(f"No energy was drawn, {window}.")
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
    columns += [("BASE", lambda row: _mass(row.base_carbon_gco2e)), ("saved", _saved)]
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
    return Group(made, Text(_note(total)))


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
        return "-"
    error = row.saved_error_gco2e / row.base_carbon_gco2e
    return f"{percent(ratio)} \u00b1 {100 * error:.0f}" if error else percent(ratio)


def _mass(gco2e: float | None) -> str:
    """Return a mass; what it is of stands in the heading."""
    return carbon(gco2e).replace("CO2e", "") if gco2e else "-"


def _count(number: float) -> str:
    """Return a count in three or four figures."""
    for limit, unit in ((1e4, ""), (1e7, "k"), (1e10, "M")):
        if number < limit:
            return f"{number / limit * 1e4:.0f}{unit}" if number else "-"
    return f"{number / 1e9:.0f}G"
