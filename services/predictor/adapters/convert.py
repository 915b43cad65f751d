"""The predictor's words <-> protobuf."""

from __future__ import annotations

from typing import Final

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from services.kit.errors import InvalidArgument
from services.predictor.core.prediction import Foretold, Source
from services.predictor.core.prediction_stats import Count

_SOURCES: Final[dict[Source, pb.Source.ValueType]] = {
    "exact": pb.SOURCE_EXACT,
    "semantic": pb.SOURCE_SEMANTIC,
    "model": pb.SOURCE_MODEL,
    "prior": pb.SOURCE_PRIOR,
}


def foretold_to_wire(id_: int, foretold: Foretold) -> pb.PredictResponse:
    """Return the response to request `id_`."""
    estimate = foretold.estimate
    return pb.PredictResponse(
        id=id_,
        length_class=estimate.class_,
        expected_tokens=estimate.expected_tokens,
        low_tokens=estimate.low_tokens,
        high_tokens=estimate.high_tokens,
        source=_SOURCES[foretold.source],
        prompt_key=foretold.key,
        rank=foretold.rank,
    )


def count_to_wire(source: Source, count: Count) -> pb.SourceStatistics:
    """Return what a source foretold."""
    return pb.SourceStatistics(
        source=_SOURCES[source],
        predictions=count.predictions,
        total_s=count.total_s,
        judged=count.judged,
        right=count.right,
    )


def check_observations(request: pb.ObserveRequest) -> None:
    """Refuse a batch with an observation that says nothing.

    Raises:
        InvalidArgument: It has no model, or neither key nor prompt.
    """
    for index, observation in enumerate(request.observations):
        field = f"observations[{index}]"
        if not observation.model:
            raise InvalidArgument(f"{field}.model: required", field=f"{field}.model")
        if observation.WhichOneof("of") is None:
            raise InvalidArgument(f"{field}: give prompt_key or prompt", field=f"{field}.of")


def unused_for_s(request: pb.ForgetRequest) -> float:
    """Return the age from which prompts are to be forgotten, s; 0: any.

    Raises:
        InvalidArgument: It is negative, or the request asks for nothing.
    """
    if not (request.model or request.HasField("unused_for") or request.everything):
        raise InvalidArgument("give model, unused_for, or everything", field="everything")
    age = request.unused_for
    if age.seconds < 0 or age.nanos < 0:
        raise InvalidArgument("unused_for: must be >= 0", field="unused_for")
    return age.seconds + age.nanos / 1e9
