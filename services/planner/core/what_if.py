"""What would be decided under other circumstances: dry runs.

Pure: a proposal is made from a copy of the present; nothing is stored and nothing is touched.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from services.kit import config
from services.kit.config import Objective
from services.kit.errors import InvalidArgument
from services.planner.core.decide import Snapshot, check_strategy
from services.planner.core.model import Gpu, Pool

MAX_ADDED_GPUS = 100_000


@dataclass(frozen=True, slots=True)
class AddedGpus:
    """GPUs that are not there. Attributes: type (one the fleet has), node, count (>= 1)."""

    type: str
    node: str
    count: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Circumstances that differ from the present; an empty field is as it is.

    Attributes:
        demand_rps: By model, req/s.
        intensity_gco2e_per_kwh: By zone. The forecast of what follows is then left out.
        objective: Fields of `deployment.Objective`, for example {"carbon_weight": 1.0,
            "goals": {"clover": 0, "fewest_gpus": 1}}; fields of nested sections are merged.
        strategy: Name of the strategy.
        without_gpus: UUIDs of GPUs that are taken away.
        added_gpus: GPUs that are added, empty ones.
    """

    demand_rps: Mapping[str, float] = field(default_factory=dict)
    intensity_gco2e_per_kwh: Mapping[str, float] = field(default_factory=dict)
    objective: Mapping[str, Any] = field(default_factory=dict)
    strategy: str = ""
    without_gpus: frozenset[str] = frozenset()
    added_gpus: tuple[AddedGpus, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything differs from the present."""
        return self != Changes()


def alter(snapshot: Snapshot, changes: Changes, nodes: Mapping[str, config.Node]) -> Snapshot:
    """Return `snapshot` under other circumstances.

    Args:
        snapshot: The present.
        changes: What is otherwise.
        nodes: The deployment's nodes, whose zone and PUE added GPUs get.

    Raises:
        InvalidArgument: A value is out of range or names what does not exist; `field` says which,
            as the path in a DryRunRequest.
    """
    known = {gpu.pool.zone: gpu.pool.intensity_gco2e_per_kwh for gpu in snapshot.gpus}
    _check_numbers(
        "demand_rps", changes.demand_rps, {model.name for model in snapshot.models}, "model"
    )
    zones = known.keys() | {node.zone for node in nodes.values()}
    _check_numbers("intensity_gco2e_per_kwh", changes.intensity_gco2e_per_kwh, zones, "zone")
    if changes.strategy:
        check_strategy("what_if.strategy", changes.strategy)
    intensity = {**known, **changes.intensity_gco2e_per_kwh}
    return replace(
        snapshot,
        gpus=tuple(_fleet(snapshot, changes, nodes, intensity)),
        models=tuple(
            replace(model, demand_rps=changes.demand_rps[model.name])
            if model.name in changes.demand_rps
            else model
            for model in snapshot.models
        ),
        objective=_revised(snapshot.objective, changes.objective),
        strategy=changes.strategy or snapshot.strategy,
        forecast=() if changes.intensity_gco2e_per_kwh else snapshot.forecast,
    )


def _revised(objective: Objective, fields: Mapping[str, Any]) -> Objective:
    """Return `objective` with some fields changed; those of nested sections are merged."""
    try:
        return Objective.model_validate(_merged(objective.model_dump(), fields))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        where = ".".join(("what_if", *map(str, first["loc"])))
        raise InvalidArgument.at(where, f"{message}, got {first['input']!r}") from error


def _merged(base: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    nested = {
        name: _merged(base[name], value)
        for name, value in fields.items()
        if isinstance(value, Mapping) and isinstance(base.get(name), dict)
    }
    return {**base, **fields, **nested}


def _fleet(
    snapshot: Snapshot,
    changes: Changes,
    nodes: Mapping[str, config.Node],
    intensity: Mapping[str, float],
) -> Iterator[Gpu]:
    unknown = changes.without_gpus - {gpu.uuid for gpu in snapshot.gpus}
    if unknown:
        raise _wrong("without_gpus", f"the fleet has no GPU {min(unknown)!r}")
    for gpu in snapshot.gpus:
        if gpu.uuid not in changes.without_gpus:
            value = intensity[gpu.pool.zone]
            yield replace(gpu, pool=replace(gpu.pool, intensity_gco2e_per_kwh=value))
    for index, added in enumerate(changes.added_gpus):
        pool = _pool(f"added_gpus[{index}]", added, snapshot, nodes, intensity)
        for number in range(1, added.count + 1):
            yield Gpu(f"added-{index + 1}-{number}", added.node, pool)


def _pool(
    path: str,
    added: AddedGpus,
    snapshot: Snapshot,
    nodes: Mapping[str, config.Node],
    intensity: Mapping[str, float],
) -> Pool:
    types = {gpu.pool.type.name: gpu.pool.type for gpu in snapshot.gpus}
    if added.type not in types:
        raise _wrong(
            f"{path}.type", f"must be a type of the fleet ({', '.join(types)}), got {added.type!r}"
        )
    if added.node not in nodes:
        raise _wrong(
            f"{path}.node", f"must be one of {', '.join(sorted(nodes))}, got {added.node!r}"
        )
    if not 1 <= added.count <= MAX_ADDED_GPUS:
        raise _wrong(f"{path}.count", f"must be 1..{MAX_ADDED_GPUS}, got {added.count}")
    node = nodes[added.node]
    if node.zone not in intensity:
        raise _wrong(
            "intensity_gco2e_per_kwh", f"needed for zone {node.zone}, whose intensity is not known"
        )
    return Pool(types[added.type], node.zone, node.pue, intensity[node.zone])


def _check_numbers(
    name: str, values: Mapping[str, float], known: frozenset[str] | set[str], what: str
) -> None:
    for key, value in values.items():
        if key not in known:
            raise _wrong(name, f"no {what} {key!r}; there is {', '.join(sorted(known))}")
        if not (math.isfinite(value) and value >= 0):
            raise _wrong(f"{name}[{key}]", f"must be a number >= 0, got {value:g}")


def _wrong(name: str, message: str) -> InvalidArgument:
    return InvalidArgument.at(f"what_if.{name}", message)
