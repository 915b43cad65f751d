"""Leadership among planners on one database: a lease, counted in terms.

The holder renews the lease by counting up its beat. Clocks are never compared: a standby planner
measures by its own clock for how long the beat has not changed, and the holder stops acting after a
shorter time since the start of its last renewal. All times are monotonic seconds.

Source: C. Gray, D. Cheriton, "Leases: An Efficient Fault-Tolerant Mechanism for Distributed File
Cache Consistency", SOSP 1989; the term is a fencing token.
"""

from dataclasses import dataclass, replace
from typing import Final

RENEW_S: Final = 1.0
"""Time between renewals, s."""

ACTS_S: Final = 4.0
"""Time for which the holder acts after the start of its last renewal, s."""

EXPIRES_S: Final = 5.0
"""Time for which a lease without renewal keeps others from leading, s; more than `ACTS_S`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease as it is stored.

    Attributes:
        holder: Host and process of the planner that leads; "": none has led yet.
        term: Increases whenever another process leads.
        beat: Increases with each renewal.
    """

    holder: str = ""
    term: int = 0
    beat: int = 0

    def taken(self, holder: str) -> "Lease":
        """Return the lease of the next holder."""
        return Lease(holder, self.term + 1)

    def renewed(self, at_least: int = 0) -> "Lease":
        """Return the same lease one beat later, with a term of at least `at_least`."""
        return replace(self, term=max(self.term, at_least), beat=self.beat + 1)

    def same(self, other: "Lease") -> bool:
        """Return whether holder and term are the same: no other planner has led in between."""
        return (self.holder, self.term) == (other.holder, other.term)


class Tenure:
    """The lease as its holder sees it: the time until which it may act."""

    def __init__(self, requested_s: float) -> None:
        """Begin a term whose lease was requested at `requested_s`."""
        self._requested_s = requested_s

    def renewed(self, requested_s: float) -> None:
        """Record that the renewal which began at `requested_s` is stored."""
        self._requested_s = max(self._requested_s, requested_s)

    def lasts_s(self, now_s: float) -> float:
        """Return the remaining time in which the holder may act, s; 0: it may not."""
        return max(0.0, self._requested_s + ACTS_S - now_s)


class Vigil:
    """The lease as a standby planner sees it: whether the holder has let it expire."""

    def __init__(self) -> None:
        self._seen: Lease | None = None
        self._since_s = 0.0

    def expired(self, lease: Lease, now_s: float) -> bool:
        """Record the current lease; return whether it has not changed for too long."""
        if lease != self._seen:
            self._seen, self._since_s = lease, now_s
        return now_s - self._since_s >= EXPIRES_S
