"""What a plan expected, beside what was seen of it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cinquefoil.planner.v1.plan_pb2 import Plan
from services.kit.units import S_PER_H


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity of a plan.

    Attributes:
        name: As in planner.v1.Prediction.
        model: Of which model; "": of the fleet.
        expected: Predicted.
        seen: Observed; None: nothing was.
    """

    name: str
    model: str
    expected: float
    seen: float | None

    @property
    def deviation(self) -> float | None:
        """By how much what was seen is above what was expected, relative."""
        if self.seen is None or not self.expected or not math.isfinite(self.expected):
            return None
        return self.seen / self.expected - 1.0


def measures(plan: Plan) -> tuple[Measure, ...]:
    """Return what can be compared: power, emissions, and each model's latency and accuracy."""
    return tuple(_measures(plan))


def largest(found: tuple[Measure, ...], name: str) -> Measure | None:
    """Return the measure of that name, of the model that deviates most."""
    named = (each for each in found if each.name == name)
    return max(named, key=lambda each: abs(each.deviation or 0.0), default=None)


def _measures(plan: Plan) -> Iterator[Measure]:
    expected, seen = plan.prediction, plan.outcome
    lived = plan.HasField("outcome") and seen.active_s > 0
    power_w = seen.energy_j / seen.active_s if lived else None
    per_h = seen.carbon_gco2e / seen.active_s * S_PER_H if lived else None
    yield Measure("power_w", "", expected.power_w, power_w)
    yield Measure("carbon_gco2e_per_h", "", expected.carbon_gco2e_per_h, per_h)
    yield from _by_model("latency_s", expected.latency_s, seen.latency_s)
    yield from _by_model("accuracy", expected.accuracy, seen.accuracy)


def _by_model(
    name: str, expected: Mapping[str, float], seen: Mapping[str, float]
) -> Iterator[Measure]:
    for model in sorted(expected):
        yield Measure(name, model, expected[model], seen.get(model))
