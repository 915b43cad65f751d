"""Check of what a peer region's router answers: its figures can be, and it answers the request."""

import math
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from inference import grpc_service_pb2 as pb
from services.kit.power_limits import MOST_GPU_W, MOST_OVER_LIMIT
from services.router.adapters.answer_check import WrongAnswer
from services.router.core.accounting.receipts import Trailers
from services.router.core.model import Request

_MOST_GPUS: Final = 16
"""GPUs that answer one request."""

_SLACK_S: Final = 1.0
_LONGEST: Final = 256
_ENERGY: Final = "energy_j"
_TEXTS: Final = frozenset({"cinquefoil-variant"})
_FIGURES: Final = frozenset({"cinquefoil-energy-j", "cinquefoil-carbon-gco2e"})


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
    if found.model_name != request.model or found.id != request.id:
        raise WrongAnswer(f"an answer of model {found.model_name!r:.64} with id {found.id!r:.64}")
    most_j = MOST_GPU_W * MOST_OVER_LIMIT * _MOST_GPUS * (took_s + _SLACK_S)
    for name, parameter in found.parameters.items():
        value = parameter.double_param
        if not 0 <= value < math.inf or (name == _ENERGY and value > most_j):
            raise WrongAnswer(f"a receipt with {name!r:.64} of {value:g}")
    return tuple(_kept(trailers, most_j))


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
