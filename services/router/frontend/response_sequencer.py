"""The order in which the responses of one stream leave.

Triton's: requests of a model that gives one response to each are answered in the order they came;
the responses of a decoupled model leave as they come.
Source: Triton Inference Server, ModelStreamInferHandler.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class StreamedRequest:
    """One request of a stream.

    Attributes:
        ordered: Its response waits for those of earlier such requests.
        waiting: Responses that may not leave yet.
        ended: It has no further response.
    """

    ordered: bool
    waiting: list[bytes] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Departure:
    """What leaves next. Attributes: body, of the request; None: the request has ended."""

    streamed: StreamedRequest
    body: bytes | None


class ResponseSequencer:
    """Requests of a stream, and their responses on the way out.

    Attributes:
        held_bytes: Size of the responses that have not left.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._ordered: deque[StreamedRequest] = deque()
        self._leaving: deque[Departure] = deque()

    def open(self, *, ordered: bool) -> StreamedRequest:
        """Begin a request."""
        streamed = StreamedRequest(ordered)
        if ordered:
            self._ordered.append(streamed)
        return streamed

    def put(self, streamed: StreamedRequest, body: bytes) -> None:
        """Add a response."""
        self.held_bytes += len(body)
        if self._may_leave(streamed):
            self._leaving.append(Departure(streamed, body))
        else:
            streamed.waiting.append(body)

    def end(self, streamed: StreamedRequest) -> None:
        """Note that a request has no further response."""
        streamed.ended = True
        if not streamed.ordered:
            self._leaving.append(Departure(streamed, None))
            return
        while self._ordered and self._ordered[0].ended:
            self._leaving.append(Departure(self._ordered.popleft(), None))
            if self._ordered:
                self._release(self._ordered[0])

    def next(self) -> Departure | None:
        """Take what leaves next; None: nothing may leave yet."""
        if not self._leaving:
            return None
        departure = self._leaving.popleft()
        self.held_bytes -= len(departure.body or b"")
        return departure

    def _may_leave(self, streamed: StreamedRequest) -> bool:
        return not streamed.ordered or self._ordered[0] is streamed

    def _release(self, streamed: StreamedRequest) -> None:
        self._leaving.extend(Departure(streamed, body) for body in streamed.waiting)
        streamed.waiting = []
