"""Speculative shortest job first for one model: which boost a request has, and from what learned.

`boost` says what the rule is and what it guarantees; here it meets the model's requests.
"""

from __future__ import annotations

from services.router.core.model import Request
from services.router.core.queue.boost import Boosts

_ADAPT_ANSWERS = 50  # fewer change little
_ADAPT_S = 1.0  # adapting takes 2 to 6 ms


class ShortestFirst:
    """Ranks the requests of one model.

    Args:
        most_s: No request goes before one that came more than this earlier, s.
    """

    def __init__(self, most_s: float) -> None:
        self._boosts = Boosts(most_s)
        self._learned = 0
        self._adapted_s = 0.0

    def foretell(self, request: Request, length_class: int) -> None:
        """Rank a request whose length class is known by now."""
        request.length_class = length_class
        request.boost_s = self._boosts.of(length_class)

    def learn(self, request: Request, now_s: float, slots: int) -> None:
        """Take in how long a request waited, and then kept its instance.

        Nothing is learned of requests whose class nobody foretold (that did not wait, or not long
        enough), nor of those that more than one worker had: their waits were no queue's.

        Args:
            request: It, just answered.
            now_s: When.
            slots: Requests that the model's instances may hold together.
        """
        if request.length_class is None or request.attempts > 1 or request.pipeline is not None:
            return
        wait_s, service_s = request.sent_s - request.arrived_s, now_s - request.sent_s
        self._boosts.learn(request.length_class, service_s, wait_s)
        self._learned += 1
        if slots and self._learned >= _ADAPT_ANSWERS and now_s - self._adapted_s >= _ADAPT_S:
            self._boosts.adapt(slots)
            self._learned, self._adapted_s = 0, now_s
