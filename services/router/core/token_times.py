"""Token latencies of an instance, by the number of answers that it generates at a time."""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.router.core.regression import MIN_WEIGHT, Regression

HEADROOM: Final = 0.85
"""Share of an objective that may be used up: of 0.8, 0.85 and 0.9 the greatest that keeps it for
99.9 % of the first window of each trace (docs/measurements/language-models.md)."""

_DEVIATIONS: Final = 2.0  # above the line: a time that can be counted on
_GROWTH: Final = 2  # times the largest measured number of concurrent answers


class TokenObjective(NamedTuple):
    """Objective of token latencies.

    Attributes:
        first_token_s: Time to the first token, s.
        token_s: Mean time between tokens, s.
        headroom: Share of them that may be used up, 0..1.
    """

    first_token_s: float
    token_s: float
    headroom: float = HEADROOM

    def allows(self, first_token_s: float, token_s: float) -> bool:
        """Return whether times that are expected, s, leave the headroom."""
        return (
            token_s <= self.headroom * self.token_s
            and first_token_s <= self.headroom * self.first_token_s
        )


@dataclass(slots=True)
class _Times:
    """One of the times: a line over the load, and the mean deviation from it, s."""

    line: Regression = field(default_factory=Regression)
    deviation_s: float = 0.0

    def add(self, load: float, time_s: float) -> None:
        if self.line.weight:
            error_s = abs(time_s - self.line.at(load))
            self.deviation_s += 4 * MIN_WEIGHT * (error_s - self.deviation_s)
        self.line.add(load, time_s)

    def likely_s(self, load: float, deviations: float = 1.0) -> float:
        time_s = self.line.at(load)
        if load >= self.line.size:
            time_s = max(time_s, self.line.value)  # more answers are never quicker
        return time_s + _DEVIATIONS * deviations * self.deviation_s


class Held(NamedTuple):
    """Load of an instance while it holds a request, itself included.

    Attributes:
        answers: Answers that are generated at a time, >= 1.
        prompt_bytes: Bodies of the requests whose answers had not begun when it came.
    """

    answers: float
    prompt_bytes: int


@dataclass(slots=True)
class TokenTimes:
    """Times of one instance's tokens, learned from its answers.

    A step takes a fixed time, and more with each answer that gets a token in it; the first token
    comes after the prompts before it: two lines, as in `profile: {kind: language}`. They forget, so
    they follow clocks.
    """

    _first: _Times = field(default_factory=_Times)
    _token: _Times = field(default_factory=_Times)
    _most: float = 0.0

    def add(self, held: Held, first_token_s: float, token_s: float) -> None:
        """Update with an answer; one with a single token, or no finite time of one, is ignored.

        Args:
            held: Load of the instance meanwhile.
            first_token_s: From its assignment to its first token, s; NaN: it came at once.
            token_s: Mean time between its tokens, s; 0: it had fewer than two.
        """
        if first_token_s == math.inf or not 0 < token_s < math.inf:
            return
        if not math.isnan(first_token_s):
            self._first.add(held.prompt_bytes, max(first_token_s, 0.0))
        self._token.add(held.answers, token_s)
        self._most = max(self._most, held.answers)

    def has_room(self, held: Held, objective: TokenObjective) -> bool:
        """Return whether an instance meets an objective under a load; one answer always does.

        More than twice as many answers as were measured do not: so a new instance is not given more
        than it can do before its first answers have come.
        """
        if held.answers <= 1:
            return True
        if held.answers > _GROWTH * self._most:
            return False
        # Each waiting prompt may take longer than the line predicts, so deviations add up.
        usual_bytes = self._first.line.size
        more = max(held.prompt_bytes / usual_bytes, 1.0) if usual_bytes else 1.0
        first_token_s = self._first.likely_s(held.prompt_bytes, more)
        return objective.allows(first_token_s, self._token.likely_s(held.answers))
