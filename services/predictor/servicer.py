"""The predictor service as callers see it: wire <-> foreteller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceServicer
from services.kit.errors import InvalidArgument
from services.predictor.adapters.convert import (
    check_observations,
    count_to_wire,
    foretold_to_wire,
    unused_for_s,
)
from services.predictor.adapters.prometheus import Figures
from services.predictor.runtime.persistence import Keeper
from services.predictor.runtime.predictor import Foreteller

_OPEN_PER_STREAM: Final = 256
"""Requests of one stream that may be open; the next is read when a response has left."""


class PredictorServicer(PredictorServiceServicer):
    """Answers from the foreteller; the guard interceptor maps its errors.

    Args:
        foreteller: Foretells and learns.
        keeper: Makes forgetting last.
        figures: How well that goes.
    """

    def __init__(self, foreteller: Foreteller, keeper: Keeper, figures: Figures) -> None:
        self._foreteller = foreteller
        self._keeper = keeper
        self._figures = figures

    async def Predict(  # type: ignore[override]  # the stub knows generators only; grpc takes both
        self, request_iterator: AsyncIterator[pb.PredictRequest], context: Any
    ) -> None:
        """Answer each request as soon as its answer is there."""
        room, sending, wrong = asyncio.Semaphore(_OPEN_PER_STREAM), asyncio.Lock(), False

        async def answer(request: pb.PredictRequest) -> None:
            foretold = await self._foreteller.foretell(request.model, request.prompt)
            async with sending:
                await context.write(foretold_to_wire(request.id, foretold))
            room.release()

        async with asyncio.TaskGroup() as tasks:
            async for request in request_iterator:
                if wrong := not request.model:
                    break
                await room.acquire()
                tasks.create_task(answer(request), name="predictor.answer")
        if wrong:
            raise InvalidArgument("model: required", field="model")

    async def Observe(self, request: pb.ObserveRequest, context: Any) -> pb.ObserveResponse:
        """Learn true lengths."""
        check_observations(request)
        learned = 0
        for each in request.observations:
            model, tokens = each.model, each.output_tokens
            if each.WhichOneof("of") == "prompt":
                learned += await self._foreteller.observe(model, each.prompt, tokens)
            else:
                learned += self._foreteller.observe_key(model, each.prompt_key, tokens)
        return pb.ObserveResponse(learned=learned)

    async def Forget(self, request: pb.ForgetRequest, context: Any) -> pb.ForgetResponse:
        """Delete what is kept of prompts; from the disk too when this returns."""
        forgotten = self._foreteller.forget(request.model or None, unused_for_s(request))
        await self._keeper.save()
        return pb.ForgetResponse(forgotten=forgotten)

    async def GetStatistics(
        self, request: pb.GetStatisticsRequest, context: Any
    ) -> pb.GetStatisticsResponse:
        """Return what was foretold and how well."""
        models = [request.model] if request.model else self._figures.models
        return pb.GetStatisticsResponse(models=[self._of(m) for m in models if m in self._figures])

    def _of(self, model: str) -> pb.ModelStatistics:
        return pb.ModelStatistics(
            model=model,
            sources=[count_to_wire(*each) for each in self._figures.counts(model)],
            observed=self._figures.observed(model),
            cache_entries=self._figures.cache_entries(model),
            cache_bytes=self._figures.cache_bytes(model),
            class_edges_tokens=self._figures.edges_tokens(model),
        )
