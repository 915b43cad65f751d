"""A saving by lever: variants, slices, clocks, place, the grid over time, consolidation."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from cinquefoil.planner.v1.plan_pb2 import Plan, Prediction
from cinquefoil.planner.v1.planner_pb2 import AccountEntry

CONSOLIDATION: Final = "consolidation"
TIME: Final = "time"
WORDS: Final = {
    "variant": "variants",
    "slice": "slices",
    "clocks": "clocks",
    "place": "place",
    TIME: "the grid over time",
    CONSOLIDATION: "consolidation",
}
"""Levers in order of display."""


def split(entries: Iterable[AccountEntry], plans: Iterable[Plan]) -> dict[str, float]:
    """Return the saved carbon of an account by lever, gCO2e; the parts add up to it.

    What follows the grid is measured: energy per request that was lower in dirty hours than in
    clean ones. The rest is split as the plans of the time predicted. Consolidation has no part:
    the account has the same idle power for BASE.

    Args:
        entries: Grouped by model.
        plans: Plans that were active meanwhile, with their outcomes.
    """
    by_model: defaultdict[str, list[AccountEntry]] = defaultdict(list)
    for entry in entries:
        if entry.model:
            by_model[entry.model].append(entry)
    saved = sum(
        each.base_carbon_gco2e - each.carbon_gco2e for own in by_model.values() for each in own
    )
    followed = sum(map(_followed_gco2e, by_model.values()))
    predicted = dict.fromkeys((name for name in WORDS if name not in (TIME, CONSOLIDATION)), 0.0)
    for plan in plans:
        for name in predicted:
            hourly = plan.prediction.saved_gco2e_per_h[name]
            predicted[name] += hourly * max(plan.outcome.active_s, 0.0) / 3600
    total = sum(predicted.values())
    rest = saved - followed
    if total * rest <= 0:  # no plan predicts it
        predicted, total = {**dict.fromkeys(predicted, 0.0), "slice": 1.0}, 1.0
    return {**{name: rest * part / total for name, part in predicted.items()}, TIME: followed}


def _followed_gco2e(entries: Iterable[AccountEntry]) -> float:
    """Return what a model saved by less energy per request in hours with dirtier electricity.

    It is the covariance of both over requests: the emissions with each hour's mean energy per
    request, less those that were.
    """
    hours = [
        (each.requests, each.energy_j / each.requests, each.carbon_gco2e / each.energy_j)
        for each in entries
        if each.requests and each.energy_j > 0
    ]
    requests = sum(count for count, *_ in hours)
    if not requests:
        return 0.0
    energy_j = sum(count * each for count, each, _ in hours) / requests
    gco2e_per_j = sum(count * each for count, _, each in hours) / requests
    return -sum(count * (j - energy_j) * (g - gco2e_per_j) for count, j, g in hours)


def words(parts: Mapping[str, float], whole: float) -> str:
    """Return parts as shares of a whole: "variants 30.1 %, slices 9.2 %"; what is 0 is left out."""
    shown = [
        f"{WORDS[name]} {100 * parts[name] / whole:.1f} %"
        for name in WORDS
        if whole > 0 and abs(parts.get(name, 0.0)) >= 5e-4 * whole
    ]
    return ", ".join(shown)


def of_plan(prediction: Prediction) -> str:
    """Return a plan's saving against BASE in words; "": an older planner made it."""
    parts = dict(prediction.saved_gco2e_per_h)
    base = prediction.carbon_gco2e_per_h + sum(parts.values())
    if not parts or base <= 0:
        return ""
    return f"saves {100 * sum(parts.values()) / base:.1f} % of BASE: {words(parts, base)}"


def active_within(plans: Iterable[Plan], since: datetime, until: datetime) -> list[Plan]:
    """Return the plans that were active in a window."""
    return [
        plan
        for plan in plans
        if plan.HasField("outcome")
        and (begun := plan.outcome.since.ToDatetime(UTC)) < until
        and begun.timestamp() + plan.outcome.active_s > since.timestamp()
    ]
