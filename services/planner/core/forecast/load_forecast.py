"""Forecast of the next interval's largest load, with a prediction interval, learnt online.

Two opinions on the change of the largest load, both from earlier outcomes:

    state   intervals whose shape (level, burst, slope, end) was most similar to the last one's
    season  the same, at the same place in the hour: jobs start on the minute

Each is a sample of outcomes. They are weighted by the recent errors of their medians at this place
in the hour (exponential weights). Outcomes are changes of the logarithm, so that scale does not
matter.

In a short, bursty or sparse record similar situations predict little: the median is therefore a
mixture of the three samples' medians, the last value and exponentially weighted means, weighted by
their errors so far (`expert_aggregation`), and the sample's quantiles are placed around it. After
each interval the quantiles are shifted slightly until their coverage is as promised: the quantile
tracker of Angelopoulos, Candes and Tibshirani, "Conformal PID Control for Time Series Prediction"
(NeurIPS 2023), which assumes nothing about the load.

InfAdapter (EuroMLSys'23, section 5) trains an LSTM on the last ten maxima instead; this forecaster
needs no training and starts with the first interval.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.kit.errors import InvalidArgument
from services.planner.core.forecast.expert_aggregation import ExpertAggregation
from services.planner.core.forecast.load_forecast_analogues import (
    Analogues,
    Likeness,
    Vector,
    mixture,
)

MARGIN = 1.1
"""Factor on the last maximum until enough is known (InfAdapter's margin)."""

MEMORY = 10_080
"""Intervals remembered: a week of minutes, 0.7 MB."""

MIN_KNOWN = 30
"""Intervals from which analogues beat the margin."""

SEASON_S = 3600.0

EWMA_KEEP = np.array([0.0, 0.3, 0.5, 0.7, 0.9])
"""Weight that exponentially weighted means keep at each interval; 0: the last value."""

STATE = Likeness(np.array([0.2, 1.0, 0.5, 0.7, 0.3, 1.0]), softness=1e-3)
SEASON = Likeness(np.array([0.5, 0.5, 0.2, 0.0, 0.0, 0.0]), softness=1e-2)
"""Weights of the features of `_situation`; tuned on days 0-6 of the Twitter trace."""

ANALOGUE_EXPERTS = 3
"""Experts from analogues: the mixture, the state, the season."""

FORGET = 0.95
TRUST = 5.0
"""Decay of past errors per visit of a place in the hour, and weight of an error."""

TRACKING = 0.01
"""Shift of an outer quantile after a miss, in logarithms: 1 %."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The load within one interval.

    Attributes:
        start_s: Start, Unix time, s.
        mean_rps: Mean load.
        max_rps: Largest load of a second within it.
        end_rps: Mean load near its end; None: unknown.
    """

    start_s: float
    mean_rps: float
    max_rps: float
    end_rps: float | None = None

    def __post_init__(self) -> None:
        for name in ("start_s", "mean_rps", "max_rps", "end_rps"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"{name} must be finite and >= 0, got {value}", field=name)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of the largest load in a later interval.

    Attributes:
        start_s: Start of the interval, Unix time, s.
        expected_rps: Median.
        low_rps: Lower bound, exceeded with the probability of the forecaster's coverage.
        high_rps: Upper bound, not exceeded with that probability.
    """

    start_s: float
    expected_rps: float
    low_rps: float
    high_rps: float


@dataclass(frozen=True, slots=True)
class _View:
    """A forecast with its inputs, until its outcome is known, which is a change of the logarithm.

    Attributes:
        last: The interval before.
        forecast: The forecast.
        opinions: Logarithms of the medians combined in `forecast`.
        situation, slot: Situation and place in the hour of the interval before.
        medians: Medians of the two opinions; empty while there are none.
    """

    last: Interval
    forecast: Forecast
    opinions: Vector
    situation: Vector
    slot: int
    medians: tuple[float, ...] = ()


class Forecaster:
    """Forecasts the load of one model, interval by interval."""

    def __init__(self, interval_s: float, coverage: float) -> None:
        """Start without history.

        Args:
            interval_s: Length of an interval, s, > 0.
            coverage: Coverage of an outer quantile, 0.5 <= coverage < 1.
        """
        self._interval_s = interval_s
        self._coverage = coverage
        self._known = Analogues(MEMORY, len(STATE.weights))
        self._recent: deque[Interval] = deque(maxlen=3)
        self._errors = np.zeros((max(1, round(SEASON_S / interval_s)), 2))
        self._low_shift, self._high_shift = 0.0, 0.0
        self._levels_rps = np.zeros(0)
        self._experts = ExpertAggregation(len(EWMA_KEEP) + ANALOGUE_EXPERTS)
        self._view: _View | None = None

    def observe(self, interval: Interval) -> None:
        """Learn from a complete interval; after a gap, start again with this one.

        Raises:
            InvalidArgument: It is not after the last one.
        """
        if self._view is not None:
            last_s = self._view.last.start_s
            passed = (interval.start_s - last_s) / self._interval_s
            if passed < 0.5:
                raise InvalidArgument(
                    f"start_s must be after {last_s}, got {interval.start_s}", field="start_s"
                )
            if passed < 1.5:
                self._learn(self._view, interval)
            else:
                self._recent.clear()
                self._levels_rps = np.zeros(0)
        self._recent.append(interval)
        before = self._levels_rps if self._levels_rps.size else interval.max_rps
        self._levels_rps = EWMA_KEEP * before + (1.0 - EWMA_KEEP) * interval.max_rps
        self._view = self._look(interval)

    def forecast(self) -> Forecast | None:
        """Return the forecast for the interval after the last one; None: no interval yet."""
        return self._view.forecast if self._view else None

    def _learn(self, view: _View, interval: Interval) -> None:
        outcome = math.log1p(interval.max_rps) - math.log1p(view.last.max_rps)
        self._experts.learn(view.opinions, math.log1p(interval.max_rps))
        if view.medians:
            missed = np.abs(outcome - np.array(view.medians))
            self._errors[view.slot] = FORGET * self._errors[view.slot] + missed
            said, allowed = view.forecast, 1.0 - self._coverage
            self._low_shift -= TRACKING * ((interval.max_rps < said.low_rps) - allowed)
            self._high_shift += TRACKING * ((interval.max_rps > said.high_rps) - allowed)
        self._known.add(view.situation, view.slot, outcome)

    def _look(self, last: Interval) -> _View:
        start_s = last.start_s + self._interval_s
        slot = int(start_s % SEASON_S // self._interval_s) % len(self._errors)
        situation = _situation(self._recent)
        if len(self._known) < MIN_KNOWN:
            opinions = self._opinions(last, (0.0,) * ANALOGUE_EXPERTS)
            expected_rps = math.expm1(self._experts.combine(opinions))
            guess = Forecast(
                start_s,
                expected_rps,
                min(expected_rps, last.max_rps) / MARGIN,
                max(expected_rps, last.max_rps) * MARGIN,
            )
            return _View(last, guess, opinions, situation, slot)
        by_state = self._known.near(situation, STATE)
        by_season = self._known.near(situation, SEASON, slot)
        by_season = by_season if by_season.outcomes.size else by_state
        belief = mixture(by_state, by_season, self._trust(slot))
        medians = (by_state.quantile(0.5), by_season.quantile(0.5))
        middle = belief.quantile(0.5)
        opinions = self._opinions(last, (middle, *medians))
        centre = self._experts.combine(opinions) - math.log1p(last.max_rps)
        low, high = belief.quantile(1.0 - self._coverage), belief.quantile(self._coverage)
        # No bound crosses the median, and no shift grows where it has no effect: after a long calm
        # it would take equally long to return.
        self._low_shift = min(self._low_shift, middle - low)
        self._high_shift = max(self._high_shift, middle - high)
        forecast = Forecast(
            start_s,
            _changed(last.max_rps, centre),
            _changed(last.max_rps, centre + (low - middle + self._low_shift)),
            _changed(last.max_rps, centre + (high - middle + self._high_shift)),
        )
        return _View(last, forecast, opinions, situation, slot, medians)

    def _opinions(self, last: Interval, changes: Sequence[float]) -> Vector:
        """Return the experts' medians in logarithms: the analogues' changes, then the means."""
        analogues = math.log1p(last.max_rps) + np.array(changes)
        return np.concatenate([analogues, np.log1p(self._levels_rps)])

    def _trust(self, slot: int) -> float:
        """Return the weight of the season, 0..1."""
        more = self._errors[slot, 1] - self._errors[slot, 0]
        return 1.0 / (1.0 + math.exp(min(TRUST * more, 500.0)))


def _changed(load_rps: float, change: float) -> float:
    """Return a load after a change of its logarithm."""
    return max(0.0, math.expm1(math.log1p(load_rps) + change))


def _situation(recent: Sequence[Interval]) -> Vector:
    """Return the features of an interval that its outcome may depend on, in logarithms.

    Level; burst (largest over mean); changes of burst and level; load at the end. With fewer than
    three intervals, the earlier ones are taken to equal the first.
    """
    last = recent[-1]
    before = recent[max(-2, -len(recent))]
    first = recent[max(-3, -len(recent))]
    level, burst = math.log1p(last.mean_rps), math.log1p(last.max_rps)
    end_rps = last.mean_rps if last.end_rps is None else last.end_rps
    return np.array(
        [
            level,
            burst - level,
            math.log1p(before.max_rps) - burst,
            math.log1p(before.mean_rps) - level,
            math.log1p(first.mean_rps) - level,
            math.log1p(end_rps) - level,
        ]
    )
