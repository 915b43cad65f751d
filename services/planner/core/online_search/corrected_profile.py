"""Profiles corrected by live measurements, for every strategy.

A profile holds until requests are late and batches of their model are measured to take longer than
it says. From then on plans use the measurements: the same evidence that online search collects
(`profile_corrections`). Cells without a measurement are taken to be as slow as the slowest measured
one of their model on this type of GPU, so that the next plan does not trust the same profile
elsewhere.
"""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from services.kit.profiles.core.language import TokenProfile, TokenTimes
from services.kit.profiles.core.profile import BatchCost, Profile, SliceShape
from services.planner.core.model import Model, Variant
from services.planner.core.online_search.measurement import Measurement, ratios
from services.planner.core.online_search.profile_corrections import Beliefs, Cell, Correction

TOLERANCE = 0.05
"""Logarithm of measured over profiled time up to which a profile counts as right."""

_RIGHT = Correction()


@dataclass(slots=True)
class Corrections:
    """Factors on profiles' figures, computed on first use.

    Attributes:
        beliefs: Beliefs from measurements.
    """

    beliefs: Beliefs
    _found: dict[Cell, Correction] = field(default_factory=dict)

    def of(self, cell: Cell) -> Correction:
        """Return the correction of a cell; none if its model was never measured to be slow."""
        known = self._found.get(cell)
        if known is None:
            known = self._found[cell] = self._correction(cell)
        return known

    def _correction(self, cell: Cell) -> Correction:
        evidence = self.beliefs.evidence
        seen = evidence.get(cell) or max(
            (
                found
                for other, found in evidence.items()
                if (other.model, other.gpu) == (cell.model, cell.gpu)
            ),
            key=lambda found: found.log_time,
            default=None,
        )
        if seen is None or seen.log_time <= TOLERANCE:
            return _RIGHT
        return Correction(math.exp(seen.log_time), max(1.0, math.exp(seen.log_energy)))


@dataclass(frozen=True, slots=True, eq=False)
class CorrectedProfile:
    """A variant's profile with corrections applied.

    Attributes:
        profile: The original profile, measured or computed.
        model, variant: Names of its model and variant.
        corrections: Factors on its figures.
    """

    profile: Profile
    model: str
    variant: str
    corrections: Corrections

    @property
    def method(self) -> Literal["model", "table"]:
        """Origin of the figures."""
        return self.profile.method

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch; arguments as for every profile."""
        cost = self.profile.batch(shape, batch_size, processes, clock_ratio=clock_ratio)
        if cost is None:
            return None
        correction = self._correction(shape)
        return BatchCost(cost.latency_s * correction.time, cost.energy_j * correction.energy)

    def token_times(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> TokenTimes | None:
        """Return the times of a usual request's tokens; None: the profile has none."""
        if not isinstance(self.profile, TokenProfile):
            return None
        times = self.profile.token_times(shape, batch_size, processes, clock_ratio=clock_ratio)
        return times and times.slower(self._correction(shape).time)

    def _correction(self, shape: SliceShape) -> Correction:
        return self.corrections.of(Cell(self.model, self.variant, shape.gpu, shape.profile))


def corrected(models: Iterable[Model], beliefs: Beliefs) -> tuple[Model, ...]:
    """Return models with corrected profiles; pipelines, which are not measured, stay unchanged.

    Args:
        models: Models with their original profiles.
        beliefs: Beliefs from measurements.
    """
    corrections = Corrections(beliefs)

    def right(model: Model, variant: Variant) -> Variant:
        profile = CorrectedProfile(variant.profile, model.name, variant.name, corrections)
        return variant if variant.pipeline else replace(variant, profile=profile)

    slow = {cell.model for cell in beliefs.evidence}
    return tuple(
        replace(model, variants=tuple(right(model, each) for each in model.variants))
        if model.name in slow
        else model
        for model in models
    )


def learned(
    beliefs: Beliefs,
    measurement: Measurement,
    profiled: Iterable[Model],
    suspected: Container[str],
) -> Beliefs:
    """Return the beliefs after a measurement; the same object if nothing was learned.

    Args:
        beliefs: Beliefs before.
        measurement: The measurement.
        profiled: The models with their original profiles.
        suspected: Models with late requests, whose profiles are in doubt. Others are learned about
            only if they were suspected before.
    """
    profiled = tuple(profiled)
    known = {cell.model for cell in beliefs.evidence}
    for kind, observed in measurement.observed.items():
        doubted = kind.model in suspected or kind.model in known
        if not doubted or kind.stage.of > 1:
            continue
        found = ratios(profiled, kind, observed, measurement.span_s)
        if found is not None:
            beliefs = beliefs.measured(Cell.of(kind), *found)
    return beliefs


def slower(before: Beliefs, now: Beliefs, measurement: Measurement) -> Mapping[str, str]:
    """Return the models that ran slower than believed, each with a sentence about it."""
    old, new = Corrections(before), Corrections(now)
    found: dict[str, str] = {}
    for kind in measurement.observed:
        cell = Cell.of(kind)
        time = new.of(cell).time
        if math.log(time / old.of(cell).time) > TOLERANCE:
            found[kind.model] = (
                f"{kind.variant} on {kind.profile} takes {time:.2f} times as long as profiled"
            )
    return found
