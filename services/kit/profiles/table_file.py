"""Profile tables on disk: CSV, or Parquet where the name ends in ".parquet".

Our own carry the fingerprint of the machine: CSV in comment lines before the header, one
`# key: value` each, Parquet in the file's metadata. CSV takes no library: Polars, which reads
and writes Parquet, is as large as all others that a planner needs.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Fingerprint, Measurement
from services.kit.whole_file import replacing

if TYPE_CHECKING:
    from types import ModuleType

_COMMENT: Final = "#"
_PARQUET: Final = ".parquet"
_KEYS: Final = tuple(field.name for field in fields(Fingerprint))
_COLUMNS: Final[Mapping[str, type]] = get_type_hints(Measurement)
_OF_TEXTS: Final = frozenset({
    "prompt_tokens", "context_tokens", "step_s", "step_j", "prompt_token_s", "prompt_token_j",
})  # fmt: skip
"""Columns that older tables lack."""

Row = dict[str, Any]
"""Numbers, text, and None for an empty field, by column."""


def read_table(path: Path) -> tuple[Row, ...]:
    """Return the rows of a table of any columns.

    Raises:
        InvalidArgument: The file cannot be read, or has no row.
    """
    try:
        rows = _parquet_rows(path) if path.suffix == _PARQUET else _csv_rows(path)
    except (OSError, UnicodeError, csv.Error) as error:
        raise InvalidArgument(f"{path}: {error}", field="profile.path") from error
    if not rows:
        raise InvalidArgument(f"{path}: the table has no row", field="profile.path")
    return rows


def read_measurements(path: Path) -> tuple[Measurement, ...]:
    """Return the rows that `write_table` wrote.

    Raises:
        InvalidArgument: The file cannot be read, or is no table of ours with every column.
    """
    rows = read_table(path)
    missing = [name for name in _COLUMNS if name not in rows[0] and name not in _OF_TEXTS]
    if missing:
        raise InvalidArgument(
            f"{path}: the columns {', '.join(missing)} are missing; only tables that `cinquefoil "
            "gpuagent profile` wrote have them",
            field="profile.path",
        )
    try:
        return tuple(Measurement(**_typed(row)) for row in rows)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{path}: {error}", field="profile.path") from error


def read_fingerprint(path: Path) -> Fingerprint | None:
    """Return the machine that a table was measured on; None: not recorded.

    Raises:
        InvalidArgument: The file cannot be read.
    """
    try:
        if path.suffix == _PARQUET:
            found: Mapping[str, str] = _parquet_notes(path)
        else:
            with path.open(encoding="utf-8-sig") as file:
                head = takewhile(lambda line: line.startswith(_COMMENT), file)
                found = dict(_comment(line) for line in head)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"{path}: {error}", field="profile.path") from error
    known = {key: _value(found[key]) for key in _KEYS if key in found}
    return Fingerprint(**known) if {"gpu", "product_name"} <= known.keys() else None


def write_table(
    path: Path,
    fingerprint: Fingerprint,
    measurements: Iterable[Measurement],
    columns: Sequence[str] = (*_COLUMNS,),
) -> None:
    """Replace a table atomically; a missing folder is created.

    Args:
        path: CSV, or Parquet where it ends in ".parquet".
        fingerprint: The machine.
        measurements: The rows.
        columns: Of a CSV file; others were not measured.
    """
    rows = [asdict(each) for each in measurements]
    notes = {key: json.dumps(value) for key, value in asdict(fingerprint).items()}
    with replacing(path) as draft:
        if path.suffix == _PARQUET:
            polars = _polars(path)
            polars.DataFrame(rows, schema=_COLUMNS).write_parquet(draft, metadata=notes)
            return
        with draft.open("w", encoding="utf-8", newline="") as file:
            file.writelines(f"{_COMMENT} {key}: {value}\n" for key, value in notes.items())
            table = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


def _csv_rows(path: Path) -> tuple[Row, ...]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = (line for line in file if not line.startswith(_COMMENT))
        rows = tuple(csv.DictReader(lines, strict=True))
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise csv.Error(f"row {number}: must have one field for each column")
    return tuple({name: _cell(text) for name, text in row.items()} for row in rows)


def _cell(text: str) -> str | int | float | None:
    """Return the number that a field is, or its text; None where it is empty."""
    for kind in () if "_" in text else (int, float):  # Python reads 1_000 as a number
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def _typed(row: Row) -> Row:
    """Return the columns of a measurement, each of its own type."""
    return {
        name: "" if kind is str and row[name] is None else kind(row[name])
        for name, kind in _COLUMNS.items()
        if name in row
    }


def _parquet_rows(path: Path) -> tuple[Row, ...]:
    polars = _polars(path)
    try:
        return tuple(polars.read_parquet(path).iter_rows(named=True))
    except polars.exceptions.PolarsError as error:
        raise OSError(error) from error


def _parquet_notes(path: Path) -> dict[str, str]:
    polars = _polars(path)
    try:
        notes: dict[str, str] = polars.read_parquet_metadata(path)
    except polars.exceptions.PolarsError as error:
        raise OSError(error) from error
    return notes


def _polars(path: Path) -> ModuleType:
    try:
        return import_module("polars")
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"{path}: Parquet needs Polars, which is not installed here: convert the table to CSV, "
            "or build the image with LIBRARIES=parquet",
            field="profile.path",
        ) from error


def _comment(line: str) -> tuple[str, str]:
    key, _, value = line.removeprefix(_COMMENT).partition(":")
    return key.strip(), value.strip()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # written by hand
