"""Headroom of one instance: deferrable requests that it may hold beside interactive ones.

Three bounds, of which the smallest counts:

- what its answers have shown (`pace`): for texts the number of answers at which the mean time
  between tokens, prompts of both classes included, reaches a share of the objective; for batches
  the number at which a request that comes next still meets a share of its latency objective;
- additive increase, multiplicative decrease of what interactive requests measure (AIMD): other
  routers' requests, and whatever the first bound does not know;
- slots that interactive requests do not need: a reserve by how many they held recently.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from services.kit.request_cost import Cost
from services.router.core.deferrable.interactive_peak import InteractivePeak
from services.router.core.regression import Regression

PERIOD_S: Final = 1.0
MAX_PERIOD_S: Final = 30.0
"""Bounds of the time between two steps of AIMD, s."""

_CUT: Final = 0.7
_AIMD_MORE: Final = 0.1
"""Of the objective, beyond the share: AIMD is for what the line does not know."""
_MAX_RESTS: Final = 32
_CALM: Final = 8
_FEW: Final = 0.02
"""Share of answers that one alone makes more than: two of them are needed."""
_STEP: Final = 2.0
_FIRST: Final = 4.0
_HOLD_PERIODS: Final = 4.0
_FASTER: Final = 1.5
_WORST: Final = 1e6
_KNOWN: Final = 8.0
"""Answers from which on a line counts."""
_GROWTH: Final = 2.0
"""Times the most concurrent answers that were measured which a line is trusted for."""
_WEIGHT: Final = 1 / 64
_LONG_TOKENS: Final = (200.0, 400.0)
_LONG_SHARE: Final = 0.1
"""Longer deferrable answers drain slowly when interactive load jumps: so much less of the
objective from each of these lengths on."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Objectives of a model's interactive requests.

    Attributes:
        latency_s: Time from arrival to answer, s.
        first_token_s: Time to the first token, s; infinite: none.
        token_s: Mean time between tokens, s; infinite: none.
        missed: Share of requests that may miss them, 0..1.
        share: Part of an objective that deferrable requests may use up, 0..1.
    """

    latency_s: float
    first_token_s: float = math.inf
    token_s: float = math.inf
    missed: float = 0.05
    share: float = 0.7

    @property
    def period_s(self) -> float:
        """Time between two steps of AIMD, s: before that, the last one does not show."""
        slowest_s = self.first_token_s if self.first_token_s < math.inf else self.latency_s / 10
        return max(min(slowest_s, MAX_PERIOD_S), PERIOD_S)


@dataclass(slots=True)
class Headroom:
    """Learns from an instance's answers.

    Attributes:
        peak: Interactive requests that it held recently.
        limit: Deferrable requests that AIMD allows.
        hold_s: Mean time that it takes for a deferrable request, s; 0: not known.
        tokens: Mean length of deferrable answers, tokens; 0: no texts.
        closes_s: Until then it takes deferrable requests although it has few others.
        next_s: Time before which it gets no deferrable request.
        paused: Interactive requests took its room, and it has not enough of it yet.
    """

    peak: InteractivePeak = field(default_factory=InteractivePeak)
    limit: float = _FIRST
    hold_s: float = 0.0
    tokens: float = 0.0
    closes_s: float = -math.inf
    next_s: float = -math.inf
    paused: bool = False
    _cut: bool = False  # once: growth is additive from then on
    _grows_s: float = -math.inf
    _rests: int = 1  # periods from a cut to the next growth: more, where one follows another
    _step_s: float = -math.inf
    _gap_s: float = 0.0  # sum of the times between interactive tokens in this period
    _gaps: int = 0
    _missed: float = 0.0  # running share of interactive answers beyond the share of an objective
    _token: Regression = field(default_factory=Regression)
    _most: float = 0.0
    _own_token: Regression = field(default_factory=Regression)
    _batch: Regression = field(default_factory=Regression)

    # ---- learning ------------------------------------------------------------------------------

    def observe_gap(self, gap_s: float) -> None:
        """Learn from the time between two tokens of an interactive answer, s."""
        self._gap_s += gap_s
        self._gaps += 1

    def observe(self, cost: Cost | None, load: float, latency_s: float, goal: Objective) -> None:
        """Learn from an interactive answer.

        Args:
            cost: Its cost, where its worker reported one.
            load: Requests of both classes that the instance held meanwhile.
            latency_s: From its arrival to its answer, s.
            goal: Objectives.
        """
        strain = latency_s / goal.latency_s
        if cost is not None and cost.usage is not None:
            first_s, token_s = cost.usage.first_token_s, cost.usage.token_s
            if first_s:
                strain = max(strain, token_s / goal.token_s)
            if first_s and 0 < token_s < math.inf:
                self._token.add(load, token_s)
                self._most = max(self._most, load)
        elif cost is not None:
            self._batch.add(cost.batch_size, cost.compute_s)
        self._note(strain, goal)

    def observe_first(self, first_s: float, goal: Objective) -> None:
        """Learn from the time to the first token of an interactive answer, s."""
        self._note(first_s / goal.first_token_s, goal)

    def _note(self, strain: float, goal: Objective) -> None:
        """Count a part of an objective that was used up."""
        self._missed += _WEIGHT * ((strain > (1 + goal.share) / 2) - self._missed)

    def observe_own(self, cost: Cost | None, load: float, hold_s: float) -> None:
        """Learn from a deferrable answer.

        Args:
            cost: As of `observe`.
            load: As of `observe`.
            hold_s: From its assignment to its answer, s.
        """
        self.hold_s += (hold_s - self.hold_s) * (_WEIGHT if self.hold_s else 1.0)
        if cost is None:
            return
        if cost.usage is None:
            self._batch.add(cost.batch_size, cost.compute_s)
            return
        tokens = float(cost.usage.output_tokens)
        self.tokens += (tokens - self.tokens) * (_WEIGHT if self.tokens else 1.0)
        if 0 < cost.usage.token_s < math.inf:
            self._own_token.add(load, cost.usage.token_s)

    def adjust(self, held: int, now_s: float, goal: Objective) -> None:
        """Take a step of AIMD where one is due.

        Args:
            held: Deferrable requests that the instance holds.
            now_s: The time.
            goal: Objectives.
        """
        period_s = goal.period_s
        if now_s < self._step_s + period_s:
            return
        gap_s = self._gap_s / self._gaps if self._gaps else 0.0
        self._step_s, self._gap_s, self._gaps = now_s, 0.0, 0
        if gap_s > self._share(goal, _AIMD_MORE) * goal.token_s or self._missed > max(
            goal.missed, _FEW
        ):
            self.limit = min(self.limit, held + _STEP) * _CUT
            self._missed *= 0.5
            again = now_s < self._grows_s + _CALM * self._rests * period_s
            self._rests = min(2 * self._rests, _MAX_RESTS) if again else 1
            self._grows_s, self._cut = now_s + self._rests * period_s, True
        elif held >= self.limit - _STEP and now_s >= self._grows_s:  # it is what bounds
            self.limit += _STEP if self._cut else max(_STEP, self.limit / 2)
            self.limit = min(self.limit, _WORST)

    # ---- deciding ------------------------------------------------------------------------------

    @property
    def texts(self) -> bool:
        """True where answers are texts, or may be: it has given none yet."""
        return self._token.weight + self._own_token.weight > 0 or not self._batch.weight

    def interval_s(self, goal: Objective) -> float:
        """Return the time between two deferrable requests, s: somewhat less than between answers.

        A server reads prompts in order of arrival, so that many at once would delay an interactive
        one that comes next. Batches need no pace.
        """
        hold_s = self.hold_s or _HOLD_PERIODS * goal.period_s
        return hold_s / max(self.limit, 1.0) / _FASTER if self.texts else 0.0

    def room(self, interactive: int, credits_: int, most: int, goal: Objective) -> int:
        """Return the deferrable requests that the instance may hold now.

        Args:
            interactive: Interactive requests that it holds.
            credits_: Requests that run at a time.
            most: Requests that it may hold.
            goal: Objectives.
        """
        # A batch that runs ends soon, which `pace` counts; an answer keeps its slot for long.
        slots = most - (self.peak.reserve(interactive, credits_) if self.texts else 0)
        return max(min(int(self.limit), slots, self.pace(interactive, credits_, most, goal)), 0)

    def pace(self, interactive: int, credits_: int, most: int, goal: Objective) -> int:
        """Return the deferrable requests beside which interactive ones meet their objective."""
        line = self._token if self._token.weight >= _KNOWN else self._own_token
        if goal.token_s < math.inf and line.weight >= _KNOWN:
            return self._answers(line, most, goal) - interactive
        if self._batch.weight < _KNOWN:
            return most if not interactive else credits_
        return self._batched(interactive, credits_, most, goal)

    def _answers(self, line: Regression, most: int, goal: Objective) -> int:
        """Return the answers at which the time between tokens reaches its share."""
        bound_s = self._share(goal) * goal.token_s
        slope = line.covariance / line.variance if line.variance > 1e-9 else 0.0
        trusted = _GROWTH * max(self._most, line.size, 1.0)
        if slope <= 0:
            return int(min(trusted, most)) if line.value <= bound_s else int(line.size * _CUT)
        return int(min(line.size + (bound_s - line.value) / slope, trusted, most))

    def _batched(self, interactive: int, credits_: int, most: int, goal: Objective) -> int:
        """Return the requests that may be ahead of one that comes next, in batches.

        It waits for what runs and what goes before it, and then for its own batch.
        """
        bound_s = self._share(goal) * goal.latency_s
        for held in range(most, 0, -1):
            batch = min(held + interactive, credits_)
            ahead = math.ceil((held + interactive) / credits_)
            if (ahead + 1) * self._batch.at(batch) <= bound_s:
                return held
        return 0

    def _share(self, goal: Objective, more: float = 0.0) -> float:
        longer = sum(self.tokens > each for each in _LONG_TOKENS)
        return goal.share + more - _LONG_SHARE * longer
