"""Sampling of the stretches of time that are simulated request by request.

After every disturbance (a change of plan, of carbon intensity or of load) requests are simulated
until the system has settled; then a window of steady state is simulated, which represents the time
until the period ends or the next disturbance comes. While requests pile up nothing is skipped:
there is no steady state. Systematic sampling, as in Cochran, "Sampling Techniques", chapter 8.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simpy import Event

from services.simulator.scenario import Sampling
from services.simulator.stats.sampled_intervals import Recorder
from services.simulator.timeline import Timeline, Waiting

_NOISE = 4.0
"""Standard deviations by which counted load must differ to count as a change."""

_LOOK_S = 1.0
_SAME_BACKLOG = 1.1
_SHORT_QUEUE_S = 1.0
"""Arrivals, s, above which waiting requests are a backlog."""


@dataclass(eq=False)
class Sampler:
    """Stops and starts the requests' time.

    Attributes:
        settings: How much to simulate.
        timeline: Requests' time.
        recorder: Records where intervals begin and end.
        backlog: Returns the number of waiting requests by model.
        busy: Returns whether a rollout is under way.
    """

    settings: Sampling
    timeline: Timeline
    recorder: Recorder
    backlog: Callable[[], Mapping[str, int]]
    busy: Callable[[], bool]
    _disturbances: int = 0
    _wake: Event | None = None
    # In the window that represents skipped time.
    _rps: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._calm_at_s = self.settings.settle_s

    def disturb(self, settle_s: float | None = None) -> None:
        """Simulate requests from now until a change has settled.

        Args:
            settle_s: Time to settle, s; None: that of the settings.
        """
        env = self.timeline.env
        settle_s = self.settings.settle_s if settle_s is None else settle_s
        self._disturbances += 1
        self._calm_at_s = max(self._calm_at_s, env.now + settle_s)
        self._go()
        self.recorder.turn(env.now)

    def watch(self, counts: Mapping[str, int], window_s: float) -> None:
        """Check that the load is still the window's.

        Args:
            counts: Recently arrived requests by model.
            window_s: Length of their window, s.
        """
        if self.timeline.going:
            return
        for model, rps in self._rps.items():
            expected = rps * window_s
            allowed = max(self.settings.load_change * expected, _NOISE * math.sqrt(expected + 1))
            if abs(counts[model] - expected) > allowed:
                self.disturb(0.0)
                return

    def run(self) -> Waiting:
        """Sample for ever."""
        env = self.timeline.env
        while True:
            while env.now < self._calm_at_s or self.busy():
                yield env.timeout(max(self._calm_at_s - env.now, _LOOK_S))
            self.recorder.turn(env.now)
            disturbances, waiting = self._disturbances, sum(self.backlog().values())
            yield env.timeout(self.settings.window_s)
            while self._arrived() < self.settings.least_requests and env.now < self._period_end_s:
                yield env.timeout(self.settings.window_s)
            if disturbances == self._disturbances and self._steady(waiting):
                yield from self._skip()

    @property
    def _period_end_s(self) -> float:
        return self.recorder.began_s + self.settings.period_s

    def _arrived(self) -> int:
        return sum(self._counts().values())

    def _counts(self) -> Mapping[str, int]:
        return self.recorder.arrived(self.recorder.began_s, self.timeline.env.now)

    def _steady(self, waited: int) -> bool:
        """Return whether no backlog has grown or shrunk since the window began."""
        window_s = self.timeline.env.now - self.recorder.began_s
        short = _SHORT_QUEUE_S * self._arrived() / window_s
        waiting = sum(self.backlog().values())
        return max(waiting, waited) <= max(short, _SAME_BACKLOG * min(waiting, waited))

    def _skip(self) -> Waiting:
        env = self.timeline.env
        left_s = self._period_end_s - env.now
        if left_s <= 0:
            return
        window_s = env.now - self.recorder.began_s
        self._rps = {model: count / window_s for model, count in self._counts().items()}
        self.recorder.skip(env.now)
        self.timeline.stop()
        self._wake = env.event()
        yield env.timeout(left_s) | self._wake
        self._go()

    def _go(self) -> None:
        if not self.timeline.going:
            self.timeline.go()
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()
