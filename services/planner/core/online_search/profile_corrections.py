"""Corrections of profiles per variant and slice kind, learnt from live measurements.

A cell is a variant on a slice kind of a GPU type. For each cell a correction of the time and of the
active energy of a batch is learnt, as logarithms of measured over profile. A correction is the sum
of four normal effects: common to all, of the variant, of the slice kind, and of the cell itself
(Bayesian linear regression in closed form). A slice kind that turns out slow is thus also slow for
variants that were never measured there.

The ratio of measured to predicted latency is kept per model as well: the error of the queueing
model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.planner.core.model import SegmentKind

TRUST = (0.15, 0.1, 0.15, 0.05)
"""Prior standard deviations of the errors common to all profiles, of a variant, of a slice kind
and of a cell; as logarithms, so that 0.1 is about 10 %."""

NOISE = 0.02
"""Standard deviation of one measurement, as a logarithm."""

MEMORY = 8.0
"""Measurements of a cell that count: a GPU that was slow for a day may have been repaired."""

FORGET = 0.5
"""Weight of earlier latencies when a new one is added."""


class Cell(NamedTuple):
    """A variant on a slice kind."""

    model: str
    variant: str
    gpu: str
    profile: str

    @classmethod
    def of(cls, kind: SegmentKind) -> Cell:
        """Return the cell of a segment kind: all batch sizes, processes and clocks."""
        return cls(kind.model, kind.variant, kind.pool.type.name, kind.profile)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements of one cell.

    Attributes:
        weight: Number of measurements.
        log_time: Mean logarithm of measured over profiled batch time.
        log_energy: Mean logarithm of measured over profiled active energy per batch.
    """

    weight: float
    log_time: float
    log_energy: float

    def plus(self, time_ratio: float, energy_ratio: float) -> Evidence:
        """Return the evidence with another measurement; the oldest fade (`MEMORY`)."""
        weight = min(self.weight + 1.0, MEMORY)
        return Evidence(
            weight,
            self.log_time + (math.log(time_ratio) - self.log_time) / weight,
            self.log_energy + (math.log(energy_ratio) - self.log_energy) / weight,
        )


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors on a profile's figures.

    Attributes:
        time: Factor on batch time, and so on the inverse of throughput.
        energy: Factor on active energy per batch.
        doubt: Standard deviation of the logarithm of either; 0: certain.
    """

    time: float = 1.0
    energy: float = 1.0
    doubt: float = 0.0

    def of(self, kind: SegmentKind, *, caution: float = 0.0, hope: float = 0.0) -> SegmentKind:
        """Return a kind with corrected figures.

        Args:
            kind: Kind with the profile's figures.
            caution: Standard deviations by which it is assumed slower than believed.
            hope: Standard deviations by which its energy is assumed lower than believed.
        """
        slower = self.time * math.exp(caution * self.doubt)
        return replace(
            kind,
            latency_s=kind.latency_s * slower,
            throughput_rps=kind.throughput_rps / slower,
            energy_j=kind.energy_j * self.energy * math.exp(-hope * self.doubt),
            times_s=tuple(tuple(slower * each for each in times) for times in kind.times_s),
        )


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Everything learnt; plain values, to be stored and restored.

    Attributes:
        evidence: Evidence by cell.
        waits: Measured over predicted latency at the SLO's percentile, by model.
    """

    evidence: Mapping[Cell, Evidence] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)

    def measured(self, cell: Cell, time_ratio: float, energy_ratio: float) -> Beliefs:
        """Return the beliefs after a measurement of a cell; ratios are measured over profile."""
        grown = self.evidence.get(cell, Evidence(0.0, 0.0, 0.0)).plus(time_ratio, energy_ratio)
        return replace(self, evidence={**self.evidence, cell: grown})

    def without(self, model: str) -> Beliefs:
        """Return the beliefs without the measurements of a model."""
        kept = {cell: found for cell, found in self.evidence.items() if cell.model != model}
        return replace(self, evidence=kept)

    def waited(self, model: str, ratio: float) -> Beliefs:
        """Return the beliefs after a latency of a model; measured over predicted."""
        before = self.waits.get(model, ratio)
        mean = math.exp(FORGET * math.log(before) + (1.0 - FORGET) * math.log(ratio))
        return replace(self, waits={**self.waits, model: mean})

    def corrections(self, cells: Iterable[Cell]) -> dict[Cell, Correction]:
        """Return the correction of each of `cells`, measured or not."""
        wanted = list(dict.fromkeys(cells))
        seen = list(self.evidence)
        among_seen = _covariance(seen, seen) + np.diag(
            [NOISE**2 / self.evidence[cell].weight for cell in seen]
        )
        between = _covariance(wanted, seen)
        logs = np.array([[e.log_time, e.log_energy] for e in self.evidence.values()])
        gain = np.linalg.solve(among_seen, between.T).T if seen else between
        means = gain @ logs.reshape(len(seen), 2)
        variances = sum(trust**2 for trust in TRUST) - np.sum(gain * between, axis=1)
        doubts = np.sqrt(np.maximum(variances, 0.0))
        return {
            cell: Correction(math.exp(time), math.exp(energy), float(doubt))
            for cell, (time, energy), doubt in zip(wanted, means, doubts, strict=True)
        }


def _covariance(ones: list[Cell], others: list[Cell]) -> NDArray[np.float64]:
    """Return the covariance of the errors of cells, shape (ones, others)."""
    everywhere, variant, slice_kind, own = (trust**2 for trust in TRUST)
    return np.array(
        [
            [
                everywhere
                + variant * (one[:2] == other[:2])
                + slice_kind * (one[2:] == other[2:])
                + own * (one == other)
                for other in others
            ]
            for one in ones
        ],
        dtype=np.float64,
    ).reshape(len(ones), len(others))
