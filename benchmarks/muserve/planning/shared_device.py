"""A device that everything on it shares evenly, at a clock that may change at any time.

Processor sharing is what time slicing and MPS come to: two requests at once take twice as long.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from benchmarks.muserve.planning.clocking import V100


class Work(Protocol):
    """Work of a device. Attributes: left_s, alone at the highest clock; sensitivity, 0..1."""

    left_s: float

    @property
    def sensitivity(self) -> float:
        """Return its sensitivity to the clock, 0..1."""
        ...


W = TypeVar("W", bound=Work)


@dataclass(slots=True)
class SharedDevice(Generic[W]):
    """The state of a device; the times passed to it never decrease.

    Attributes:
        clock_ratio: Clock of the device, over the highest.
        busy_s: Time with something to do, s.
        power_s: The same, weighted by the share of active power that the clock left, s.
        version: Counts changes: what was foreseen before the last one does not happen.
    """

    clock_ratio: float = 1.0
    busy_s: float = 0.0
    power_s: float = 0.0
    version: int = 0
    _works: list[W] = field(default_factory=list)
    _since_s: float = 0.0
    _stretches: dict[float, float] = field(default_factory=dict)

    def catch_up(self, now_s: float) -> None:
        """Do what was to be done until now."""
        passed_s = now_s - self._since_s
        self._since_s = now_s
        if not self._works or passed_s <= 0:
            return
        self.busy_s += passed_s
        self.power_s += passed_s * V100.power_ratio(self.clock_ratio)
        share_s = passed_s / len(self._works)
        for work in self._works:
            work.left_s -= share_s / self._stretch(work)

    def begin(self, work: W, now_s: float) -> None:
        """Take on some work."""
        self.catch_up(now_s)
        self._works.append(work)
        self.version += 1

    def end(self, now_s: float) -> W:
        """Remove the work that is done first, and return it; there must be some."""
        self.catch_up(now_s)
        done = min(self._works, key=self._alone_s)
        self._works.remove(done)
        self.version += 1
        return done

    def run_at(self, clock_ratio: float, now_s: float) -> None:
        """Change the clock, as of now."""
        self.catch_up(now_s)
        self.clock_ratio = clock_ratio
        self._stretches.clear()
        self.version += 1

    def next_end_s(self) -> float:
        """Return when the first work will be done, as things are, s; infinite: nothing to do."""
        alone_s = min(map(self._alone_s, self._works), default=inf)
        return self._since_s + max(alone_s, 0.0) * len(self._works)

    def _alone_s(self, work: W) -> float:
        return work.left_s * self._stretch(work)

    def _stretch(self, work: W) -> float:
        sensitivity = work.sensitivity
        known = self._stretches.get(sensitivity)
        if known is None:
            known = self._stretches[sensitivity] = V100.stretch(sensitivity, self.clock_ratio)
        return known
