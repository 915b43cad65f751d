"""Input files of capacity planning: services and profiles.

Services, in one of two forms:

- ParvaGPU's (SC'24): two CSV files without a header, requests/s and ms. A row is a scenario; a
  column is a model, in alphabetical order of the profiles' file names; N/A: not in this scenario.
- Ours: a CSV file with the header `model,rate_rps,latency_s`, or a YAML list of such mappings:

      - {model: resnet50, rate_rps: 829, latency_s: 0.205}

Profiles: one CSV or Parquet file per model in a folder, in either format of
`services.kit.profiles.table`.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.kit.config.loader import ConfigError, read_yaml
from services.kit.config.validation_messages import worded
from services.kit.errors import InvalidArgument
from services.kit.profiles.table import TableProfile
from services.planner.capacity.fleet_sizing import Service

NOMINAL_GMACS = 1.0
"""Nominal arithmetic per item, 1e9: the tables lack it, and energies are meaningless."""

ABSENT = "N/A"
PROFILE_SUFFIXES = (".csv", ".parquet")
YAML_SUFFIXES = (".yaml", ".yml")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Row(BaseModel):
    """A service in Cinquefoil's format."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1)]
    rate_rps: Positive
    latency_s: Positive


def read_profiles(folder: Path, gpu: str) -> dict[str, TableProfile]:
    """Return the profiles in a folder by model, in order of file name.

    Args:
        folder: Folder with files named after their models.
        gpu: GPU type of rows without one.

    Raises:
        InvalidArgument: There is no profile, or one is invalid; the message names file and row.
    """
    if not folder.is_dir():
        raise InvalidArgument(f"{folder}: no such folder", field="profiles")
    files = sorted(each for each in folder.iterdir() if each.suffix in PROFILE_SUFFIXES)
    if not files:
        raise InvalidArgument(f"{folder}: no .csv or .parquet file", field="profiles")
    return {
        file.stem: TableProfile.read(file, gpu=gpu, gmacs_per_item=NOMINAL_GMACS) for file in files
    }


def read_services(path: Path) -> tuple[Service, ...]:
    """Return the services of a file in Cinquefoil's format.

    Raises:
        InvalidArgument: The file cannot be read, or a row is invalid; the message names the row.
    """
    rows = _yaml(path) if path.suffix in YAML_SUFFIXES else _csv(path)
    services = tuple(_service(path, number, row) for number, row in rows.items())
    if not services:
        raise InvalidArgument(f"{path}: no service", field="services")
    names = [service.model for service in services]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidArgument(f"{path}: more than once: {', '.join(sorted(twice))}", field="model")
    return services


def read_scenario(
    rates: Path, latencies: Path, scenario: int, models: Sequence[str]
) -> tuple[Service, ...]:
    """Return the services of one row of ParvaGPU's files.

    Args:
        rates: File with request rates, req/s.
        latencies: File with latency objectives, ms.
        scenario: Number of the row, from 1.
        models: Names of the columns.

    Raises:
        InvalidArgument: A file cannot be read, lacks the row, or has an invalid number; the message
            names file, row and model.
    """
    found_rps = _scenario(rates, scenario, models)
    found_ms = _scenario(latencies, scenario, models)
    for model in models:
        if (model in found_rps) != (model in found_ms):
            absent = latencies if model in found_rps else rates
            raise InvalidArgument(
                f"{absent}: row {scenario}: {model}: {ABSENT}, but the other file has a number",
                field=model,
            )
    if not found_rps:
        raise InvalidArgument(f"{rates}: row {scenario}: every model is {ABSENT}", field="scenario")
    return tuple(
        Service(model, rate_rps, found_ms[model] / 1e3) for model, rate_rps in found_rps.items()
    )


def _scenario(path: Path, scenario: int, models: Sequence[str]) -> dict[str, float]:
    rows = _cells(path)
    if not 1 <= scenario <= len(rows):
        there_are = f"there are 1 to {len(rows)}" if rows else "the file is empty"
        raise InvalidArgument(f"{path}: no scenario {scenario}; {there_are}", field="scenario")
    row = rows[scenario - 1]
    if len(row) != len(models):
        raise InvalidArgument(
            f"{path}: row {scenario}: {len(row)} columns for {len(models)} profiles "
            f"({', '.join(models)})",
            field="scenario",
        )
    return {
        model: _number(f"{path}: row {scenario}: {model}", model, cell)
        for model, cell in zip(models, row, strict=True)
        if cell.upper() != ABSENT
    }


def _number(where: str, model: str, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InvalidArgument(
            f"{where}: must be a positive number or {ABSENT}, got {cell!r}", field=model
        )
    return number


def _csv(path: Path) -> dict[int, Mapping[str, Any]]:
    header, *rows = _cells(path) or [[]]
    if twice := {name for name in header if header.count(name) > 1}:
        raise InvalidArgument(
            f"{path}: row 1: more than once: {', '.join(sorted(twice))}", field="services"
        )
    if missing := [name for name in _Row.model_fields if name not in header]:
        raise InvalidArgument(
            f"{path}: row 1 is the header and lacks {', '.join(missing)}", field="services"
        )
    for number, row in enumerate(rows, start=2):
        if row and len(row) != len(header):
            raise InvalidArgument(
                f"{path}: row {number}: {len(row)} cells for {len(header)} columns "
                f"({', '.join(header)})",
                field="services",
            )
    return {
        number: dict(zip(header, row, strict=True))
        for number, row in enumerate(rows, start=2)
        if row
    }


def _cells(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file, without a byte order mark, as spreadsheets write it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [[cell.strip() for cell in row] for row in csv.reader(file)]
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}", field="path") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: is not text (UTF-8)", field="path") from error
    except csv.Error as error:
        raise InvalidArgument(f"{path}: is not CSV: {error}", field="path") from error


def _yaml(path: Path) -> dict[int, Any]:
    try:
        rows, _ = read_yaml(path)
    except ConfigError as error:
        raise InvalidArgument(str(error), field="services") from error
    if not isinstance(rows, list):
        raise InvalidArgument(f"{path}: must be a list of services", field="services")
    return dict(enumerate(rows, start=1))


def _service(path: Path, number: int, row: Any) -> Service:
    try:
        checked = _Row.model_validate(row)
    except ValidationError as error:
        loc, message = worded(error.errors(include_url=False)[0], _Row.model_json_schema())
        place = "".join(f"{part}: " for part in loc)
        raise InvalidArgument(
            f"{path}: row {number}: {place}{message}", field=".".join(map(str, loc)) or "services"
        ) from error
    return Service(checked.model, checked.rate_rps, checked.latency_s)
