"""The recent service level: share of late requests, and accuracy of answers.

A plan rests on profiles and on a queueing model. Where what is seen is worse than promised, both
were too optimistic, and re-planning from the same numbers would change nothing. So a violation also
raises the requirements on the next plan, for a while.
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
_SMALLEST_RISE = 0.01  # below it, the rest is what wore off since
_LIFT_WEARS_OFF_S = 900.0
_HEADROOM_WEARS_OFF_S = 86_400.0
"""What a load needs is not forgotten while it lasts: each time would cost two plans."""
_TOLERANCE = 0.002  # of accuracy, relative
_FIRST_DELAY_S = 60.0
_MAX_DELAY_S = 3600.0

_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """What a model's requests were promised.

    Attributes:
        late_share: Share that may be late, 0..1.
        accuracies: Of its variants, in the model's unit.
    """

    late_share: float
    accuracies: Mapping[str, float]

    @property
    def best(self) -> float:
        """The most accurate variant's."""
        return max(self.accuracies.values())


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes:
        model: Whose requests.
        seen, promised: Shares, 0..1.
        why: What an agent says of it, where it is one who noticed; or that requests were refused.
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
    """What a model needs beyond its load.

    Attributes:
        factor: What its load was multiplied by when it was last raised.
        load_rps: The largest load that was provided for when it was raised.
        since_s: When it was raised.
    """

    factor: float = 1.0
    load_rps: float = 0.0
    since_s: float = 0.0

    def factor_at(self, now_s: float) -> float:
        return 1.0 + (self.factor - 1.0) * _left(now_s - self.since_s, _HEADROOM_WEARS_OFF_S)


@dataclass(slots=True)
class ServiceLevel:
    """What requests got, by model, and what follows from it. Times are monotonic seconds.

    Attributes:
        aims: What was promised, by model.
        settle_s: Time after a change of plan in which late answers may be those of requests that
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
    _patience: tuple[float, float] = (0.0, 0.0)  # its length; when it ends

    def configure(self, aims: Mapping[str, ServiceTarget]) -> None:
        """Take over other promises; what was seen of those before does not count any more."""
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
        """Take in one router's counts since its last report.

        Args:
            late: Answers later than the SLO, by model.
            answered: All answers, by model and variant.
            now_s: Now.
            refused: Requests that were not answered because too much waited, by model: they are as
                bad as late ones.
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

    def need_more(self, models: Iterable[str], why: str) -> None:
        """Take in that an agent's GPU cannot serve these models any faster."""
        self._short.update((model, why) for model in models if model in self.aims)

    def forget(self, changed_s: float | None = None) -> None:
        """Discard what was observed: another plan is active.

        Args:
            changed_s: When it changed what runs; None: it has changed nothing.
        """
        if changed_s is not None:
            self._settles_s = max(self._settles_s, changed_s + self.settle_s)
        self._seen.clear()
        self._short.clear()

    def late(self) -> tuple[Violation, ...]:
        """Return the models of which more requests are late or refused than may be, beyond chance.

        And those of which an agent says that they are, or soon will be.
        """
        late = tuple(
            Violation(model, (seen.late + seen.refused) / asked, allowed, _why(seen, asked, model))
            for model, seen in sorted(self._seen.items())
            if (asked := seen.answered + seen.refused) >= _MIN_ANSWERS
            and seen.late + seen.refused
            > (allowed := self.aims[model].late_share) * asked
            + _SIGMAS * math.sqrt(asked * allowed * (1 - allowed))
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
        """Learn what came of a decision.

        Where late or inaccurate answers were the reason and nothing changed, they trigger no
        further decision for a while, each time for twice as long: the fleet may be too small, and
        some strategies ignore the floor.

        Args:
            broken: Whether such answers were the reason; any other ends the delay.
            changed: Another plan came of it.
            now_s: Now.
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
        """Raise the requirements on the next plan where an SLO or the floor is violated now.

        Args:
            rates_rps: The load by model, without headroom.
            floor: The accuracy floor.
            now_s: Now.
            learned: Models of which the reason is known by now: the load is not to be blamed.
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
        """Return whether `demand_more` would raise what the next plan shall provide for."""
        return any(
            violation.model not in learned
            and self._headroom.get(violation.model, _Headroom()).factor_at(now_s)
            < _MAX_HEADROOM - _SMALLEST_RISE
            for violation in self.late()
        )

    def provided_rps(self, rates_rps: Mapping[str, float], now_s: float) -> dict[str, float]:
        """Return the load to provide for, by model: more where requests were late.

        A load that has grown since into what is provided for needs no more: it was not known how
        large the load was, or the plan has proven to serve it.

        Args:
            rates_rps: The load by model, without headroom.
            now_s: Now.
        """
        known = {model: self._headroom.get(model, _Headroom()) for model in rates_rps}
        return {
            model: max(rps, min(rps * known[model].factor_at(now_s), known[model].load_rps))
            for model, rps in rates_rps.items()
        }

    def floor_lift(self, now_s: float) -> float:
        """Return what a plan's accuracy floor shall be above the objective's."""
        lift, since_s = self._lift
        return lift * _left(now_s - since_s, _LIFT_WEARS_OFF_S)


def _why(seen: _Seen, asked: float, model: str) -> str:
    """Return the sentence that reports an overload; "": no request was refused."""
    if not seen.refused:
        return ""
    late, refused = 100 * seen.late / asked, 100 * seen.refused / asked
    return f"{model} is overloaded: {refused:.1f} % refused, {late:.1f} % late"


def _left(since_s: float, wears_off_s: float) -> float:
    """Return which share of a correction is left after `since_s`; little ones are dropped."""
    left = math.exp(-since_s / wears_off_s)
    return left if left > 0.05 else 0.0
