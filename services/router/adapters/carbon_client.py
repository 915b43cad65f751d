"""The carbon service's client: carbon intensity by zone."""

import grpc

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.kit.clock import Clock
from services.kit.rpc.intensity_figures import implausible
from services.kit.rpc.reconnect import Reconnector
from services.kit.telemetry import logs

_log = logs.get("carbon")


class CarbonClient:
    """Each zone's newest intensity and ratio; while the service is away, the last ones hold."""

    def __init__(self) -> None:
        self._intensities: dict[str, float] = {}
        self._ratios: dict[str, float] = {}

    def intensity(self, zone: str) -> float | None:
        """Return a zone's carbon intensity, gCO2e/kWh; None: not known."""
        return self._intensities.get(zone)

    def ratio(self, zone: str) -> float | None:
        """Return a zone's intensity over its average (CIR); None: not known."""
        return self._ratios.get(zone)

    async def follow(self, channel: grpc.aio.Channel, clock: Clock) -> None:
        """Follow the intensities until cancelled."""
        carbon = Reconnector("carbon", clock)

        async def session() -> None:
            async for response in CarbonServiceStub(channel).Watch(pb.WatchRequest()):
                carbon.connected()
                for entry in response.intensities:
                    if fault := implausible(entry):
                        _log.warning("impossible intensity left out", zone=entry.zone, fault=fault)
                        continue
                    self._intensities[entry.zone] = entry.intensity_gco2e_per_kwh
                    self._ratios[entry.zone] = entry.ratio

        await carbon.run(session)
