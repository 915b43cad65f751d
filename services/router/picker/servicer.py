"""The endpoint picker: Envoy's external processor, on the router's engine."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, Final

import grpc

from envoy_ext_proc import ext_proc_pb2 as pb
from envoy_ext_proc.ext_proc_pb2_grpc import ExternalProcessorServicer
from services.kit.config import Model
from services.kit.errors import ServiceError, Unavailable
from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import Profile, SliceShape
from services.kit.profiles.factory import clock_sensitivity, load_profile
from services.kit.profiles.servers import shape_of
from services.kit.request_cost import Cost, Usage
from services.router.core.model import Instance
from services.router.core.server_energy import cost_of
from services.router.core.server_pools import ServerPools
from services.router.picker import messages
from services.router.picker.exchange import Exchange
from services.router.picker.parts import PickerParts

EXTERNAL_PROCESSOR: Final = pb.DESCRIPTOR.services_by_name["ExternalProcessor"].full_name


class Profiles:
    """Costs of answers of the pools' servers, by the profiles of their variants."""

    def __init__(self, pools: ServerPools) -> None:
        self._pools = pools
        self._known: dict[tuple[str, str], tuple[Profile, SliceShape]] = {}
        self.expected = lru_cache(1024)(self._expected)

    def use(self, models: Mapping[str, Model]) -> None:
        """Learn the profiles of pools; answers in progress keep those of pools that are gone.

        Reads files: blocks.
        """
        self._known |= {
            (name, pool_name): _profiled(model, pool_name)
            for name, model in models.items()
            for pool_name in model.servers
        }
        self.expected.cache_clear()

    def cost(self, instance: Instance, usage: Usage, held: int, compute_s: float) -> Cost | None:
        """Return the cost of an answer; as of `cost_of`."""
        profile, shape = self._of(instance)
        return cost_of(profile, shape, usage, held, compute_s)

    def _expected(self, instance: Instance, held: int) -> Cost | None:
        profile, shape = self._of(instance)
        usual = Usage(0, 0, 0.0, 0.0)
        if isinstance(profile, LanguageProfile):
            its = profile.settings
            usual = Usage(round(its.prompt_tokens), round(its.answer_tokens), 0.0, 0.0)
        return cost_of(profile, shape, usual, held, 0.0)

    def _of(self, instance: Instance) -> tuple[Profile, SliceShape]:
        return self._known[instance.model, self._pools.pool_name_of(instance)]


def _profiled(model: Model, pool_name: str) -> tuple[Profile, SliceShape]:
    pool = model.servers[pool_name]
    variant = model.variants[pool.variant]
    profile = load_profile(variant.profile, clock_sensitivity(variant), variant.parallel)
    return profile, shape_of(pool, variant.gpus)


def names() -> Iterator[str]:
    """Return names of requests, one after the other, that no client can guess."""
    secret = secrets.token_hex(8)
    return (f"{secret}-{number}" for number in count())


@dataclass(eq=False)
class PickerServicer(ExternalProcessorServicer):
    """Answers Envoy.

    Attributes:
        parts: What all exchanges share.
    """

    parts: PickerParts

    async def Process(  # type: ignore[override]  # it sends with context.write
        self, request_iterator: AsyncIterator[pb.ProcessingRequest], context: Any
    ) -> None:
        """Choose the server of one HTTP request, and see its answer as far as Envoy shows it."""
        if self.parts.engine.closing.is_set():  # the gateway fails open, or has another picker
            raise Unavailable("this router is shutting down", reason="DRAINING")
        exchange = Exchange(self.parts, context.write)
        try:
            async for message in request_iterator:
                try:
                    await exchange.take(message)
                except ServiceError as error:
                    await context.write(messages.refusal(error))
                    return
        finally:
            if exchange.close():
                context.set_code(grpc.StatusCode.OK)
