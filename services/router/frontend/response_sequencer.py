"""Order of the responses of one stream.

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


Departure = tuple[StreamedRequest, bytes | None]
"""A request and its next response; None: the request has ended."""


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
        if not streamed.ordered or self._ordered[0] is streamed:
            self._leaving.append((streamed, body))
        else:
            streamed.waiting.append(body)

    def end(self, streamed: StreamedRequest) -> None:
        """Note that a request has no further response."""
        streamed.ended = True
        if not streamed.ordered:
            self._leaving.append((streamed, None))
            return
        while self._ordered and self._ordered[0].ended:
            self._leaving.append((self._ordered.popleft(), None))
            if self._ordered:
                self._release(self._ordered[0])

    def next(self) -> Departure | None:
        """Take the response to send next; None: none may be sent yet."""
        if not self._leaving:
            return None
        streamed, body = self._leaving.popleft()
        self.held_bytes -= len(body or b"")
        return streamed, body

    def _release(self, streamed: StreamedRequest) -> None:
        self._leaving.extend((streamed, body) for body in streamed.waiting)
        streamed.waiting = []
