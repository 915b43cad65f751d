"""A decoupled model's answer to a caller who takes one response."""

from __future__ import annotations

from services.kit.errors import Unimplemented
from services.router.core.model import Instance


class SingleResponse:
    """The `Parts` of a unary call: one response is an answer, whenever it came; more are not."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._first = b""

    def add(self, instance: Instance, response: bytes) -> None:  # noqa: ARG002 - as Parts
        """Keep the first part.

        Raises:
            Unimplemented: It is the second.
        """
        if self._first:
            raise self._refusal("more than one response")
        self._first = response

    def last(self, response: bytes) -> bytes:
        """Return the only response.

        Raises:
            Unimplemented: There was none, or another before.
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
