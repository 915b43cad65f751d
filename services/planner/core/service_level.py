"""The recent service level: share of late requests, and accuracy of answers.

A plan rests on profiles and on a queueing model. If the observed level is worse than promised, both
were too optimistic, and re-planning from the same numbers would change nothing. A violation
therefore also raises the requirements on the next plan, for a while.
"""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_TIME_CONSTANT_S = 30.0
_MIN_ANSWERS = 50.0
_SIGMAS = 3.0  # by chance alone, one window in 700 is as bad
_HEADROOM_STEP = 1.25
_MAX_HEADROOM = 2.0
_SMALLEST_RISE = 0.01  # smaller ones only restore what wore off
_LIFT_WEARS_OFF_S = 900.0
_HEADROOM_WEARS_OFF_S = 86_400.0
"""A load's headroom is kept while the load lasts: losing it would cost two plans each time."""
_TOLERANCE = 0.002  # of accuracy, relative
_FIRST_DELAY_S = 60.0
_MAX_DELAY_S = 3600.0

_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """Promises to a model's requests.

    Attributes:
        late_share: Share that may be late, 0..1.
        accuracies: Accuracies of its variants, in the model's unit.
    """

    late_share: float
    accuracies: Mapping[str, float]

    @property
    def best(self) -> float:
        """Accuracy of the most accurate variant."""
        return max(self.accuracies.values())


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        model: Name of the model.
        seen, promised: Observed and promised share, 0..1.
        why: An agent's explanation if it noticed the violation, or that requests were refused.
    """

    model: str
    seen: float
    promised: float
    why: str = ""


@dataclass(slots=True)
class _Seen:
    """Exponentially weighted counts."""

    answered: float = 0.0
    late: float = 0.0
    refused: float = 0.0
    accuracy_sum: float = 0.0

    def fade(self, keep: float) -> None:
        self.answered *= keep
        self.late *= keep
        self.refused *= keep
        self.accuracy_sum *= keep


@dataclass(frozen=True, slots=True)
class _Headroom:
    """Requirements of a model beyond its load.

    Attributes:
        factor: Factor on its load, at the last raise.
        load_rps: Largest load provided for at the last raise, req/s.
        since_s: Time of the last raise, s.
    """

    factor: float = 1.0
    load_rps: float = 0.0
    since_s: float = 0.0

    def factor_at(self, now_s: float) -> float:
        return 1.0 + (self.factor - 1.0) * _left(now_s - self.since_s, _HEADROOM_WEARS_OFF_S)


@dataclass(slots=True)
class ServiceLevel:
    """Observed service level by model, and its consequences. Times are monotonic seconds.

    Attributes:
        aims: Promises by model.
        settle_s: Time after a change of plan in which late answers may belong to requests that
            waited before, and do not count, s.
    """

    aims: dict[str, ServiceTarget]
    settle_s: float = 0.0
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _seen_s: float = 0.0
    _settles_s: float = -math.inf
    _short: dict[str, str] = field(default_factory=dict)
    _headroom: dict[str, _Headroom] = field(default_factory=dict)
    _lift: tuple[float, float] = (0.0, 0.0)
    _patience: tuple[float, float] = (0.0, 0.0)  # its length; its end

    def configure(self, aims: Mapping[str, ServiceTarget]) -> None:
        """Replace the promises; observations of changed ones are discarded."""
        self.aims.clear()
        self.aims.update(aims)
        self.forget()

    def observe(
        self,
        late: Mapping[str, int],
        answered: Mapping[str, Mapping[str, int]],
        now_s: float,
        refused: Mapping[str, int] = _NONE,
    ) -> None:
        """Add one router's counts since its last report.

        Args:
            late: Answers later than the SLO, by model.
            answered: All answers, by model and variant.
            now_s: Now, s.
            refused: Requests refused because of overload, by model: they count as late.
        """
        keep = math.exp(-max(now_s - self._seen_s, 0.0) / _TIME_CONSTANT_S)
        self._seen_s = now_s
        if now_s < self._settles_s:
            return
        for seen in self._seen.values():
            seen.fade(keep)
        for model in answered.keys() | refused.keys():
            aim = self.aims.get(model)
            if aim is None:
                continue
            seen = self._seen.setdefault(model, _Seen())
            seen.late += late.get(model, 0)
            seen.refused += refused.get(model, 0)
            for variant, count in answered.get(model, {}).items():
                seen.answered += count
                seen.accuracy_sum += count * aim.accuracies.get(variant, 0.0)

    def accuracies(self, answered: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
        """Return the mean accuracy of answers relative to the best variant's, by model."""
        found = {}
        for model, each in answered.items():
            aim, count = self.aims.get(model), sum(each.values())
            if aim is not None and count:
                gained = sum(aim.accuracies.get(name, 0.0) * n for name, n in each.items())
                found[model] = gained / (aim.best * count)
        return found

    def need_more(self, models: Iterable[str], why: str) -> None:
        """Record that an agent's GPU cannot serve these models any faster."""
        self._short.update((model, why) for model in models if model in self.aims)

    def forget(self, changed_s: float | None = None) -> None:
        """Discard all observations: another plan is active.

        Args:
            changed_s: Time when it changed what runs, s; None: it has changed nothing.
        """
        if changed_s is not None:
            self._settles_s = max(self._settles_s, changed_s + self.settle_s)
        self._seen.clear()
        self._short.clear()

    def late(self) -> tuple[Violation, ...]:
        """Return the models with significantly more late or refused requests than allowed.

        Also those of which an agent reports that they are late, or soon will be.
        """
        late = tuple(
            Violation(
                model, (seen.late + seen.refused) / requests, allowed, _why(seen, requests, model)
            )
            for model, seen in sorted(self._seen.items())
            if (requests := seen.answered + seen.refused) >= _MIN_ANSWERS
            and seen.late + seen.refused
            > (allowed := self.aims[model].late_share) * requests
            + _SIGMAS * math.sqrt(requests * allowed * (1 - allowed))
        )
        known = {each.model for each in late}
        short = (
            Violation(model, 0.0, self.aims[model].late_share, why)
            for model, why in sorted(self._short.items())
            if model not in known
        )
        return (*late, *short)

    def inaccurate(self, floor: float) -> tuple[Violation, ...]:
        """Return the models whose answers are less accurate than `floor` of their best variant."""
        return tuple(
            Violation(model, seen_share, floor)
            for model, seen in sorted(self._seen.items())
            if seen.answered >= _MIN_ANSWERS
            and (seen_share := seen.accuracy_sum / seen.answered / self.aims[model].best)
            < floor - _TOLERANCE
        )

    def decided(self, *, broken: bool, changed: bool, now_s: float) -> None:
        """Record the outcome of a decision.

        If late or inaccurate answers were the reason and nothing changed, they trigger no
        further decision for a while, each time for twice as long: the fleet may be too small, and
        some strategies ignore the floor.

        Args:
            broken: Whether such answers were the reason; any other reason ends the delay.
            changed: Whether another plan followed.
            now_s: Now, s.
        """
        if not broken:
            self._patience = (0.0, 0.0)
        elif not changed:
            length_s = min(max(2 * self._patience[0], _FIRST_DELAY_S), _MAX_DELAY_S)
            self._patience = (length_s, now_s + length_s)

    def bears(self, now_s: float) -> bool:
        """Return whether late or inaccurate answers trigger no decision for now."""
        return now_s < self._patience[1]

    def demand_more(
        self,
        rates_rps: Mapping[str, float],
        floor: float,
        now_s: float,
        learned: Container[str] = (),
    ) -> None:
        """Raise the requirements on the next plan for each SLO or floor violated now.

        Args:
            rates_rps: The load by model, without headroom.
            floor: The accuracy floor.
            now_s: Now, s.
            learned: Models with a known reason: their load is not to blame.
        """
        for violation in self.late():
            if violation.model in learned:
                continue
            held = self._headroom.get(violation.model, _Headroom())
            factor = min(held.factor_at(now_s) * _HEADROOM_STEP, _MAX_HEADROOM)
            load_rps = max(held.load_rps, factor * rates_rps[violation.model])
            self._headroom[violation.model] = _Headroom(factor, load_rps, now_s)
        missing = [each.promised - each.seen for each in self.inaccurate(floor)]
        if missing:
            self._lift = (self.floor_lift(now_s) + max(missing), now_s)

    def may_demand_more(self, now_s: float, learned: Container[str] = ()) -> bool:
        """Return whether `demand_more` would raise the requirements on the next plan."""
        return any(
            violation.model not in learned
            and self._headroom.get(violation.model, _Headroom()).factor_at(now_s)
            < _MAX_HEADROOM - _SMALLEST_RISE
            for violation in self.late()
        )

    def provided_rps(self, rates_rps: Mapping[str, float], now_s: float) -> dict[str, float]:
        """Return the load to provide for, by model, req/s: more if requests were late.

        A load that has since grown into the provided one needs no more: its size was not known
            before,
        or the plan has proven to serve it.

        Args:
            rates_rps: The load by model, without headroom.
            now_s: Now, s.
        """
        known = {model: self._headroom.get(model, _Headroom()) for model in rates_rps}
        return {
            model: max(rps, min(rps * known[model].factor_at(now_s), known[model].load_rps))
            for model, rps in rates_rps.items()
        }

    def floor_lift(self, now_s: float) -> float:
        """Return the addition to the objective's accuracy floor for the next plan."""
        lift, since_s = self._lift
        return lift * _left(now_s - since_s, _LIFT_WEARS_OFF_S)


def _why(seen: _Seen, requests: float, model: str) -> str:
    """Return the sentence that reports an overload; "": no request was refused."""
    if not seen.refused:
        return ""
    late, refused = 100 * seen.late / requests, 100 * seen.refused / requests
    return f"{model} is overloaded: {refused:.1f} % refused, {late:.1f} % late"


def _left(since_s: float, wears_off_s: float) -> float:
    """Return the share of a correction that is left after `since_s`; small ones are dropped."""
    left = math.exp(-since_s / wears_off_s)
    return left if left > 0.05 else 0.0
