"""Running totals of the requests that one instance holds, so that choices need no sums."""

from typing import Final, NamedTuple

from services.router.core.pending_request import PendingRequest

COUNT_AGAIN: Final = 1.1
"""Requests are counted again once the usual length is so many times longer or shorter."""


class _Counted(NamedTuple):
    """A request, and its part in the sums."""

    pending: PendingRequest
    unanswered_bytes: int
    kv_tokens: int


class HeldWork:
    """The requests that are counted, and their sums. Each reports its changes, and they follow.

    Attributes:
        body_bytes: Of all bodies.
        unanswered_bytes: Of the bodies of requests whose answers have not begun.
        kv_tokens: Tokens that they probably take of a KV cache once their answers are whole.
        usual_tokens: Length by which answers without a prediction are counted; 0: not known.
    """

    __slots__ = ("_counted", "body_bytes", "kv_tokens", "unanswered_bytes", "usual_tokens")

    def __init__(self) -> None:
        self._counted: dict[int, _Counted] = {}
        self.body_bytes = self.unanswered_bytes = self.kv_tokens = 0
        self.usual_tokens = 0.0

    def add(self, pending: PendingRequest) -> None:
        """Count a request from now on; nothing happens where it is counted already."""
        if pending.request.number not in self._counted:
            self._counted[pending.request.number] = counted = self._counts(pending)
            self.body_bytes += len(pending.request.body)
            self.unanswered_bytes += counted.unanswered_bytes
            self.kv_tokens += counted.kv_tokens
            pending.holders += (self,)

    def remove(self, pending: PendingRequest) -> None:
        """Remove a request from the totals; nothing happens if it was not counted."""
        counted = self._counted.pop(pending.request.number, None)
        if counted is not None:
            self.body_bytes -= len(pending.request.body)
            self.unanswered_bytes -= counted.unanswered_bytes
            self.kv_tokens -= counted.kv_tokens
            pending.holders = tuple(each for each in pending.holders if each is not self)

    def recount(self, pending: PendingRequest) -> None:
        """Follow a change of a request that is counted; most tokens of an answer change nothing."""
        before = self._counted[pending.request.number]
        now = self._counts(pending)
        if now != before:
            self._counted[pending.request.number] = now
            self.unanswered_bytes += now.unanswered_bytes - before.unanswered_bytes
            self.kv_tokens += now.kv_tokens - before.kv_tokens

    def expect(self, usual_tokens: float) -> None:
        """Set the usual length of answers; if it changed, count all requests again, O(n)."""
        if self.usual_tokens / COUNT_AGAIN < usual_tokens < self.usual_tokens * COUNT_AGAIN:
            return
        self.usual_tokens = usual_tokens
        for counted in tuple(self._counted.values()):
            self.recount(counted.pending)

    def _counts(self, pending: PendingRequest) -> _Counted:
        unanswered_bytes = 0 if pending.answering else pending.request.prompt_bytes
        return _Counted(pending, unanswered_bytes, pending.kv_tokens(self.usual_tokens))
