"""Which of several planners on one database leads: a lease, counted in terms.

The holder renews the lease by counting up its beat. No clock is compared with another's: a planner
that stands by looks at how long, by its own clock, the beat has not changed, and the holder stops
acting earlier than that after the beginning of its last renewal. All times are monotonic seconds.

Source: C. Gray, D. Cheriton, "Leases: An Efficient Fault-Tolerant Mechanism for Distributed File
Cache Consistency", SOSP 1989; the term is a fencing token.
"""

from dataclasses import dataclass, replace
from typing import Final

RENEW_S: Final = 1.0
"""Time between renewals, s."""

ACTS_S: Final = 4.0
"""How long the holder acts after the beginning of its last renewal, s."""

EXPIRES_S: Final = 5.0
"""How long a lease that is not renewed keeps others from leading, s; more than `ACTS_S`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease as it is stored.

    Attributes:
        holder: Host and process of the planner that leads; "": none ever did.
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
        """Return whether both have one holder and term: no other planner has led in between."""
        return (self.holder, self.term) == (other.holder, other.term)


class Tenure:
    """The holder's view: until when it may act."""

    def __init__(self, asked_s: float) -> None:
        """Begin; `asked_s`: when the lease was requested."""
        self._asked_s = asked_s

    def renewed(self, asked_s: float) -> None:
        """Take in that the renewal which began at `asked_s` is stored."""
        self._asked_s = max(self._asked_s, asked_s)

    def lasts_s(self, now_s: float) -> float:
        """Return how long the holder may still act, s; 0: it may not."""
        return max(0.0, self._asked_s + ACTS_S - now_s)


class Vigil:
    """The view of a planner that stands by: whether the holder has let its lease expire."""

    def __init__(self) -> None:
        self._seen: Lease | None = None
        self._since_s = 0.0

    def expired(self, lease: Lease, now_s: float) -> bool:
        """Take in the lease as it is now; return whether it has not changed for too long."""
        if lease != self._seen:
            self._seen, self._since_s = lease, now_s
        return now_s - self._since_s >= EXPIRES_S
