"""RegionService: peer regions, and operators who look at them."""

from typing import Any

from cinquefoil.regions.v1 import regions_pb2 as pb
from cinquefoil.regions.v1.regions_pb2_grpc import RegionServiceServicer
from services.kit.errors import FailedPrecondition
from services.kit.rpc import caller
from services.kit.telemetry import logs
from services.planner.control.regions import Regions
from services.planner.servicer import PlannerServicer

REGION_SERVICE = pb.DESCRIPTOR.services_by_name["RegionService"].full_name

_log = logs.get("regions")


class RegionServicer(RegionServiceServicer):
    """Answers peers and operators.

    Args:
        leading: Knows the objects of the planner, where it leads.
    """

    def __init__(self, leading: PlannerServicer) -> None:
        self._leading = leading

    @property
    def _regions(self) -> Regions:
        """The exchange of the leading planner.

        Raises:
            FailedPrecondition: There is one region.
            Unavailable: This planner does not lead.
        """
        found = self._leading.led.regions
        if found is None:
            raise FailedPrecondition(
                "this deployment has one region; `regions` in its file names it and its peers, and "
                "`cinquefoil config schema` has the settings"
            )
        return found

    async def Exchange(self, request: pb.ExchangeRequest, context: Any) -> pb.ExchangeResponse:
        """Answer a peer's exchange."""
        return self._regions.answer(request, caller())

    async def ListRegions(
        self, request: pb.ListRegionsRequest, context: Any
    ) -> pb.ListRegionsResponse:
        """Return all regions."""
        return self._regions.listed()

    async def DrainRegion(
        self, request: pb.DrainRegionRequest, context: Any
    ) -> pb.DrainRegionResponse:
        """End or resume grants."""
        self._regions.exchange.draining = not request.resume
        _log.info("grants to other regions", resume=request.resume, principal=caller().name)
        return pb.DrainRegionResponse()
