"""Orders of the planner that leads only."""

from dataclasses import dataclass

from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.terms import MOST_TERMS_AHEAD

STALE_TERM = "STALE_TERM"
"""Reason of the refusal of an order of a planner that does not lead any more."""


@dataclass(slots=True)
class Terms:
    """The highest term of any order so far.

    Orders of a lower one are refused, so that orders by term never interleave. Those without a
    term, of a planner that counts none, are not.

    Attributes:
        term: The highest; 0: none.
    """

    term: int = 0

    def admit(self, term: int) -> bool:
        """Take in the term of an order; return whether it is the highest now, and new.

        Raises:
            FailedPrecondition: An order of a higher term has come before.
            InvalidArgument: No planner that follows the last can be in that term.
        """
        if self.term and term > self.term + MOST_TERMS_AHEAD:
            raise InvalidArgument.at(
                "term", f"must be at most {MOST_TERMS_AHEAD:,} above {self.term}, got {term}"
            )
        if term and term < self.term:
            raise FailedPrecondition(
                f"this step is of term {term}, and one of term {self.term} has come: its "
                "planner does not lead any more",
                reason=STALE_TERM,
            )
        new, self.term = term > self.term, max(term, self.term)
        return new
