"""KEDA's external scaler: how many servers a model of others should have.

KEDA calls IsActive after each GetMetrics: both are of one computation, which holds for a second,
and all calls at a time share one. KEDA takes an error as "keep what there is", and zero as an
order: without reports there is no number.
Source: KEDA, "External Scalers".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc

from keda import externalscaler_pb2 as pb
from keda.externalscaler_pb2_grpc import ExternalScalerServicer, ExternalScalerStub
from services.kit.errors import InvalidArgument, NotFound, Unavailable
from services.planner.assembly import Planner
from services.planner.core.model import Model
from services.planner.servicer import PlannerServicer

METRIC: Final = "cinquefoil-replicas"
"""Name of the metric; its value is a number of servers, and its target is 1."""

EXTERNAL_SCALER: Final = pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name

_HOLDS_S: Final = 1.0
_LOOK_S: Final = 0.1
_PASSED: Final = ("cinquefoil-passed-on", "1")
_ONCE: Final[Mapping[str, Any]] = {"timeout": 5.0, "metadata": (_PASSED,)}
_PREFIX: Final = re.compile(r"^s\d+-")


class KedaScaler(ExternalScalerServicer):
    """Answers KEDA.

    KEDA keeps one connection, to whichever planner its name led to first: one that does not lead
    passes calls on to the one that does.

    Args:
        leading: Knows the objects of the planner, where it leads.
        others: To the planner that leads; None: there is one planner.
    """

    def __init__(self, leading: PlannerServicer, others: grpc.aio.Channel | None = None) -> None:
        self._leading = leading
        self._leader: Any = None if others is None else ExternalScalerStub(others)
        self._drained = False

    def drain(self) -> None:
        """End every stream."""
        self._drained = True
        if self._leading.planner is not None:
            self._leading.planner.state.changed.notify()

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        """Return whether any server is wanted."""
        if leader := self._passed_to(context):
            passed: pb.IsActiveResponse = await leader.IsActive(request, **_ONCE)
            return passed
        return pb.IsActiveResponse(result=await self._wanted(request) > 0)

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: Any
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """Send whether any server is wanted: now, and at each change."""
        if leader := self._passed_to(context):
            async for each in leader.StreamIsActive(request, metadata=_ONCE["metadata"]):
                yield each
            raise Unavailable("the planner that led has gone", reason="STANDS_BY")
        planner, said = self._planner, None
        while not self._drained:
            seen = planner.state.changed.count
            active = await self._wanted(request, at_once=True) > 0
            if active != said:
                said = active
                yield pb.IsActiveResponse(result=active)
            await planner.state.changed.after(seen, timeout_s=_HOLDS_S)
            await asyncio.sleep(_LOOK_S)  # reports come one after the other

    async def GetMetricSpec(
        self, request: pb.ScaledObjectRef, context: Any
    ) -> pb.GetMetricSpecResponse:
        """Return the one metric."""
        if leader := self._passed_to(context):
            passed: pb.GetMetricSpecResponse = await leader.GetMetricSpec(request, **_ONCE)
            return passed
        self._chosen(request.scalerMetadata)
        spec = pb.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(
        self, request: pb.GetMetricsRequest, context: Any
    ) -> pb.GetMetricsResponse:
        """Return how many servers are wanted."""
        if leader := self._passed_to(context):
            passed: pb.GetMetricsResponse = await leader.GetMetrics(request, **_ONCE)
            return passed
        if _PREFIX.sub("", request.metricName) != METRIC:
            raise NotFound(
                f"no metric {request.metricName!r}; the only one is {METRIC}", field="metricName"
            )
        count = await self._wanted(request.scaledObjectRef)
        value = pb.MetricValue(
            metricName=request.metricName, metricValue=count, metricValueFloat=float(count)
        )
        return pb.GetMetricsResponse(metricValues=[value])

    def _passed_to(self, context: Any) -> Any:
        """Return the leader's stub, for a call that another planner may answer; None: it is ours.

        Where no planner leads, calls come back here: they are passed on once.
        """
        if self._leading.planner is not None or _PASSED in (context.invocation_metadata() or ()):
            return None
        return self._leader

    @property
    def _planner(self) -> Planner:
        planner = self._leading.planner
        if planner is None:
            raise Unavailable("this planner does not lead, or not yet", reason="STANDS_BY")
        return planner

    def _chosen(self, metadata: Mapping[str, str]) -> tuple[Model, str]:
        """Return the model and the pool that a trigger names.

        Raises:
            ServiceError: It names none, or one that is not there.
        """
        models = {each.name: each for each in self._planner.state.models if each.servers}
        known = ", ".join(sorted(models)) or "none: give models.*.servers"
        name, pool = metadata.get("model", ""), metadata.get("pool", "")
        if not name:
            raise InvalidArgument.at("metadata.model", f"required; there are: {known}")
        model = models.get(name)
        if model is None:
            raise NotFound(
                f"no model {name!r} has servers; there are: {known}", field="metadata.model"
            )
        pools = ", ".join(sorted(model.servers))
        if not pool and len(model.servers) > 1:
            raise InvalidArgument.at("metadata.pool", f"required; {name} has {pools}")
        if pool and pool not in model.servers:
            raise NotFound(f"{name} has no pool {pool!r}; it has {pools}", field="metadata.pool")
        return model, pool or pools

    async def _wanted(self, of: pb.ScaledObjectRef, *, at_once: bool = False) -> int:
        """Return how many servers a trigger's pool should have; raises as WantedReplicas."""
        model, pool = self._chosen(of.scalerMetadata)
        return (await self._planner.replicas.of(model, at_once=at_once)).by_pool[pool]
