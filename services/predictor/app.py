"""How the predictor service is wired, and how long each part lives."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

from cinquefoil.predictor.v1.predictor_pb2 import DESCRIPTOR
from cinquefoil.predictor.v1.predictor_pb2_grpc import add_PredictorServiceServicer_to_server
from services.kit.clock import Clock, RealClock
from services.kit.config import Deployment, Predictor, PromptCache
from services.kit.config.loader import ConfigError, Mistake, config_path
from services.kit.errors import FailedPrecondition
from services.kit.rpc import serving
from services.kit.telemetry import metrics
from services.predictor.adapters.cache_store import Store
from services.predictor.adapters.prometheus import Figures, PredictorCollector
from services.predictor.core.cache.semantic_cache import Bounds, SemanticCache
from services.predictor.core.prediction_stats import Tally
from services.predictor.embedding.minilm import NAME, SIZE, MiniLm
from services.predictor.runtime.bounded_executor import Crew
from services.predictor.runtime.length_models import Histories
from services.predictor.runtime.persistence import Keeper
from services.predictor.runtime.predictor import Foreteller, Means
from services.predictor.servicer import PredictorServicer

_SERVICE: Final = DESCRIPTOR.services_by_name["PredictorService"].full_name
_GRACE_S: Final = 1.0
"""Predictions take milliseconds, and streams that stay open would hold up the drain."""
_MAX_MESSAGE_BYTES: Final = 16 * 2**20


async def run(
    deployment: Deployment, stop: asyncio.Event, started: Callable[[int], None] | None = None
) -> None:
    """Foretell the lengths of the deployment's models' answers until `stop` is set, then drain.

    Args:
        deployment: The whole deployment file.
        stop: Ends the service.
        started: Called with the port once the service listens.

    Raises:
        ConfigError: The deployment has no predictor, or its model cannot be read.
        FailedPrecondition: Another process holds the cache's file.
    """
    settings = deployment.predictor
    if settings is None:
        missing = Mistake("predictor", 0, "required by this service, but missing")
        raise ConfigError(config_path(), [missing])
    models, clock, tally = tuple(deployment.models), RealClock(), Tally()
    cache = SemanticCache(models, _bounds(settings.cache), SIZE)
    knowledge = await asyncio.to_thread(_knowledge, settings, models)
    embedder = await asyncio.to_thread(MiniLm)
    figures = Figures(cache, knowledge, tally)
    async with (
        _kept(settings.cache, cache, knowledge, clock) as (keeper, secret),
        Crew(settings.threads, settings.max_waiting) as crew,
    ):
        means = Means(cache, embedder, knowledge, crew, tally, clock)
        foreteller = Foreteller(models, means, secret, settings.max_prompt_kib * 1024)
        servicer = PredictorServicer(foreteller, keeper, figures)
        with metrics.exposed(settings.metrics, [PredictorCollector(figures)]):
            await _serve(deployment, settings, servicer, keeper, stop, started)


async def _serve(  # noqa: PLR0913, PLR0917 - the composition root's parts
    deployment: Deployment,
    settings: Predictor,
    servicer: PredictorServicer,
    keeper: Keeper,
    stop: asyncio.Event,
    started: Callable[[int], None] | None,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keeper.run(), name="predictor.keep")
        async with serving(
            settings.listen,
            lambda server: add_PredictorServiceServicer_to_server(servicer, server),
            (_SERVICE,),
            tls=deployment.tls,
            grace_s=_GRACE_S,
            max_message_bytes=_MAX_MESSAGE_BYTES,
        ) as server:
            if started is not None:
                started(server.port)
            await stop.wait()
        keeping.cancel()


@asynccontextmanager
async def _kept(
    settings: PromptCache, cache: SemanticCache, knowledge: Histories, clock: Clock
) -> AsyncIterator[tuple[Keeper, bytes]]:
    """Yield what keeps the cache over restarts, and the secret of its keys; save at the end."""
    if not settings.persist:
        yield Keeper(cache, knowledge, None, clock), secrets.token_bytes(32)
        return
    store = await asyncio.to_thread(Store.opened, settings.file, NAME)
    try:
        await asyncio.to_thread(store.restore, cache)
        knowledge.restore(await asyncio.to_thread(store.histories))
        cache.expire(clock.now().timestamp())
        keeper = Keeper(cache, knowledge, store, clock)
        yield keeper, store.secret
        await keeper.save()
    finally:
        await asyncio.to_thread(store.close)


def _knowledge(settings: Predictor, models: Collection[str]) -> Histories:
    try:
        return Histories.of(settings.model, models)
    except FailedPrecondition as error:
        raise ConfigError(config_path(), [Mistake("predictor.model", 0, error.message)]) from error


def _bounds(settings: PromptCache) -> Bounds:
    return Bounds(
        entries=settings.max_entries,
        size_bytes=int(settings.max_mib * 2**20),
        unused_s=settings.max_unused_s,
        similarity=settings.similarity,
    )
