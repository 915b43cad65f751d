"""Inputs of the suite in virtual time: requests, and the grid."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.source import Source
from services.kit.config import Carbon, Horizon
from services.planner.core.forecast import forecast_periods
from services.planner.core.forecast.forecast_periods import Step
from services.planner.core.model import Period
from services.simulator.router import Router
from services.simulator.timeline import Timeline, Waiting

_CHUNK = 4096


def send(model: str, times_s: NDArray[np.float64], timeline: Timeline, router: Router) -> Waiting:
    """Send a model's requests; those that arrive while time stands still are skipped.

    Args:
        model: Name of the model.
        times_s: Arrivals, virtual time, s, in order.
        timeline: Requests' time.
        router: Router that receives them.
    """
    env, infer = timeline.env, router.infer
    first = 0
    while first < len(times_s):
        if not timeline.going:
            yield timeline.resumed
            first = int(np.searchsorted(times_s, env.now))
        for at_s in times_s[first : first + _CHUNK].tolist():
            yield env.timeout(max(at_s - env.now, 0.0))
            if not timeline.going:
                break
            infer(model, first)
            first += 1


class Grid:
    """The carbon service in virtual time: its monitors, and their forecasts.

    Args:
        carbon: The service's settings; their speed-up is grid seconds per second of virtual time.
        sources: Source by zone.
        start: Grid time at the start.
        horizon: Length and step of forecasts; length 0: none.
    """

    def __init__(
        self, carbon: Carbon, sources: Mapping[str, Source], start: datetime, horizon: Horizon
    ) -> None:
        self._start = start
        self._speedup = carbon.replay.speedup
        self._horizon = horizon
        self._monitors = {
            name: Monitor(
                name,
                source,
                start,
                signal=carbon.zones[name].signal,
                average_window=timedelta(seconds=carbon.zones[name].average_window_s),
            )
            for name, source in sources.items()
        }

    def at(self, now_s: float) -> dict[str, float]:
        """Return the intensity in force by zone, gCO2e/kWh, without unknown zones.

        Args:
            now_s: Virtual time, s, not before that of the last call.
        """
        found = {}
        for zone, monitor in self._monitors.items():
            monitor.advance(self._when(now_s))
            if monitor.latest is not None:
                found[zone] = monitor.latest.sample.intensity_gco2e_per_kwh
        return found

    def intensity(self, zone: str) -> float | None:
        """Return the intensity in force at the last call of `at`, gCO2e/kWh; None: unknown."""
        latest = self._monitors[zone].latest if zone in self._monitors else None
        return None if latest is None else latest.sample.intensity_gco2e_per_kwh

    def ratio(self, zone: str) -> float | None:
        """Return its ratio to the average (CIR); None: unknown."""
        latest = self._monitors[zone].latest if zone in self._monitors else None
        return None if latest is None else latest.ratio

    def forecast(self, now_s: float) -> tuple[Period, ...]:
        """Return the forecast from now on in the planner's form."""
        if not self._horizon.length_s:
            return ()
        steps = self.outlook(now_s, self._horizon.length_s)
        if len(steps) < len(self._monitors):
            return ()
        return forecast_periods.periods(steps, self._horizon)

    def outlook(self, now_s: float, length_s: float) -> dict[str, tuple[Step, ...]]:
        """Return the forecast of each zone from now on; zones without one are left out.

        Args:
            now_s: Virtual time, s.
            length_s: Length, grid time, s.
        """
        when, length = self._when(now_s), timedelta(seconds=length_s)
        found = {zone: each.forecast(when, length) for zone, each in self._monitors.items()}
        return {
            zone: tuple(
                Step(period.since.timestamp(), period.intensity_gco2e_per_kwh)
                for period in each.periods
            )
            for zone, each in found.items()
            if each is not None
        }

    def grid_s(self, now_s: float) -> float:
        """Return grid time, s since the epoch."""
        return self._when(now_s).timestamp()

    def follow(self, timeline: Timeline, learn: Callable[[float], None]) -> Waiting:
        """Call `learn` with the time of every change, for ever."""
        env = timeline.env
        while (change := self._next_change()) is not None:
            at_s = (change - self._start).total_seconds() / self._speedup
            yield env.timeout(max(at_s - env.now, 0.0))
            self.at(at_s)  # monitors see the change despite rounding of its time
            learn(at_s)

    def _when(self, now_s: float) -> datetime:
        return self._start + timedelta(seconds=now_s * self._speedup)

    def _next_change(self) -> datetime | None:
        changes = (monitor.next_change() for monitor in self._monitors.values())
        return min((change for change in changes if change is not None), default=None)
