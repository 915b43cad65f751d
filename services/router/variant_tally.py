"""The account of the answers of one variant of a model."""

from __future__ import annotations

from services.router.histogram import Histogram


class VariantTally:
    """Numbers that only grow.

    Attributes:
        in_time: Answers within the SLO.
        late: All others.
        latency: From arrival to answer.
        queue: Of it: waiting, here and in the worker.
        compute: Of it: its batch executing.
        accuracy_sum: Stated accuracy, added up.
        energy_j, idle_energy_j: As workers granted them.
        carbon_gco2e: Of the active energy, as far as the intensity was known.
    """

    __slots__ = (
        "accuracy_sum",
        "carbon_gco2e",
        "compute",
        "energy_j",
        "idle_energy_j",
        "in_time",
        "late",
        "latency",
        "queue",
    )

    def __init__(self) -> None:
        self.in_time = self.late = 0
        self.latency, self.queue, self.compute = Histogram(), Histogram(), Histogram()
        self.accuracy_sum = self.energy_j = self.idle_energy_j = self.carbon_gco2e = 0.0

    @property
    def answered(self) -> int:
        """How many answers there were."""
        return self.in_time + self.late
