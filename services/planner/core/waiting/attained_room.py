"""Part of the profiled room that answers attain: profiles may promise more than hosts can feed."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

LEARN_S: Final = 20.0
"""Time over which the attained part is learnt, s."""

_QUARTER_H: Final = 0.25
"""Part of an hour of grid time for which a room is measured at most: replayed hours are short."""

_LEAST_S: Final = 2.0
"""Least time between two reports to learn from, s."""

_LEAST: Final = 0.01


@dataclass(slots=True)
class AttainedRoom:
    """Learns from reports of those that send waiting requests, while the room may be filled.

    Attributes:
        parts: What is attained of the promised room, by model, 0..1.
    """

    parts: dict[str, float] = field(default_factory=dict)
    _measured_s: dict[str, float] = field(default_factory=dict)
    _opened_s: dict[str, float] = field(default_factory=dict)
    _answered: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    def open(self, models: Iterable[str], now_s: float) -> None:
        """Note the models whose room may be filled from now on."""
        self._opened_s = {name: self._opened_s.get(name, now_s) for name in models}

    def learn(
        self,
        key: tuple[str, str],
        answered: int,
        now_s: float,
        offered_rps: float,
        *,
        is_open: bool,
    ) -> None:
        """Learn from a report.

        Args:
            key: Name of the reporter, and the model.
            answered: Requests answered so far, of all reporters as it were.
            now_s: The time, s.
            offered_rps: Promised room, req/s.
            is_open: Whether all of the room could be filled since the last report, or since it was
                opened.
        """
        _, model = key
        last = self._answered.get(key)
        if last is None or not is_open or answered < last[1]:
            self._answered[key] = now_s, answered
            return
        span_s = now_s - max(last[0], self._opened_s.get(model, last[0]))
        if span_s < _LEAST_S or offered_rps <= 0 or answered == last[1]:
            return
        self._answered[key] = now_s, answered
        part = min((answered - last[1]) / span_s / offered_rps, 1.0)
        keep = math.exp(-span_s / LEARN_S)
        learnt = keep * self.parts.get(model, part) + (1 - keep) * part
        self.parts[model] = max(learnt, _LEAST)
        self._measured_s[model] = self._measured_s.get(model, 0.0) + span_s

    def known(self, model: str, hour_s: float) -> bool:
        """Return whether a room has been measured for long enough.

        Args:
            model: The model.
            hour_s: Length of an hour of grid time, s.
        """
        measured_s = self._measured_s.get(model, LEARN_S if model in self.parts else 0.0)
        return measured_s >= min(LEARN_S, max(_QUARTER_H * hour_s, _LEAST_S))

    def forget(self, waiting: Container[str]) -> None:
        """Drop the reports of models for which nothing waits."""
        self._answered = {key: at for key, at in self._answered.items() if key[1] in waiting}
