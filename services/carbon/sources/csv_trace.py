"""Reads traces from CSV: our own format, and the exports of Electricity Maps.

    ours               timestamp (ISO 8601 with "Z" or an offset),
                       carbon_intensity_gco2_per_kwh or carbon_intensity_gco2e_per_kwh
    Electricity Maps   "Datetime (UTC)" and, the first that is there,
                       "Carbon intensity gCO2eq/kWh (Life cycle)", "... (LCA)", "... (direct)"

Electricity Maps wrote "Intensity" and "intensity", and "CO2" with a subscript, in different years:
headers are compared without case and with Unicode compatibility forms folded. Other columns are
ignored. An empty value is a gap. Files are read line by line, and their lines are bounded: one of
nothing but commas would take 100 bytes of memory for each of its own.
"""

import csv
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from services.carbon.core.model import MAX_GCO2E_PER_KWH, Sample
from services.kit.config.loader import ConfigError, Mistake

_MOST_COLUMNS = 256
_LONGEST_HEADER = 256
_LONGEST_LINE = 16 * 2**10
_MOST_CHARACTERS = 64 * 2**20  # two years by the minute, in 75 ns and 8 bytes each
_MOST_EMPTY_LINES = 1000
_SHOWN = 16


class _Columns(NamedTuple):
    """Columns of a format: their headers, folded, or where they are.

    Attributes:
        time: Of the instant.
        value: Of the intensity.
        utc: Times carry no offset and mean UTC.
    """

    time: Any
    value: Any
    utc: bool


_FORMATS = (
    _Columns(
        "timestamp", ("carbon_intensity_gco2_per_kwh", "carbon_intensity_gco2e_per_kwh"), utc=False
    ),
    _Columns(
        "datetime (utc)",
        tuple(
            f"carbon intensity gco2eq/kwh ({scope})" for scope in ("life cycle", "lca", "direct")
        ),
        utc=True,
    ),
)
"""Of several headers of the intensity the first that is there counts."""


def read_trace(path: Path) -> tuple[Sample, ...]:
    """Return the samples of a CSV file, oldest first.

    Raises:
        ConfigError: The file cannot be read, has neither format, has an implausible intensity, or
            a time that is not after the one before. The message names line and column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(_lines(path, file))
            header = next(rows, [])
            columns = _columns(path, header)
            trace = tuple(_samples(path, header, columns, rows))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(path, [Mistake("file", 0, f"cannot be read: {error}")]) from error
    if not trace:
        raise ConfigError(path, [Mistake("file", 1, "has a header but no values")])
    return trace


def _lines(path: Path, file: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file, as far as they are bounded."""
    characters = empty = 0
    for number, line in enumerate(file, 1):
        characters += len(line)
        empty += line.isspace()
        if len(line) > _LONGEST_LINE:
            problem = f"a line has {len(line)} characters; at most {_LONGEST_LINE} are read"
        elif empty > _MOST_EMPTY_LINES:
            problem = f"more than {_MOST_EMPTY_LINES} lines are empty"
        elif characters > _MOST_CHARACTERS:
            problem = f"more than {_MOST_CHARACTERS} characters"
        else:
            yield line
            continue
        raise ConfigError(path, [Mistake("file", number, problem)])


def _columns(path: Path, header: Sequence[str]) -> _Columns:
    folded = [
        unicodedata.normalize("NFKC", name[:_LONGEST_HEADER]).strip().casefold()
        for name in header[:_MOST_COLUMNS]
    ]
    for known in _FORMATS:
        values = [name for name in known.value if name in folded]
        if known.time in folded and values:
            return _Columns(folded.index(known.time), folded.index(values[0]), known.utc)
    wanted = " or ".join(f"{known.time!r} and {known.value[0]!r}" for known in _FORMATS)
    raise ConfigError(path, [Mistake("header", 1, f"must name {wanted}; got {folded[:_SHOWN]}")])


def _samples(path: Path, header: Sequence[str], columns: _Columns, rows: Any) -> Iterator[Sample]:
    last = datetime.min.replace(tzinfo=UTC)
    for row in rows:
        if not row:  # an empty line
            continue
        column = columns.time
        try:
            last = _time(row, columns, after=last)
            column = columns.value
            value = _value(row, columns)
        except ValueError as error:
            mistake = Mistake(header[column], rows.line_num, str(error))
            raise ConfigError(path, [mistake]) from error
        if value is not None:
            yield Sample(last, value)


def _time(row: Sequence[str], columns: _Columns, *, after: datetime) -> datetime:
    text = _cell(row, columns.time)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"must be ISO 8601, got {text!r}") from None
    if time.tzinfo is None and not columns.utc:
        raise ValueError(f'must end in "Z" or an offset, got {text!r}')
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    if time <= after:
        raise ValueError(f"must be later than the row before, got {text!r}")
    return time


def _value(row: Sequence[str], columns: _Columns) -> float | None:
    text = _cell(row, columns.value)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_GCO2E_PER_KWH:
        raise ValueError(f"must be a number within 0..{MAX_GCO2E_PER_KWH:g}, got {text!r}")
    return value


def _cell(row: Sequence[str], column: int) -> str:
    if column >= len(row):
        raise ValueError(f"missing: the row ends after {len(row)} columns")
    return row[column].strip()
