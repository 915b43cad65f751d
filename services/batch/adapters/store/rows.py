"""Rows of the database as values, and back."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import func
from sqlalchemy.engine import RowMapping

from cinquefoil.batch.v1.records import Batch, BatchError, BatchState, File
from services.batch.adapters.store.tables import batches
from services.batch.core.lines import Usage
from services.kit.units import J_PER_KWH

OPEN: Final = (
    BatchState.VALIDATING,
    BatchState.IN_PROGRESS,
    BatchState.FINALIZING,
    BatchState.CANCELLING,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive lines of a batch's input.

    Attributes:
        batch_id: The batch.
        number: From 0.
        offset_bytes, size_bytes: Place in the input file.
        first_line: Number of its first line, from 1.
        lines: Number of lines, blank ones included.
    """

    batch_id: str
    number: int
    offset_bytes: int
    size_bytes: int
    first_line: int
    lines: int

    @property
    def numbers(self) -> range:
        """Numbers of its lines."""
        return range(self.first_line, self.first_line + self.lines)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a line.

    Attributes:
        batch_id: The batch.
        line: Its place in the input file, from 1.
        failed: Whether it goes to the error file.
        content: The line of the output or error file.
        usage: Its cost.
    """

    batch_id: str
    line: int
    failed: bool
    content: bytes
    usage: Usage = field(default_factory=Usage)


USAGE: Final = (
    "prompt_tokens",
    "output_tokens",
    "energy_j",
    "carbon_gco2e",
    "energy_marginal_j",
    "carbon_marginal_gco2e",
)
"""Sums of what answers state themselves."""

_KWH: Final = func.coalesce(batches.c.begun_gco2e_per_kwh, 0.0) / J_PER_KWH
SUMS: Final = {
    **{name: batches.c[name] for name in ("completed", "failed", *USAGE)},
    "at_once_gco2e": batches.c.energy_marginal_j * _KWH,
    "own_pool_gco2e": batches.c.completed * func.coalesce(batches.c.own_pool_j, 0.0) * _KWH,
}

_SAME: Final = (
    "id",
    "owner",
    "endpoint",
    "model",
    "input_file_id",
    "output_file_id",
    "error_file_id",
    "lines",
    "completed",
    "failed",
    *USAGE,
)


def piece(row: RowMapping) -> Piece:
    """Return the piece of a row."""
    names = ("batch_id", "number", "offset_bytes", "size_bytes", "first_line", "lines")
    return Piece(**{name: row[name] for name in names})


def piece_row(found: Piece) -> dict[str, Any]:
    """Return the row of a piece."""
    return {name: getattr(found, name) for name in Piece.__slots__}


def _time(value: float) -> datetime:
    return datetime.fromtimestamp(value, UTC)


def file(row: RowMapping) -> File:
    """Return the file of a row."""
    names = ("id", "owner", "name", "purpose", "size_bytes")
    return File(
        **{name: row[name] for name in names},
        created_at=_time(row["created_s"]),
        expires_at=_time(row["expires_s"]),
    )


def file_row(found: File) -> dict[str, Any]:
    """Return the row of a file."""
    names = ("id", "owner", "name", "purpose", "size_bytes")
    return {name: getattr(found, name) for name in names} | {
        "created_s": found.created_at.timestamp(),
        "expires_s": found.expires_at.timestamp(),
    }


def batch(row: RowMapping) -> Batch:
    """Return the batch of a row."""
    times: dict[str, Any] = {
        f"{name[:-2]}_at": None if row[name] is None else _time(row[name])
        for name in ("in_progress_s", "finalizing_s", "ended_s", "cancelling_s")
    }
    begun_g_per_j = (row["begun_gco2e_per_kwh"] or 0.0) / J_PER_KWH
    return Batch(
        **{name: row[name] for name in _SAME},
        at_once_gco2e=row["energy_marginal_j"] * begun_g_per_j,
        own_pool_gco2e=row["completed"] * (row["own_pool_j"] or 0.0) * begun_g_per_j,
        **times,
        window=timedelta(seconds=row["window_s"]),
        state=BatchState(row["state"]),
        errors=tuple(BatchError(**each) for each in json.loads(row["errors"])),
        metadata=json.loads(row["metadata"]),
        created_at=_time(row["created_s"]),
    )


def batch_row(found: Batch) -> dict[str, Any]:
    """Return the row of a new batch; its other columns have defaults."""
    return {name: getattr(found, name) for name in _SAME} | {
        "window_s": found.window.total_seconds(),
        "state": found.state,
        "metadata": json.dumps(dict(found.metadata)),
        "created_s": found.created_at.timestamp(),
    }
