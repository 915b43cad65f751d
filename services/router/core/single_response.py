"""A decoupled model's answer to a caller that takes a single response."""

from services.kit.errors import Unimplemented
from services.router.core.model import Instance


class SingleResponse:
    """The `ResponseReceiver` of a unary call: exactly one response is an answer.

    Args:
        model: Name of the model, for messages.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._first = b""

    def receive_part(self, instance: Instance | None, response: bytes) -> None:  # noqa: ARG002 - protocol
        """Keep the first response.

        Raises:
            Unimplemented: This is the second one.
        """
        if self._first:
            raise self._refusal("more than one response")
        self._first = response

    def complete(self, response: bytes) -> bytes:
        """Return the only response.

        Raises:
            Unimplemented: There was none, or more than one.
        """
        if not self._first and not response:
            raise self._refusal("no response")
        if self._first and response:
            raise self._refusal("more than one response")
        return response or self._first

    def _refusal(self, what: str) -> Unimplemented:
        return Unimplemented(
            f"model {self._model!r} is decoupled and gave {what} to this request, which ModelInfer"
            " cannot carry; call ModelStreamInfer",
            reason="DECOUPLED",
            field="model_name",
        )
