"""Turns published files into the form that is read here; each result has one SHA-256."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

Conversion = Literal[
    "azure_arrivals",
    "compact_json_lines",
    "electricity_maps_direct",
    "electricity_maps_lca",
    "national_grid_actual",
    "national_grid_forecast",
]
_TICKS_PER_US: Final = 10
_US_PER_S: Final = 1_000_000


def converted(how: Conversion, originals: Sequence[bytes]) -> bytes:
    """Return the converted content of published files, UTF-8.

    Args:
        how: The conversion.
        originals: Contents, in the order of time.

    Raises:
        ValueError, KeyError: A file is not of the form that the conversion expects.
    """
    lines = [line for each in originals for line in _LINES[how](each.decode("utf-8-sig"))]
    return ("\n".join([*_HEADS[how], *lines]) + "\n").encode()


def _azure(text: str) -> Iterator[str]:
    """Yield seconds since the first arrival, to the microsecond, and tokens in and out."""
    rows = list(csv.DictReader(text.splitlines()))
    first = _ticks(rows[0]["TIMESTAMP"])
    for row in rows:
        seconds, us = divmod((_ticks(row["TIMESTAMP"]) - first) // _TICKS_PER_US, _US_PER_S)
        yield f"{seconds}.{us:06d},{row['ContextTokens']},{row['GeneratedTokens']}"


def _ticks(text: str) -> int:
    """Return "2023-11-16 18:15:46.6805900" in units of 100 ns."""
    whole, _, fraction = text.partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * _TICKS_PER_US * _US_PER_S + int(fraction.ljust(7, "0"))


def _compact(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield json.dumps(json.loads(line), separators=(",", ":"))


def _electricity_maps(kind: str) -> Callable[[str], Iterator[str]]:
    def lines(text: str) -> Iterator[str]:
        for row in csv.DictReader(text.splitlines()):
            since = row["Datetime (UTC)"].replace(" ", "T")
            yield f"{since}Z,{float(row[f'Carbon Intensity gCO₂eq/kWh ({kind})']):.2f}"

    return lines


def _national_grid(column: str) -> Callable[[str], Iterator[str]]:
    def lines(text: str) -> Iterator[str]:
        for row in csv.DictReader(text.splitlines()):
            if row[column]:
                yield f"{row['datetime'].replace('Z', ':00Z')},{float(row[column]):.2f}"

    return lines


_LINES: Final[dict[Conversion, Callable[[str], Iterator[str]]]] = {
    "azure_arrivals": _azure,
    "compact_json_lines": _compact,
    "electricity_maps_direct": _electricity_maps("direct"),
    "electricity_maps_lca": _electricity_maps("LCA"),
    "national_grid_actual": _national_grid("carbon_intensity_production_avg"),
    "national_grid_forecast": _national_grid("Forecast Carbon Intensity (gCO2/kWh)"),
}
_TRACE: Final = ("timestamp,carbon_intensity_gco2_per_kwh",)
_HEADS: Final[dict[Conversion, tuple[str, ...]]] = {
    "azure_arrivals": ("arrival_s,input_tokens,output_tokens",),
    "compact_json_lines": (),
    "electricity_maps_direct": _TRACE,
    "electricity_maps_lca": _TRACE,
    "national_grid_actual": _TRACE,
    "national_grid_forecast": _TRACE,
}
