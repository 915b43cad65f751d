"""PredictorService: conversion between messages and the predictor."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceServicer
from services.kit.errors import InvalidArgument
from services.predictor.adapters.convert import (
    check_observations,
    prediction_to_wire,
    stats_to_wire,
    unused_for_s,
)
from services.predictor.runtime.persistence import Persistence
from services.predictor.runtime.predictor import LengthPredictor

_MAX_OPEN_PER_STREAM: Final = 256
"""Open requests of one stream; the next is read when a response has been sent."""


class PredictorServicer(PredictorServiceServicer):
    """Serves the predictor; the guard interceptor maps its errors.

    Args:
        predictor: Predicts and learns lengths.
        persistence: Writes deletions to disk.
    """

    def __init__(self, predictor: LengthPredictor, persistence: Persistence) -> None:
        self._predictor = predictor
        self._persistence = persistence

    async def Predict(  # type: ignore[override]  # the stub knows generators only; grpc takes both
        self, request_iterator: AsyncIterator[pb.PredictRequest], context: Any
    ) -> None:
        """Answer each request as soon as its prediction is known, in any order."""
        slots = asyncio.Semaphore(_MAX_OPEN_PER_STREAM)
        sending, invalid = asyncio.Lock(), False

        async def answer(request: pb.PredictRequest) -> None:
            prediction = await self._predictor.predict(
                request.model, request.prompt, request.max_tokens, request.tenant
            )
            async with sending:
                await context.write(prediction_to_wire(request.id, prediction))
            slots.release()

        async with asyncio.TaskGroup() as tasks:
            async for request in request_iterator:
                if invalid := not request.model:
                    break
                await slots.acquire()
                tasks.create_task(answer(request), name="predictor.answer")
        if invalid:
            raise InvalidArgument("model: required", field="model")

    async def Observe(self, request: pb.ObserveRequest, context: Any) -> pb.ObserveResponse:
        """Learn true lengths."""
        check_observations(request, self._predictor.limits)
        learned = 0
        for each in request.observations:
            model, tokens, cut = each.model, each.output_tokens, each.truncated
            if each.WhichOneof("of") == "prompt":
                learned += await self._predictor.observe(
                    model, each.prompt, tokens, truncated=cut, tenant=each.tenant
                )
            else:
                key = each.prompt_key
                learned += self._predictor.observe_key(model, key, tokens, truncated=cut)
        return pb.ObserveResponse(learned=learned)

    async def Forget(self, request: pb.ForgetRequest, context: Any) -> pb.ForgetResponse:
        """Delete prompts, before the call returns also from disk."""
        forgotten = self._predictor.forget(request.model or None, unused_for_s(request))
        await self._persistence.save()
        return pb.ForgetResponse(forgotten=forgotten)

    async def GetStatistics(
        self, request: pb.GetStatisticsRequest, context: Any
    ) -> pb.GetStatisticsResponse:
        """Return the statistics of one model or of all."""
        models = [request.model] if request.model else self._predictor.models
        known = [self._statistics(model) for model in models if model in self._predictor.models]
        return pb.GetStatisticsResponse(models=known)

    def _statistics(self, model: str) -> pb.ModelStatistics:
        parts = self._predictor.components
        return pb.ModelStatistics(
            model=model,
            sources=[stats_to_wire(*each) for each in parts.stats.by_source(model)],
            observed=parts.stats.observed(model),
            cache_entries=len(parts.cache.of[model]),
            cache_bytes=parts.cache.of[model].size_bytes,
            class_edges_tokens=parts.lengths.classes(model).edges_tokens,
        )
