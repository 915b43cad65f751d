"""Client of the carbon service; the last values hold while it is away."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from cinquefoil.carbon.v1 import carbon_pb2
from services.kit.clock import Clock
from services.kit.config import Horizon
from services.kit.rpc.intensity_figures import implausible
from services.kit.rpc.reconnect import Reconnector
from services.kit.segment import plain
from services.kit.telemetry import logs
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.forecast import forecast_periods

if TYPE_CHECKING:
    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub

_log = logs.get("carbon")


async def follow(
    carbon: CarbonServiceAsyncStub,
    zones: frozenset[str],
    horizon: Horizon,
    state: ClusterState,
    clock: Clock,
) -> NoReturn:
    """Pass every new intensity to `state`, preceded by its forecast, for ever.

    Forecasts are in grid time, which under replay runs faster than `clock`.

    Args:
        carbon: Stub of the carbon service.
        zones: Zones of the deployment's nodes.
        horizon: Length and step of the forecast; length 0: no forecast.
        state: State of the cluster.
        clock: Source of time for the wait before another attempt.
    """
    connection = Reconnector("carbon", clock)
    forecasts: dict[str, tuple[forecast_periods.Step, ...]] = {}

    async def watch() -> None:
        try:
            async for response in carbon.Watch(
                _request(zones, max(horizon.length_s, state.grid.length_s))
            ):
                connection.connected()
                hear(response)
        finally:
            state.lose_carbon()

    def hear(response: carbon_pb2.WatchResponse) -> None:
        intensities = [each for each in response.intensities if _is_plausible(each, zones)]
        forecasts.update(_forecasts(intensities))
        if intensities:
            grid_s = max(
                (each.since.ToNanoseconds() + each.staleness.ToNanoseconds()) / 1e9
                for each in intensities
            )
            state.grid.hear(grid_s, clock.monotonic())
            state.grid.steps.update(forecasts)
        if forecasts.keys() == zones:
            state.update_forecast(forecast_periods.periods(forecasts, horizon))
        state.update_intensity(
            {each.zone: each.intensity_gco2e_per_kwh for each in intensities},
            {each.zone: each.staleness.ToNanoseconds() / 1e9 for each in intensities},
            {each.zone: _provenance(each) for each in intensities},
        )

    await connection.run(watch)


def _request(zones: frozenset[str], length_s: float) -> carbon_pb2.WatchRequest:
    request = carbon_pb2.WatchRequest(zones=sorted(zones))
    if length_s:
        request.horizon.FromTimedelta(timedelta(seconds=length_s))
    return request


def _is_plausible(entry: carbon_pb2.Intensity, zones: frozenset[str]) -> bool:
    """Return whether an intensity is of one of these zones, and can be."""
    fault = implausible(entry)
    if fault:
        _log.warning("impossible intensity left out", zone=plain(entry.zone), fault=fault)
    return not fault and entry.zone in zones


def _provenance(intensity: carbon_pb2.Intensity) -> str:
    name = carbon_pb2.Provenance.Name(intensity.provenance)
    return name.removeprefix("PROVENANCE_").lower()


def _forecasts(
    intensities: Iterable[carbon_pb2.Intensity],
) -> dict[str, tuple[forecast_periods.Step, ...]]:
    return {
        each.zone: tuple(
            forecast_periods.Step(
                period.since.ToNanoseconds() / 1e9, period.intensity_gco2e_per_kwh
            )
            for period in each.forecast.periods
        )
        for each in intensities
        if each.forecast.periods
    }
