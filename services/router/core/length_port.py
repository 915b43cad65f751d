"""The port to the predictor of answers' lengths."""

from typing import Protocol

from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.boost import DECILES


class LengthPort(Protocol):
    """Requests predictions of answers' lengths, and reports the lengths of answers."""

    def request_prediction(self, dispatcher: Dispatcher, pending: PendingRequest) -> None:
        """Have `dispatcher.predict_length` called for a waiting request, late or never included."""
        ...

    def end(self, pending: PendingRequest, output_tokens: int, response: bytes) -> None:
        """Note that a request has ended: its prediction is not needed any more.

        Args:
            pending: The request, whether or not a prediction was requested for it.
            output_tokens: Length of its answer; 0: it has none, or it is not known.
            response: Its last response, which says why the answer ended.
        """
        ...


def decile_at(rank: float) -> int | None:
    """Return the decile that a request is ranked by, 0..DECILES - 1; None: invalid rank.

    Args:
        rank: Share of the model's requests with shorter expected answers, 0..1.
    """
    return min(int(rank * DECILES), DECILES - 1) if 0 <= rank <= 1 else None
