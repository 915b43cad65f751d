"""The order in which the answers of one stream leave.

Triton's: requests of a model that gives one answer to each are answered in the order they came;
what a decoupled model answers leaves as it comes.
Source: Triton Inference Server, ModelStreamInferHandler.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Turn:
    """One request of a stream.

    Attributes:
        ordered: Its answer waits for those of earlier such requests.
        waiting: Answers that may not leave yet.
        over: It has no further answer.
    """

    ordered: bool
    waiting: list[bytes] = field(default_factory=list)
    over: bool = False


@dataclass(frozen=True, slots=True)
class Departure:
    """What leaves next. Attributes: body, of the turn; None: the turn is over."""

    turn: Turn
    body: bytes | None


class Turns:
    """Requests of a stream, and their answers on the way out.

    Attributes:
        held_bytes: Size of the answers that have not left.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._ordered: deque[Turn] = deque()
        self._leaving: deque[Departure] = deque()

    def open(self, *, ordered: bool) -> Turn:
        """Begin a request."""
        turn = Turn(ordered)
        if ordered:
            self._ordered.append(turn)
        return turn

    def put(self, turn: Turn, body: bytes) -> None:
        """Add an answer, or a part of one."""
        self.held_bytes += len(body)
        if self._may_leave(turn):
            self._leaving.append(Departure(turn, body))
        else:
            turn.waiting.append(body)

    def end(self, turn: Turn) -> None:
        """Note that a request has no further answer."""
        turn.over = True
        if not turn.ordered:
            self._leaving.append(Departure(turn, None))
            return
        while self._ordered and self._ordered[0].over:
            self._leaving.append(Departure(self._ordered.popleft(), None))
            if self._ordered:
                self._release(self._ordered[0])

    def next(self) -> Departure | None:
        """Take what leaves next; None: nothing may, yet."""
        if not self._leaving:
            return None
        departure = self._leaving.popleft()
        self.held_bytes -= len(departure.body or b"")
        return departure

    def _may_leave(self, turn: Turn) -> bool:
        return not turn.ordered or self._ordered[0] is turn

    def _release(self, turn: Turn) -> None:
        self._leaving.extend(Departure(turn, body) for body in turn.waiting)
        turn.waiting = []
