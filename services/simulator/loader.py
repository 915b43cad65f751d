"""Loading of a scenario file and everything it names; the only module here that reads files."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError

from services.carbon.core.sources.source import Source
from services.carbon.sources.factory import build
from services.kit.config import Deployment
from services.kit.config.carbon_sources import LiveSource
from services.kit.config.loader import (
    ConfigError,
    Mistake,
    document,
    line_of,
    load,
    mistakes,
    resolved,
)
from services.kit.errors import InvalidArgument
from services.planner.adapters.model_loader import load_models
from services.planner.core.model import Model
from services.planner.core.problem.shortfall import unservable
from services.simulator import scenario as schema
from services.simulator.device import types_together
from services.simulator.supported import Finding, unsupported

_MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A scenario with everything that it names.

    Attributes:
        scenario: The scenario of the file.
        deployment: The deployment, with the scenario's carbon sources.
        models: Its models, with their profiles.
        start: Grid time at the start.
        sources: Carbon intensity by zone.
        columns: Rates (req/s) or arrivals (s) by model, if from a file.
        lengths: Tokens of prompts and answers by model, shape (requests, 2), if from a file.
    """

    scenario: schema.Scenario
    deployment: Deployment
    models: tuple[Model, ...]
    start: datetime
    sources: Mapping[str, Source]
    columns: Mapping[str, Numbers]
    lengths: Mapping[str, NDArray[np.int64]]


def read(path: Path) -> Setting:
    """Read a scenario and all that it refers to; relative paths are relative to the file.

    Raises:
        ConfigError: The scenario, its deployment or a trace is invalid; names the line.
        InvalidArgument: A profile's table is invalid.
    """
    data, tree = document(path)
    try:
        found = resolved(schema.Scenario(**data), path.resolve().parent)
    except ValidationError as error:
        raise ConfigError(path, list(mistakes(error, tree, schema.Scenario))) from error
    deployment = load(found.deployment) if isinstance(found.deployment, Path) else found.deployment
    _refuse(
        path,
        tree,
        (*_unknown(found, deployment), *_live(found, deployment), *unsupported(found, deployment)),
    )
    models = load_models(deployment)
    _refuse(path, tree, _unservable(models, deployment))
    carbon = deployment.carbon
    zones = {
        name: zone.model_copy(update={"source": found.carbon[name]})
        if name in found.carbon
        else zone
        for name, zone in carbon.zones.items()
    }
    replay = carbon.replay.model_copy(
        update={"start": found.start or carbon.replay.start, "speedup": found.grid_speedup}
    )
    carbon = carbon.model_copy(update={"zones": zones, "replay": replay})
    deployment = deployment.model_copy(update={"carbon": carbon})
    start, sources = build(carbon, _MIDNIGHT)
    return Setting(
        scenario=found,
        deployment=deployment,
        models=models,
        start=start,
        sources=sources,
        columns=dict(_columns(found.load)),
        lengths=dict(_lengths(found.load)),
    )


def _refuse(path: Path, tree: yaml.Node | None, findings: Iterable[Finding]) -> None:
    found = [
        Mistake(".".join(map(str, where)), line_of(tree, where), text) for where, text in findings
    ]
    if found:
        raise ConfigError(path, found)


def _unservable(models: tuple[Model, ...], deployment: Deployment) -> Iterator[Finding]:
    """Yield models that no variant can serve on the simulated GPUs."""
    planner, gpus = deployment.planner, types_together(deployment.nodes.values())
    for where, text in unservable(models, gpus, planner.objective, planner.batch_sizes):
        yield ("deployment", "models", *where), text


def _unknown(found: schema.Scenario, deployment: Deployment) -> Iterator[Finding]:
    for section, names, known in (
        ("load", found.load, deployment.models),
        ("texts", found.texts, deployment.models),
        ("waiting", found.waiting, deployment.models),
        ("slowdown", found.slowdown, deployment.models),
        ("carbon", found.carbon, deployment.carbon.zones),
    ):
        what = "zone" if section == "carbon" else "model"
        for name in names:
            if name not in known:
                have = ", ".join(sorted(known))
                yield (section, name), f"the deployment has no {what} {name!r}; it has {have}"


def _live(found: schema.Scenario, deployment: Deployment) -> Iterator[Finding]:
    for name, zone in deployment.carbon.zones.items():
        live = isinstance(found.carbon[name], LiveSource) if name in found.carbon else zone.live
        if live:
            text = "has a live source, and virtual time is not the present; give a source here"
            yield ("carbon", name), f"zone {name!r} {text}"


def _columns(loads: Mapping[str, schema.Load]) -> Iterator[tuple[str, Numbers]]:
    for model, each in loads.items():
        match each:
            case schema.TraceLoad():
                yield model, read_column(each.path, each.column)[each.first_row :] * each.scale
            case schema.RecordedLoad():
                times_s = read_column(each.path, each.column)
                if np.any(np.diff(times_s) < 0):
                    raise InvalidArgument(f"{each.path}: arrivals must be in order of time")
                yield model, times_s


def _lengths(loads: Mapping[str, schema.Load]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    for model, each in loads.items():
        if isinstance(each, schema.RecordedLoad) and each.prompt_column:
            columns = (each.prompt_column, each.answer_column)
            tokens = [read_column(each.path, column) for column in columns]
            yield model, np.maximum(np.column_stack(tokens), 1).astype(np.int64)


def read_column(path: Path, column: str) -> Numbers:
    """Return one column of a CSV file with a header.

    Raises:
        ConfigError: The file cannot be read, lacks the column, or has values in it other than
            finite numbers >= 0.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if column not in (rows.fieldnames or ()):
                have = ", ".join(rows.fieldnames or ())
                raise ConfigError(path, [Mistake("header", 1, f"no column {column!r}: {have}")])
            values = [_number(path, rows.line_num, column, row[column]) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(path, [Mistake("file", 0, f"cannot be read: {error}")]) from error
    if not values:
        raise ConfigError(path, [Mistake("file", 1, "has a header but no values")])
    return np.array(values, dtype=np.float64)


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(path, [Mistake(column, line, f"must be a number >= 0, got {text!r}")])
    return value
