"""Check of what a peer region's router answers: its figures can be, and it answers the request."""

import math
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from inference import grpc_service_pb2 as pb
from services.kit.errors import InvalidArgument
from services.kit.power_limits import MOST_GPU_W, MOST_OVER_LIMIT
from services.router.adapters.answer_check import WrongAnswer
from services.router.core.accounting.receipts import CARBON, ENERGY, Answer, Trailers
from services.router.core.model import Request, ResponseReceiver

_MOST_GPUS: Final = 16
"""GPUs that answer one request."""

_SLACK_S: Final = 1.0
_LONGEST: Final = 256
_ENERGY: Final = "energy_j"
_CARBON: Final = "carbon_gco2e"
_TEXTS: Final = frozenset({"cinquefoil-variant"})
_FIGURES: Final = frozenset({ENERGY, CARBON})


def checked(
    answer: bytes, trailers: Iterable[tuple[str, str | bytes]], request: Request, took_s: float
) -> Trailers:
    """Return the trailing metadata of an answer that may go to the client.

    Args:
        answer: A serialized ModelInferResponse, with its receipt.
        trailers: As they came; those that no receipt has are left out.
        request: The request.
        took_s: Time since the request left.

    Raises:
        WrongAnswer: It cannot be the answer to the request, or its receipt cannot be.
    """
    try:
        found = pb.ModelInferResponse.FromString(answer)
    except DecodeError as error:
        raise WrongAnswer("no serialized inference.ModelInferResponse") from error
    return tuple(_kept(trailers, _check(found, request, took_s)))


def _check(found: pb.ModelInferResponse, request: Request, took_s: float) -> float:
    """Check a response; return the most energy that its request may have taken, J."""
    if found.model_name != request.model or found.id != request.id:
        raise WrongAnswer(f"an answer of model {found.model_name!r:.64} with id {found.id!r:.64}")
    most_j = MOST_GPU_W * MOST_OVER_LIMIT * _MOST_GPUS * (took_s + _SLACK_S)
    for name, parameter in found.parameters.items():
        value = parameter.double_param
        if not 0 <= value < math.inf or (name == _ENERGY and value > most_j):
            raise WrongAnswer(f"a receipt with {name!r:.64} of {value:g}")
    return most_j


def _kept(trailers: Iterable[tuple[str, str | bytes]], most_j: float) -> Iterable[tuple[str, str]]:
    for key, value in trailers:
        if key in _TEXTS and isinstance(value, str):
            yield key, value[:_LONGEST]
        elif key in _FIGURES:
            if not 0 <= _number(value) <= most_j:  # a carbon of 1 g takes more than 1 J
                raise WrongAnswer(f"{key} of {value[:_LONGEST]!r}")
            yield key, str(value)


def _number(text: str | bytes) -> float:
    try:
        return float(text) if len(text) <= _LONGEST else math.nan
    except ValueError:
        return math.nan


class StreamedAnswer:
    """An answer in parts, each checked before it goes to the client.

    Args:
        request: The request.
        receiver: Takes the parts before the last.

    Attributes:
        begun: A part has gone to the client.
    """

    def __init__(self, request: Request, receiver: ResponseReceiver) -> None:
        self._request, self._receiver = request, receiver
        self._last: pb.ModelInferResponse | None = None
        self.begun = False

    def take(self, response: bytes, took_s: float) -> None:
        """Take a serialized ModelStreamInferResponse.

        Raises:
            WrongAnswer: It is an error, cannot be part of the answer, or comes after the last.
            InvalidArgument: The peer refuses the request as malformed.
        """
        try:
            found = pb.ModelStreamInferResponse.FromString(response)
        except DecodeError as error:
            raise WrongAnswer("no serialized inference.ModelStreamInferResponse") from error
        part = found.infer_response
        if found.error_message:
            if part.parameters["cinquefoil_status"].string_param == "INVALID_ARGUMENT":
                raise InvalidArgument(found.error_message)
            raise WrongAnswer(f"an error: {found.error_message:.200}")
        if self._last is not None:
            raise WrongAnswer("a part after the last")
        part.model_name, part.id = (
            part.model_name or self._request.model,
            part.id or self._request.id,
        )
        _check(part, self._request, took_s)
        if part.parameters["triton_final_response"].bool_param:
            self._last = part
        else:
            self._receiver.receive_part(None, part.SerializeToString())
            self.begun = True

    def answer(self) -> Answer:
        """Return the last part, with the receipt.

        Raises:
            WrongAnswer: It has not come.
        """
        if self._last is None:
            raise WrongAnswer("a stream that ended before the last part")
        whole = self._last.SerializeToString()
        self._receiver.complete(
            whole if self._last.raw_output_contents or self._last.outputs else b""
        )
        found = self._last.parameters
        variant = found["model_variant"].string_param[:_LONGEST]
        costs = ((ENERGY, _ENERGY), (CARBON, _CARBON))
        return Answer(
            whole,
            (
                ("cinquefoil-variant", variant),
                *((key, f"{found[name].double_param:.9g}") for key, name in costs if name in found),
            ),
        )
