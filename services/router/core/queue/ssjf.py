"""Speculative shortest job first for one model: the boost of each request, learned from answers.

`boost` states the rule and its guarantee; this applies it to the model's requests.
"""

from __future__ import annotations

from services.router.core.pending_request import PendingRequest
from services.router.core.queue.boost import Boosts

_ADAPT_ANSWERS = 50  # fewer change little
_ADAPT_S = 1.0  # adapting takes 2 to 6 ms


class ShortestFirst:
    """Ranks the requests of one model.

    Args:
        bound_s: No request overtakes one that came more than this earlier, s.
    """

    def __init__(self, bound_s: float) -> None:
        self._boosts = Boosts(bound_s)
        self._learned = 0
        self._adapted_s = 0.0

    def rank(self, pending: PendingRequest, length_decile: int) -> None:
        """Rank a request whose length was predicted."""
        pending.rank(length_decile, self._boosts.of(length_decile))

    def learn(self, pending: PendingRequest, now_s: float, slots: int) -> None:
        """Learn from the time that a request waited, and then kept its instance.

        Nothing is learned of requests without a prediction (that did not wait, or not long
        enough), nor of those that more than one worker had: no queue caused their waits.

        Args:
            pending: The request, just answered.
            now_s: The time.
            slots: Requests that the model's instances may hold together.
        """
        if pending.length_decile is None or pending.attempts > 1 or pending.pipeline is not None:
            return
        service_s = now_s - pending.assigned_s
        self._boosts.learn(pending.length_decile, service_s, pending.queue_s)
        self._learned += 1
        if slots and self._learned >= _ADAPT_ANSWERS and now_s - self._adapted_s >= _ADAPT_S:
            self._boosts.adapt(slots)
            self._learned, self._adapted_s = 0, now_s
