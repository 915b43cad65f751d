"""The carbon service, seen from here: what a kWh is worth now, by zone."""

from __future__ import annotations

import grpc

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.kit.clock import Clock
from services.router.adapters.reconnect import Peer


class Grid:
    """Each zone's newest intensity and ratio; while the service is away, the last ones hold."""

    def __init__(self) -> None:
        self._intensities: dict[str, float] = {}
        self._ratios: dict[str, float] = {}

    def intensity(self, zone: str) -> float | None:
        """Return a zone's carbon intensity, gCO2e/kWh, or None where it was never told."""
        return self._intensities.get(zone)

    def ratio(self, zone: str) -> float | None:
        """Return a zone's intensity over its average (CIR), or None where it was never told."""
        return self._ratios.get(zone)

    async def follow(self, channel: grpc.aio.Channel, clock: Clock) -> None:
        """Keep the intensities up to date until cancelled."""
        peer = Peer("carbon", clock)
        while True:
            try:
                async for response in CarbonServiceStub(channel).Watch(pb.WatchRequest()):
                    peer.here()
                    for entry in response.intensities:
                        self._intensities[entry.zone] = entry.intensity_gco2e_per_kwh
                        self._ratios[entry.zone] = entry.ratio
            except grpc.aio.AioRpcError as error:
                peer.lost_call(error)
            await peer.before_retry()
