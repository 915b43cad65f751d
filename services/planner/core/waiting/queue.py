"""The waiting work of one model, earliest deadline first, while slots pass."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from services.planner.core.waiting.model import Due, Slot

NOTHING = 1e-6
"""Requests that are left by rounding."""

KEPT_BACK = 0.9
"""Part of later room that deadlines may count on: forecasts of load err."""


_MOMENT = 1 / 60
"""Part of a slot below which nothing is powered faster: a minute of an hour."""


class Backlog:
    """Work that is left, as it is answered.

    Args:
        work: What waits.
    """

    def __init__(self, work: Iterable[Due]) -> None:
        self._work = [[each.due_s, each.requests] for each in work if each.requests > NOTHING]
        self._work.sort()

    def add(self, due: Due) -> None:
        """Add work that has arrived."""
        insort(self._work, [due.due_s, due.requests])

    @property
    def requests(self) -> float:
        """Requests left."""
        return sum(left for _, left in self._work)

    def left(self) -> list[Due]:
        """Return what is left, earliest deadline first."""
        return [Due(due_s, requests) for due_s, requests in self._work]

    def due(self) -> Iterator[tuple[float, float]]:
        """Yield each deadline, s, and what is left that is due by then."""
        return zip(
            (due_s for due_s, _ in self._work),
            accumulate(left for _, left in self._work),
            strict=True,
        )

    def answer(self, slot: Slot, rate_rps: float) -> Iterator[tuple[float, float, float]]:
        """Answer at a rate during a slot; yield deadline, requests and time of the last of them."""
        at_s, done = slot.start_s, rate_rps * slot.length_s
        for each in self._work:
            part = min(each[1], done)
            if part <= 0:
                break
            each[1] -= part
            done -= part
            at_s += part / rate_rps
            yield each[0], part, at_s
        self._work = [each for each in self._work if each[1] > NOTHING]

    def must_rps(self, slots: Sequence[Slot]) -> float:
        """Return the least rate in the first slot with which later room suffices, req/s.

        Args:
            slots: This slot and the later ones.
        """
        first, rate_rps, later, at = slots[0], 0.0, 0.0, 1
        for due_s, requests in self.due():
            while at < len(slots) and slots[at].end_s <= due_s:
                later += slots[at].all_rps * slots[at].length_s
                at += 1
            rest = slots[at] if at < len(slots) else None
            if rest is None and due_s > slots[-1].end_s:
                break  # due beyond what is looked at
            begun = 0.0 if rest is None else rest.all_rps * max(due_s - rest.start_s, 0.0)
            rate_rps = max(
                rate_rps, _needed_rps(first, requests - KEPT_BACK * (later + begun), due_s)
            )
        return rate_rps


def _needed_rps(slot: Slot, requests: float, due_s: float) -> float:
    """Return the rate in a slot with which requests are answered by a time, req/s.

    Room answers what is due in a moment in time; replicas that are powered for it would not.
    """
    left_s, moment_s = due_s - slot.start_s, slot.length_s * _MOMENT
    rate_rps = requests / min(max(left_s, moment_s), slot.length_s)
    if left_s >= moment_s or requests <= 0:
        return rate_rps
    return max(rate_rps, min(requests / max(left_s, NOTHING), slot.room_rps))
