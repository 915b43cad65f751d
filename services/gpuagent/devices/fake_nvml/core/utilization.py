"""Process utilisation samples of one simulated GPU, with the habits of the driver's. Pure."""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from services.gpuagent.core.process_activity import ProcessActivity

SAMPLE_S: Final = 0.2
"""Least time between two samples, s, as on an H200 (driver 580.159.04; docs/measurements)."""

_ROUNDING_S: Final = 1e-6
"""Time by which two samples may be closer: readers' clocks are floats."""


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """A sample. Attributes: at_us (microseconds), pid, sm_percent (of the whole GPU's time)."""

    at_us: int
    pid: int
    sm_percent: int


class UtilizationSampler:
    """Samples the SM utilisation as the driver does: the whole GPU's, booked to one process.

    That process has a kernel running at the moment of the sample; between kernels it is one that
    computed since the sample before. Several candidates are drawn by the time that they computed.
    Only the newest sample is kept. Nothing samples a simulated GPU between two looks, so a sample
    covers the time since the one before.

    Attributes:
        busy_percent: Share of the newest sample's time in which any kernel ran, %.
    """

    def __init__(self) -> None:
        self._newest: UtilizationSample | None = None
        self._seen_s: float | None = None
        self._busy_s: Mapping[int, float] = {}
        self._random = random.Random(0)  # noqa: S311 - repeatable, no secret
        self.busy_percent = 0

    def since(
        self, last_seen_us: int, now_s: float, processes: Collection[ProcessActivity]
    ) -> list[UtilizationSample]:
        """Return the newest sample if it is after a moment, else nothing.

        Args:
            last_seen_us: The moment; 0: any.
            now_s: Wall clock, s.
            processes: Processes on the GPU now.
        """
        if self._seen_s is None or now_s - self._seen_s >= SAMPLE_S - _ROUNDING_S:
            self._sample(now_s, processes)
        newest = self._newest
        return [newest] if newest is not None and newest.at_us > last_seen_us else []

    def _sample(self, now_s: float, processes: Collection[ProcessActivity]) -> None:
        before, length_s = self._busy_s, now_s - (self._seen_s or now_s)
        self._seen_s, self._busy_s = now_s, {each.pid: each.busy_s for each in processes}
        if length_s <= 0:
            return
        computed_s = {
            each.pid: each.busy_s - before[each.pid]
            for each in processes
            if each.busy_s > before.get(each.pid, each.busy_s)
        }
        # Processes take turns on an uncut GPU: together they are busy for 100 % at most.
        self.busy_percent = round(100 * min(sum(computed_s.values()) / length_s, 1.0))
        running = [each.pid for each in processes if each.running and each.pid in computed_s]
        candidates = running or list(computed_s)
        if self.busy_percent and candidates:
            weights = [computed_s[pid] for pid in candidates]
            (pid,) = self._random.choices(candidates, weights)
            self._newest = UtilizationSample(int(now_s * 1e6), pid, self.busy_percent)
