"""Conversion between the predictor's types and protobuf."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final, get_args

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from services.kit.errors import InvalidArgument
from services.predictor.core.estimate import AnswerLimits
from services.predictor.core.prediction import Prediction, Source
from services.predictor.core.prediction_stats import SourceStats

_SOURCES: Final[dict[Source, pb.Source.ValueType]] = {
    name: pb.Source.Value(f"SOURCE_{name.upper()}") for name in get_args(Source)
}


def prediction_to_wire(id_: int, prediction: Prediction) -> pb.PredictResponse:
    """Return the response to request `id_`."""
    estimate = prediction.estimate
    return pb.PredictResponse(
        id=id_,
        expected_tokens=estimate.expected_tokens,
        low_tokens=estimate.low_tokens,
        high_tokens=estimate.high_tokens,
        source=_SOURCES[prediction.source],
        prompt_key=prediction.key,
        rank=prediction.rank,
    )


def stats_to_wire(source: Source, stats: SourceStats) -> pb.SourceStatistics:
    """Return the statistics of one source."""
    return pb.SourceStatistics(source=_SOURCES[source], **asdict(stats))


def check_observations(request: pb.ObserveRequest, limits: Mapping[str, AnswerLimits]) -> None:
    """Check that every observation names a model and a prompt, and a length that is possible.

    Raises:
        InvalidArgument: One of them has no model, neither key nor prompt, or too many tokens.
    """
    for index, observation in enumerate(request.observations):
        field = f"observations[{index}]"
        if not observation.model:
            raise InvalidArgument(f"{field}.model: required", field=f"{field}.model")
        if observation.WhichOneof("of") is None:
            raise InvalidArgument(f"{field}: give prompt_key or prompt", field=f"{field}.of")
        context = limits.get(observation.model, AnswerLimits()).context_tokens
        if observation.output_tokens > context:
            raise InvalidArgument(
                f"{field}.output_tokens: at most {context}, the context of {observation.model},"
                f" got {observation.output_tokens}",
                field=f"{field}.output_tokens",
            )


def unused_for_s(request: pb.ForgetRequest) -> float:
    """Return the age from which prompts are to be deleted, s; 0: any age.

    Raises:
        InvalidArgument: The age is negative, or the request selects nothing.
    """
    if not (request.model or request.HasField("unused_for") or request.everything):
        raise InvalidArgument("give model, unused_for, or everything", field="everything")
    age = request.unused_for
    if age.seconds < 0 or age.nanos < 0:
        raise InvalidArgument("unused_for: must be >= 0", field="unused_for")
    return age.seconds + age.nanos / 1e9
