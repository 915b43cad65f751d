"""Profile tables on disk: CSV, or Parquet where the name ends in ".parquet".

Our own carry the fingerprint of the machine: CSV in comment lines before the header, one
`# key: value` each, Parquet in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, get_type_hints

import polars as pl

from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Fingerprint, Measurement

_COMMENT: Final = "#"
_PARQUET: Final = ".parquet"
_KEYS: Final = tuple(field.name for field in fields(Fingerprint))
_TYPES: Final = {str: pl.String, int: pl.Int64, float: pl.Float64}
_SCHEMA: Final = pl.Schema(
    (name, _TYPES[kind]) for name, kind in get_type_hints(Measurement).items()
)


def read_table(path: Path) -> pl.DataFrame:
    """Return the rows of a table, of any format.

    Raises:
        InvalidArgument: The file cannot be read.
    """
    try:
        if path.suffix == _PARQUET:
            return pl.read_parquet(path)
        return pl.read_csv(path, comment_prefix=_COMMENT)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InvalidArgument(f"{path}: {error}", field="profile.path") from error


def read_measurements(path: Path) -> tuple[Measurement, ...]:
    """Return the rows that `write_table` wrote.

    Raises:
        InvalidArgument: The file cannot be read, or is no table of ours with every column.
    """
    frame = read_table(path)
    missing = [name for name in _SCHEMA if name not in frame.columns]
    if missing:
        raise InvalidArgument(
            f"{path}: the columns {', '.join(missing)} are missing; only tables that `cinquefoil "
            "gpuagent profile` wrote have them",
            field="profile.path",
        )
    rows = frame.select(_SCHEMA.names()).with_columns(pl.col(pl.String).fill_null(""))
    return tuple(Measurement(**row) for row in rows.cast(_SCHEMA).iter_rows(named=True))


def read_fingerprint(path: Path) -> Fingerprint | None:
    """Return the machine that a table was measured on; None: not recorded.

    Raises:
        InvalidArgument: The file cannot be read.
    """
    try:
        if path.suffix == _PARQUET:
            found: Mapping[str, str] = pl.read_parquet_metadata(path)
        else:
            with path.open(encoding="utf-8") as file:
                head = takewhile(lambda line: line.startswith(_COMMENT), file)
                found = dict(_comment(line) for line in head)
    except (OSError, UnicodeError, pl.exceptions.PolarsError) as error:
        raise InvalidArgument(f"{path}: {error}", field="profile.path") from error
    known = {key: _value(found[key]) for key in _KEYS if key in found}
    return Fingerprint(**known) if {"gpu", "product_name"} <= known.keys() else None


def write_table(path: Path, fingerprint: Fingerprint, measurements: Iterable[Measurement]) -> None:
    """Replace a table atomically; a missing folder is created.

    Args:
        path: CSV, or Parquet where it ends in ".parquet".
        fingerprint: The machine.
        measurements: The rows.
    """
    frame = pl.DataFrame([asdict(each) for each in measurements], schema=_SCHEMA)
    notes = {key: json.dumps(value) for key, value in asdict(fingerprint).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    if path.suffix == _PARQUET:
        frame.write_parquet(draft, metadata=notes)
    else:
        head = "".join(f"{_COMMENT} {key}: {value}\n" for key, value in notes.items())
        draft.write_text(head + frame.write_csv(), encoding="utf-8")
    draft.replace(path)


def _comment(line: str) -> tuple[str, str]:
    key, _, value = line.removeprefix(_COMMENT).partition(":")
    return key.strip(), value.strip()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # written by hand
