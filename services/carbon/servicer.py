"""CarbonService: conversion between messages and the grid's state."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceServicer
from services.carbon.adapters.convert import (
    duration_from_wire,
    intensity_to_wire,
    time_from_wire,
)
from services.carbon.core.model import Intensity
from services.carbon.runtime.grid_state import GridState, check_horizon
from services.kit.clock import Clock
from services.kit.rpc.record_mapping import to_message

DEFAULT_HORIZON = timedelta(hours=24)


class CarbonServicer(CarbonServiceServicer):
    """Serves the grid's state; the guard interceptor maps its errors.

    Args:
        state: The grid's state.
        grid_clock: Grid time.
    """

    def __init__(self, state: GridState, grid_clock: Clock) -> None:
        self._state = state
        self._clock = grid_clock

    async def ListZones(self, request: pb.ListZonesRequest, context: Any) -> pb.ListZonesResponse:
        """Return the zones that are followed."""
        return pb.ListZonesResponse(zones=self._state.zones)

    async def GetIntensity(
        self, request: pb.GetIntensityRequest, context: Any
    ) -> pb.GetIntensityResponse:
        """Return the intensity now in force in one zone."""
        intensity = self._state.intensity(request.zone)
        return pb.GetIntensityResponse(intensity=intensity_to_wire(intensity, self._clock.now()))

    async def GetHistory(
        self, request: pb.GetHistoryRequest, context: Any
    ) -> pb.GetHistoryResponse:
        """Return the past intensities of one zone."""
        now = self._clock.now()
        start, end = time_from_wire(request, "start"), time_from_wire(request, "end")
        past = self._state.history(request.zone, start, end or now)
        return pb.GetHistoryResponse(
            intensities=[intensity_to_wire(intensity, now) for intensity in past]
        )

    async def GetForecast(
        self, request: pb.GetForecastRequest, context: Any
    ) -> pb.GetForecastResponse:
        """Return the forecast of one zone."""
        given = duration_from_wire(request, "horizon")
        horizon = DEFAULT_HORIZON if given is None else given
        forecast = self._state.forecast(request.zone, horizon, self._clock.now())
        return pb.GetForecastResponse(forecast=to_message(forecast, pb.Forecast))

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        """Send a snapshot, then each change until the service drains."""
        snapshot, horizon = True, duration_from_wire(request, "horizon")
        if horizon is not None:
            check_horizon(horizon)
        async for changed in self._state.watch(request.zones):
            intensities = [self._to_wire(intensity, horizon) for intensity in changed]
            yield pb.WatchResponse(snapshot=snapshot, intensities=intensities)
            snapshot = False

    def _to_wire(self, intensity: Intensity, horizon: timedelta | None) -> pb.Intensity:
        now = self._clock.now()
        if horizon is None or intensity.signal == "percentile":
            return intensity_to_wire(intensity, now)
        forecast = self._state.forecast(intensity.zone, horizon, now)
        return intensity_to_wire(intensity, now, forecast)
