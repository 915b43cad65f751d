"""Speculative shortest job first for one model: which boost a request has, and from what learned.

`boost` says what the rule is and what it guarantees; here it meets the model's requests.
"""

from __future__ import annotations

from services.router.boost import Boosts
from services.router.domain import Request

_ADAPT_ARRIVALS = 100  # fewer say too little about the load
_ADAPT_S = 1.0  # adapting takes 2 ms


class ShortestFirst:
    """Ranks the requests of one model.

    Args:
        most_s: No request goes before one that came more than this earlier, s.
    """

    def __init__(self, most_s: float) -> None:
        self._boosts = Boosts(most_s)
        self._arrivals = 0
        self._since_s: float | None = None

    def begin(self) -> None:
        """Count arrivals anew: there was a time in which they were not counted."""
        self._arrivals, self._since_s = 0, None

    def arrive(self, now_s: float, slots: int) -> None:
        """Count an arrival.

        Args:
            now_s: When.
            slots: Requests that the model's instances may hold together.
        """
        if self._since_s is None:
            self._since_s = now_s
        self._arrivals += 1
        interval_s = now_s - self._since_s
        if slots and self._arrivals >= _ADAPT_ARRIVALS and interval_s >= _ADAPT_S:
            self._boosts.adapt(self._arrivals, interval_s, slots)
            self._arrivals, self._since_s = 0, now_s

    def foretell(self, request: Request, length_class: int) -> None:
        """Rank a request whose length class, 0..4, is known by now."""
        request.length_class = length_class
        request.boost_s = self._boosts.of(length_class)

    def learn(self, request: Request, service_s: float) -> None:
        """Take in how long an instance had a request, s, where its class had been foretold."""
        if request.length_class is not None:
            self._boosts.learn(request.length_class, service_s)
