"""Process utilisation samples of one simulated GPU, with the habits of the driver's. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from services.gpuagent.core.process_activity import ProcessActivity

SAMPLE_S: Final = 1 / 6
"""Time between two samples of a driver at most; a sample covers the time since the one before."""

KEPT: Final = 120
"""Samples that the driver keeps."""


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """A sample. Attributes: at_us (microseconds), pid, sm_percent (of the whole GPU's time)."""

    at_us: int
    pid: int
    sm_percent: int


class UtilizationBuffer:
    """Samples of the processes' SM utilisation; a process that computed nothing has none.

    Nothing samples a simulated GPU in between, so a sample covers the time since it was last
    looked at. Processes take turns on an uncut GPU: together they are busy for 100 % at most.

    Attributes:
        busy_percent: Share of the newest sample's time in which any kernel ran, %.
    """

    def __init__(self) -> None:
        self._samples: deque[UtilizationSample] = deque(maxlen=KEPT)
        self._seen_s: float | None = None
        self._busy_s: dict[int, float] = {}
        self.busy_percent = 0

    def since(
        self, last_seen_us: int, now_s: float, processes: Iterable[ProcessActivity]
    ) -> list[UtilizationSample]:
        """Return the samples after a moment, oldest first.

        Args:
            last_seen_us: The moment; 0: all that are kept.
            now_s: Wall clock, s.
            processes: Processes on the GPU now.
        """
        if self._seen_s is None or now_s - self._seen_s >= SAMPLE_S:
            self._sample(now_s, {each.pid: each.busy_s for each in processes})
        return [each for each in self._samples if each.at_us > last_seen_us]

    def _sample(self, now_s: float, busy_s: dict[int, float]) -> None:
        before, length_s = self._busy_s, now_s - (self._seen_s or now_s)
        self._seen_s, self._busy_s = now_s, busy_s
        if length_s <= 0:
            return
        parts = {
            pid: max(busy - before[pid], 0.0) / length_s
            for pid, busy in busy_s.items()
            if pid in before
        }
        self.busy_percent = round(100 * min(sum(parts.values()), 1.0))
        crowded = max(sum(parts.values()), 1.0)
        for pid, part in parts.items():
            if percent := round(100 * part / crowded):
                self._samples.append(UtilizationSample(int(now_s * 1e6), pid, percent))
