"""Advice day by day: plans in shadow of recorded days, kept beside the records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from json import dumps
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from services.cli.console import quantities
from services.cli.console.output import table
from services.cli.observe.shadow import FITS, Shadow, shadow
from services.console import page
from services.console.page import Chart, Line, Table
from services.gpuagent.observation.history import History
from services.kit.plurals import counted

COLUMNS: Final = ("day", ">energy", ">carbon", ">model / meter", ">saves", ">", "objectives")
_NONE: Final = "-"


def advised(
    history: History,
    count: int,
    *,
    intensity: float | None = None,
    progress: Callable[[date], None] = lambda _: None,
    again: bool = False,
) -> tuple[Shadow, ...]:
    """Return the newest recorded days in shadow, oldest first. Blocks.

    Days that have ended are kept in the history, and not planned for again; today is, each time.

    Args:
        history: The records.
        count: Days at most.
        intensity: Carbon intensity where none was recorded, gCO2e/kWh.
        progress: Called with each day that is planned for.
        again: Plan for days again that are kept.

    Raises:
        ServiceError: There is no such history, or it cannot be used.
    """
    kept = {} if again else history.kept_days()
    today, found = datetime.now(UTC).date(), []
    for day in history.days()[-count:]:
        known = Shadow.of(kept[day]) if day in kept else None
        if known is None:
            progress(day)
            known = shadow(day, history.records(day), intensity)
            if day < today:
                history.keep_day(day, known.document())
        found.append(known)
    return tuple(found)


def report(  # noqa: PLR0913 - a command's options
    store: Path,
    count: int,
    *,
    intensity: float | None,
    again: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the newest days in shadow, and write them to `out`; see `advised`."""
    console = Console(stderr=as_json)
    with console.status("") as status:
        days = advised(
            History(store),
            count,
            intensity=intensity,
            progress=lambda day: status.update(f"{day}: planning in shadow"),
            again=again,
        )
    text = dumps(document(days), indent=2) + "\n"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "advice.json").write_text(text, encoding="utf-8")
        write(days, out / "advice.html")
    if as_json:
        sys.stdout.write(text)
        return
    console.print(render(days))
    if out is not None:
        console.print(Text(f"{out}/advice.html, advice.json"))


def render(days: Sequence[Shadow]) -> RenderableType:
    """Return the days as a table, with what they are of."""
    return Group(
        Text(headline(days)),
        table("Plans in shadow", *COLUMNS, rows=rows(days)),
        Text(),
        *(Text(each, style="dim") for each in remarks(days)),
    )


def headline(days: Sequence[Shadow]) -> str:
    """Return the result in a sentence."""
    reported = [each for each in days if each.saved_j is not None]
    if not reported:
        return f"{counted(len(days), 'day')} recorded; no saving is known of any."
    saved_j, metered_j = (
        sum(each.saved_j or 0.0 for each in reported),
        sum(e.metered_j for e in reported),
    )
    carbon = [each.saved_gco2e for each in reported if each.saved_gco2e is not None]
    also = f" and {quantities.carbon(sum(carbon))}" if carbon else ""
    return (
        f"In {counted(len(reported), 'day')} plans would have saved "
        f"{quantities.energy(saved_j)}{also}, {quantities.percent(saved_j / metered_j)} of the "
        "energy of these servers' GPUs."
    )


def rows(days: Iterable[Shadow]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each day."""
    for each in days:
        saved = each.saved_share
        yield (
            each.day,
            quantities.energy(each.metered_j) if each.models else _NONE,
            _NONE if each.metered_gco2e is None else quantities.carbon(each.metered_gco2e),
            _NONE if each.fit is None else f"{each.fit:.2f}",
            _NONE if saved is None else quantities.percent(saved),
            "" if each.saved_gco2e is None else quantities.carbon(each.saved_gco2e),
            _objectives(each),
        )


def _objectives(each: Shadow) -> str:
    if each.planned_j is None:
        return _NONE
    return f"missed: {', '.join(each.missed)}" if each.missed else "kept"


def remarks(days: Sequence[Shadow]) -> Iterator[str]:
    """Yield the profiles that were learnt, and what no plan was made for."""
    profiles = {name: text for each in days for name, text in each.profiles.items()}
    yield from (f"{name} on {text}." for name, text in sorted(profiles.items()))
    yield from sorted({f"{reason}." for each in days for reason in each.reasons})
    if any(each.fit is not None and each.saved_share is None for each in days):
        low, high = FITS
        yield (
            f"No saving is reported where the model's energy is not {low:g} to {high:g} times the "
            "meters'."
        )
    if any(each.saved_j is not None and each.saved_gco2e is None for each in days):
        yield "No intensity was recorded: give one (--intensity)."


def write(days: Sequence[Shadow], path: Path) -> None:
    """Write the days as one HTML file."""
    times_s = [datetime.fromisoformat(each.day).replace(tzinfo=UTC).timestamp() for each in days]

    def bars(get: Callable[[Shadow], float | None]) -> list[float | None]:
        return [get(each) for each in days]

    def kwh(value_j: float | None) -> float | None:
        return None if value_j is None else value_j / 3.6e6

    page.write(
        page.Report(
            title="What plans would have saved, day by day",
            headline=headline(days),
            about="In shadow: nothing was changed. Savings are of the GPUs that servers with a "
            "known profile hold; the model's share of the meters' energy is scaled to them.",
            parts=[
                Table("Plans in shadow", COLUMNS, list(rows(days))),
                Chart(
                    "Energy",
                    "kWh",
                    times_s,
                    [
                        Line("metered", bars(lambda each: kwh(each.metered_j))),
                        Line("would be saved", bars(lambda each: kwh(each.saved_j)), dashed=True),
                    ],
                    stepped=True,
                ),
                Table("Profiles and remarks", ("",), [(each,) for each in remarks(days)]),
            ],
        ),
        path,
    )


def document(days: Sequence[Shadow]) -> dict[str, Any]:
    """Return the days for JSON."""
    return {"days": [each.document() for each in days]}
