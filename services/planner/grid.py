"""Follows the carbon service; while it is away the last values stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from cinquefoil.carbon.v1 import carbon_pb2
from services.kit import logs
from services.kit.backoff import Backoff
from services.kit.clock import Clock

if TYPE_CHECKING:
    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub

_log = logs.get("grid")


async def follow(
    carbon: CarbonServiceAsyncStub,
    zones: frozenset[str],
    learn: Callable[[dict[str, float]], None],
    clock: Clock,
) -> None:
    """Hand every new intensity to `learn`, gCO2e/kWh by zone, for ever.

    Args:
        carbon: Stub of the carbon service.
        zones: Zones of the deployment's nodes.
        learn: Called after each change.
        clock: To wait with before dialling again.
    """
    backoff = Backoff()
    while True:
        try:
            async for response in carbon.Watch(carbon_pb2.WatchRequest(zones=sorted(zones))):
                backoff.reset()
                learn({each.zone: each.intensity_gco2e_per_kwh for each in response.intensities})
        except grpc.aio.AioRpcError as error:
            _log.warning("carbon is away", status=error.code().name, error=error.details())
        await clock.sleep(backoff.next_s())
