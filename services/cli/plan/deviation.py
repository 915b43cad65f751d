"""Expected figures of a plan beside the observed ones."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cinquefoil.planner.v1.plan_pb2 import Plan, Prediction
from services.cli.console.messages import Fact, Messages
from services.kit.units import S_PER_H

_SAME_LOAD = 0.1
_SAME_GRID = 0.02
"""Relative differences up to which load and carbon per joule are as predicted."""

_COMPARED = ("power_w", "carbon_gco2e_per_h", "latency_s", "accuracy")


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity of a plan.

    Attributes:
        expected: As predicted.
        seen: As observed; None: it was not.
        unlike: Circumstance under which it was observed and not predicted: "load", "grid"; "":
            none.
    """

    expected: Fact
    seen: Fact | None
    unlike: str = ""

    @property
    def deviation(self) -> float | None:
        """By how much the observed value is above the expected one, relative; None: unknown."""
        if self.seen is None or self.unlike:
            return None
        return deviation(self.expected, self.seen)

    @property
    def words(self) -> str:
        """The deviation for people, or why there is none."""
        if self.unlike:
            return f"other {self.unlike}"
        found = self.deviation
        return "" if found is None else f"{found:+.0%}".replace("%", " %")


def deviation(expected: Fact, seen: Fact) -> float | None:
    """Return by how much a value is above the expected one, relative; None: not comparable."""
    known = expected.value and math.isfinite(expected.value)
    return float(seen.value / expected.value - 1.0) if known else None


def unlike(plan: Plan, path: str) -> str:
    """Return the circumstance of a figure that was not as predicted; "": all were."""
    outcome, prediction = plan.outcome, plan.prediction
    if not outcome.active_s:
        return ""
    planned_rps, seen_rps = (
        sum(plan.inputs.demand_rps.values()),
        outcome.requests / outcome.active_s,
    )
    if not math.isclose(planned_rps, seen_rps, rel_tol=_SAME_LOAD):
        return "load"
    if path != "carbon_gco2e_per_h" or not (prediction.power_w and outcome.energy_j):
        return ""
    planned = prediction.carbon_gco2e_per_h / prediction.power_w / S_PER_H
    seen = outcome.carbon_gco2e / outcome.energy_j
    return "" if math.isclose(planned, seen, rel_tol=_SAME_GRID) else "grid"


def observed(plan: Plan) -> Prediction | None:
    """Return the observed figures in the terms of the prediction; None: it never ran."""
    outcome = plan.outcome
    if not plan.HasField("outcome"):
        return None
    found = Prediction(latency_s=outcome.latency_s, accuracy=outcome.accuracy)
    if outcome.active_s > 0:
        found.power_w = outcome.energy_j / outcome.active_s
        found.carbon_gco2e_per_h = outcome.carbon_gco2e / outcome.active_s * S_PER_H
    return found


def measures(plan: Plan) -> tuple[Measure, ...]:
    """Return the figures that can be compared: power, emissions, latencies and accuracies."""
    return tuple(_measures(plan))


def largest(found: tuple[Measure, ...], name: str) -> Measure | None:
    """Return the measure of that name, of the model that deviates most."""
    named = (each for each in found if each.expected.path == name)
    return max(named, key=lambda each: abs(each.deviation or 0.0), default=None)


def documents(plan: Plan) -> list[dict[str, Any]]:
    """Return the measures for JSON."""
    return [
        {
            "name": each.expected.path,
            "model": each.expected.key,
            "expected": each.expected.value,
            "seen": None if each.seen is None else each.seen.value,
            "deviation": each.deviation,
            "unlike": each.unlike,
        }
        for each in measures(plan)
    ]


def _measures(plan: Plan) -> Iterator[Measure]:
    view, seen = Messages(), observed(plan)
    known = {each.label: each for each in view.facts(seen)} if seen else {}
    for each in view.facts(plan.prediction):
        if each.path in _COMPARED:
            found = known.get(each.label)
            yield Measure(each, found, unlike(plan, each.path) if found else "")
