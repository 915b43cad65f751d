"""Dry runs: decisions under other circumstances.

Pure: a proposal is made from a copy of the current state; nothing is stored or changed.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, replace

from pydantic import ValidationError

from cinquefoil.planner.v1.records import AddedGpus, WhatIf
from services.kit import config
from services.kit.config import CarbonBudget, Objective
from services.kit.config.planning import MAX_BUDGETS, budget_problems
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.segment import some_of
from services.planner.core.decide import Snapshot, check_strategy
from services.planner.core.energy_prices.course import wrong_price
from services.planner.core.model import Gpu, Pool

MAX_ADDED_GPUS = 100_000


def of_another_world(changes: WhatIf) -> bool:
    """Return whether demand, grid or fleet differ from the current ones, not only wishes."""
    wishes = WhatIf(
        carbon_weight=changes.carbon_weight,
        accuracy_floor=changes.accuracy_floor,
        accuracy_mean=changes.accuracy_mean,
        cost=changes.cost,
        goals=changes.goals,
        strategy=changes.strategy,
    )
    return changes != wishes


PriceOf = Callable[[Objective, str], Mapping[str, float]]
"""Price of accuracy under an objective and a strategy, by model; see `Snapshot.accuracy_price`."""


def alter(
    snapshot: Snapshot,
    changes: WhatIf,
    nodes: Mapping[str, config.Node],
    price_of: PriceOf = lambda _objective, _strategy: {},
) -> Snapshot:
    """Return `snapshot` under other circumstances.

    Args:
        snapshot: The current state.
        changes: The changes to it.
        nodes: The deployment's nodes, whose zone and PUE apply to added GPUs.
        price_of: Price of accuracy with which a mean is kept.

    Raises:
        InvalidArgument: A value is out of range or names what does not exist; `field` is its path
            in the DryRunRequest.
    """
    known = {gpu.pool.zone: gpu.pool.intensity_gco2e_per_kwh for gpu in snapshot.gpus}
    _check_numbers(
        "demand_rps", changes.demand_rps, {model.name for model in snapshot.models}, "model"
    )
    zones = known.keys() | {node.zone for node in nodes.values()}
    _check_numbers("intensity_gco2e_per_kwh", changes.intensity_gco2e_per_kwh, zones, "zone")
    for zone, eur in changes.energy_price_eur_per_kwh.items():
        if zone not in zones:
            raise _wrong("energy_price_eur_per_kwh", f"no zone {zone!r}; there is {some_of(zones)}")
        if problem := wrong_price(eur):
            raise _wrong(f"energy_price_eur_per_kwh[{zone}]", problem)
    if changes.strategy:
        check_strategy("what_if.strategy", changes.strategy)
    intensity = {**known, **changes.intensity_gco2e_per_kwh}
    strategy = changes.strategy or snapshot.strategy
    objective = revised(snapshot.objective, changes)
    return replace(
        snapshot,
        gpus=tuple(_fleet(snapshot, changes, nodes, intensity)),
        models=tuple(
            replace(model, demand_rps=changes.demand_rps[model.name])
            if model.name in changes.demand_rps
            else model
            for model in snapshot.models
        ),
        objective=objective,
        strategy=strategy,
        accuracy_price=price_of(objective, strategy),
        forecast=()
        if changes.intensity_gco2e_per_kwh or changes.energy_price_eur_per_kwh
        else snapshot.forecast,
    )


def wished_budgets(
    changes: WhatIf, models: Collection[str], sites: Collection[str]
) -> tuple[CarbonBudget, ...]:
    """Return the carbon budgets of a what-if.

    Args:
        changes: The what-if.
        models: Names of the models.
        sites: Names of the sites.

    Raises:
        InvalidArgument: A budget is out of range or names what does not exist, or there are others
            wishes that say what accuracy is worth.
    """
    given = changes.carbon_budgets
    for name in ("carbon_weight", "accuracy_mean", "cost", "goals"):
        if getattr(changes, name) is not None:
            raise _wrong("carbon_budgets", f"{name} says what accuracy is worth already; omit one")
    if len(given) > MAX_BUDGETS:
        raise _wrong("carbon_budgets", f"must be at most {MAX_BUDGETS}, got {len(given)}")
    found = []
    for n, each in enumerate(given):
        fields = {"kg": each.kg, "per": each.per, "models": each.models, "sites": each.sites}
        try:
            found.append(CarbonBudget.model_validate(fields))
        except ValidationError as error:
            where, why = _first(error)
            raise _wrong(".".join((f"carbon_budgets[{n}]", *where)), why) from error
    for problem in budget_problems(found, models, sites):
        raise _wrong("carbon_budgets", problem.partition(": ")[2])
    return tuple(found)


def _first(error: ValidationError) -> tuple[tuple[str, ...], str]:
    """Return the path and the message of the first problem."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    return tuple(map(str, first["loc"])), f"{message}, got {first['input']!r}"


def revised(objective: Objective, changes: WhatIf) -> Objective:
    """Return `objective` with the wishes of a what-if.

    A mean accuracy ends with a weight of carbon, and with goals that do not count carbon; costs do,
    too, and with a mean accuracy. A mean accuracy ends with costs.
    """
    mean = objective.accuracy_mean and objective.accuracy_mean.model_dump()
    if changes.accuracy_mean is not None:
        mean = (
            {**(mean or {}), "at_least": changes.accuracy_mean} if changes.accuracy_mean else None
        )
    cost: dict[str, object] = {}
    if changes.carbon_weight is not None or (changes.goals and not changes.goals.clover):
        mean, cost = None, {"kind": "clover"}
    elif changes.cost is not None:
        prices = asdict(changes.cost).items()
        mean, cost = None, {"kind": "cost", **{k: each for k, each in prices if each is not None}}
    elif changes.accuracy_mean:
        cost = {"kind": "clover"}
    wishes = {
        "carbon_weight": changes.carbon_weight,
        "accuracy_floor": changes.accuracy_floor,
        "goals": None if changes.goals is None else asdict(changes.goals),
    }
    given = {name: value for name, value in wishes.items() if value is not None}
    try:
        kept = objective.model_dump(exclude_unset=True)
        return Objective.model_validate({**kept, **given, **cost, "accuracy_mean": mean})
    except ValidationError as error:
        where, why = _first(error)
        raise _wrong(".".join(where), why) from error


def _fleet(
    snapshot: Snapshot,
    changes: WhatIf,
    nodes: Mapping[str, config.Node],
    intensity: Mapping[str, float],
) -> Iterator[Gpu]:
    gone = frozenset(changes.without_gpus)
    unknown = gone - {gpu.uuid for gpu in snapshot.gpus}
    if unknown:
        raise _wrong("without_gpus", f"the fleet has no GPU {min(unknown)!r}")
    if gone and not changes.added_gpus and gone == {gpu.uuid for gpu in snapshot.gpus}:
        raise FailedPrecondition(
            "the fleet has no GPU without these: no request would be answered; `cinquefoil plan "
            "dry-run --add-gpus TYPE:NODE:COUNT` says what others would do"
        )
    known = {gpu.pool.zone: gpu.pool.eur_per_kwh for gpu in snapshot.gpus}
    eur_per_kwh = {**known, **changes.energy_price_eur_per_kwh}
    for gpu in snapshot.gpus:
        if gpu.uuid not in gone:
            zone = gpu.pool.zone
            pool = replace(
                gpu.pool,
                intensity_gco2e_per_kwh=intensity[zone],
                eur_per_kwh=eur_per_kwh[zone],
            )
            yield replace(gpu, pool=pool)
    for index, added in enumerate(changes.added_gpus):
        pool = _pool(f"added_gpus[{index}]", added, snapshot, nodes, intensity)
        pool = replace(pool, eur_per_kwh=eur_per_kwh.get(pool.zone, 0.0))
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
    site = next((gpu.pool.site for gpu in snapshot.gpus if gpu.node == added.node), "")
    return Pool(types[added.type], node.zone, node.pue, intensity[node.zone], site)


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
