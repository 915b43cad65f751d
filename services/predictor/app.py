"""Wiring and lifetimes of the predictor service."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

from cinquefoil.predictor.v1.predictor_pb2 import DESCRIPTOR
from cinquefoil.predictor.v1.predictor_pb2_grpc import add_PredictorServiceServicer_to_server
from services.kit.clock import Clock, RealClock
from services.kit.config import (
    Deployment,
    Model,
    Predictor,
    PromptCache,
    TextRuntime,
)
from services.kit.config.loader import ConfigError, Mistake, config_path
from services.kit.errors import FailedPrecondition, Unavailable
from services.kit.process import metrics, systemd
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, Limits, serving
from services.kit.telemetry import logs
from services.predictor.adapters.cache_store import CacheStore
from services.predictor.adapters.prometheus import PredictorCollector
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.estimate import AnswerLimits
from services.predictor.core.prediction_stats import PredictionStats
from services.predictor.embedding.minilm import NAME, SIZE, MiniLm
from services.predictor.runtime.bounded_executor import BoundedExecutor
from services.predictor.runtime.length_models import LengthModels
from services.predictor.runtime.persistence import Persistence
from services.predictor.runtime.predictor import Components, LengthPredictor
from services.predictor.servicer import PredictorServicer

_log = logs.get("predictor")

_SERVICE: Final = DESCRIPTOR.services_by_name["PredictorService"].full_name
_USED: Final = ("predictor*", "models.*", "tls*", "access*")
_UNUSED: Final = tuple(
    f"models.*.{each}"
    for each in ("slo.*", "demand*", "variants.*.accuracy", "variants.*.profile*")
)
_GRACE_S: Final = 1.0
"""Predictions take milliseconds, and open streams would hold up the drain."""
_MAX_MESSAGE_BYTES: Final = 16 * 2**20


async def run(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    *,
    reloads: Reloads | None = None,
) -> None:
    """Predict the lengths of the deployment's models' answers until `stop` is set, then drain.

    Args:
        deployment: The deployment file.
        stop: Ends the service when set.
        started: Called with the port once the service listens.
        reloads: Learns which settings need a restart.

    Raises:
        ConfigError: The deployment has no predictor, or its model cannot be read.
        FailedPrecondition: Another process has locked the cache's file.
    """
    settings = deployment.predictor
    if settings is None:
        missing = Mistake("predictor", 0, "required by this service, but missing")
        raise ConfigError(config_path(), [missing])
    if reloads is not None:
        reloads.serve(_USED, _UNUSED)
    tls, access = deployment.identity("predictor"), Access.of(deployment)
    health = HealthServicer(systemd.ready)
    models, clock, stats = tuple(deployment.models), RealClock(), PredictionStats()
    cache = SemanticCache(models, settings.cache, SIZE)
    lengths = await asyncio.to_thread(_length_models, settings, models)
    embedder = await asyncio.to_thread(MiniLm)
    async with (
        _persistence(settings.cache, cache, lengths, clock) as (persistence, secret),
        BoundedExecutor(settings.threads, settings.max_waiting) as executor,
        asyncio.TaskGroup() as tasks,
    ):
        parts = Components(cache, embedder.embed, lengths, executor, stats, clock)
        limits = {name: answer_limits(model) for name, model in deployment.models.items()}
        predictor = LengthPredictor(limits, parts, secret, settings.max_prompt_kib * 1024)
        servicer = PredictorServicer(predictor, persistence)
        saving = tasks.create_task(persistence.run(), name="predictor.save")
        async with (
            metrics.exposed(
                settings.metrics,
                [PredictorCollector(cache, stats)],
                service="predictor",
                tls=tls,
                access=access,
                ready=lambda: health.ready,
            ),
            serving(
                settings.listen,
                lambda server: add_PredictorServiceServicer_to_server(servicer, server),
                (_SERVICE,),
                tls=tls,
                access=access,
                grace_s=_GRACE_S,
                limits=Limits(
                    message_bytes=_MAX_MESSAGE_BYTES, streams=settings.max_connection_requests
                ),
                probes=settings.health,
                health_servicer=health,
            ) as server,
        ):
            if started is not None:
                started(server.port)
            await stop.wait()
        saving.cancel()


@asynccontextmanager
async def _persistence(
    settings: PromptCache, cache: SemanticCache, lengths: LengthModels, clock: Clock
) -> AsyncIterator[tuple[Persistence, bytes]]:
    """Restore what was saved; yield the persistence and the secret of the keys; save at the end."""
    if not settings.persist:
        yield Persistence(cache, lengths, None, clock), secrets.token_bytes(32)
        return
    try:
        store = await asyncio.to_thread(CacheStore.opened, settings.file, NAME)
    except Unavailable as error:  # predictions need no disk
        _log.warning(
            "predictor.cache.file: what is learned ends with this process", cause=error.message
        )
        yield Persistence(cache, lengths, None, clock), secrets.token_bytes(32)
        return
    try:
        await asyncio.to_thread(store.restore, cache)
        lengths.restore(await asyncio.to_thread(store.histories))
        cache.expire(clock.now().timestamp())
        persistence = Persistence(cache, lengths, store, clock)
        yield persistence, store.secret
        await persistence.save()
    finally:
        await asyncio.to_thread(store.close)


def _length_models(settings: Predictor, models: Collection[str]) -> LengthModels:
    try:
        return LengthModels.of(settings.model, models)
    except FailedPrecondition as error:
        raise ConfigError(config_path(), [Mistake("predictor.model", 0, error.message)]) from error


def answer_limits(model: Model) -> AnswerLimits:
    """Return the limits of a model's answers: those of its variant that allows the most.

    Of a model whose server alone knows its context, nothing is known.
    """
    runtimes = [variant.runtime for variant in model.variants.values()]
    found = [
        (each.context_tokens, each.max_tokens or each.context_tokens)
        for each in runtimes
        if isinstance(each, TextRuntime) and each.context_tokens
    ]
    if len(found) < len(runtimes):
        return AnswerLimits()
    contexts, answers = zip(*found, strict=True)
    return AnswerLimits(max(contexts), max(answers))
