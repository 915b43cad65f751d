"""Servers of others in Kubernetes: the planner sets their number (`models.*.servers.*.scale`).

Without reports of load, or an intensity, a number stays as it is; so it does while the API server
is away, or refuses.
"""

from collections.abc import Iterator
from typing import Any, Final

from services.kit.clock import Clock
from services.kit.config.servers import ScaledObject
from services.kit.errors import Unavailable
from services.kit.kubernetes import Cluster, Refused, reconnector
from services.kit.telemetry import logs
from services.planner.control.wanted_replicas import WantedReplicas
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.model import Model

_log = logs.get("kubernetes.scale")

_PATHS: Final = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}/scale",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets/{}/scale",
    "LeaderWorkerSet": (
        "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets/{}/scale"
    ),
    "InferenceService": "/apis/serving.kserve.io/v1beta1/namespaces/{}/inferenceservices/{}",
}
_PREDICTOR: Final = "InferenceService"
"""The kind without the subresource: KServe has bounds of the predictor's number instead."""

_CHECK_S: Final = 15.0
_PAUSE_S: Final = 0.2


class ScaledServers:
    """Keeps the number of servers of each pool with `scale` as wanted.

    Args:
        cluster: The API server.
        state: State of the cluster, with the models.
        replicas: Numbers that are wanted.
        clock: Time.
    """

    def __init__(
        self, cluster: Cluster, state: ClusterState, replicas: WantedReplicas, clock: Clock
    ) -> None:
        self._cluster, self._state, self._replicas = cluster, state, replicas
        self._clock = clock
        self._set: dict[ScaledObject, tuple[int, float]] = {}
        self._refused: dict[ScaledObject, str] = {}

    async def keep(self) -> None:
        """Set numbers at each change, and check them every 15 s, until cancelled."""
        api = reconnector("scale", self._clock)

        async def session() -> None:
            while True:
                seen = self._state.changed.count
                for model, pool, scaled in self._pools():
                    await self._follow(model, pool, scaled)
                api.connected()
                await self._clock.sleep(_PAUSE_S)  # reports come one after the other
                await self._state.changed.after(seen, timeout_s=_CHECK_S)

        await api.run(session)

    def _pools(self) -> Iterator[tuple[Model, str, ScaledObject]]:
        for model in self._state.models:
            for name, pool in model.servers.items():
                if pool.scale is not None:
                    yield model, name, pool.scale

    async def _follow(self, model: Model, pool: str, scaled: ScaledObject) -> None:
        try:
            count = (await self._replicas.of(model)).by_pool[pool]
        except Unavailable:
            return
        known, at_s = self._set.get(scaled, (-1, 0.0))
        now_s = self._clock.monotonic()
        if known == count and now_s - at_s < _CHECK_S:
            return
        try:
            before = await self._scale(scaled, count)
        except Refused as error:
            if self._refused.get(scaled) != str(error):
                _log.warning("servers keep their number", object=scaled.name, why=str(error))
            self._refused[scaled] = str(error)
        else:
            self._refused.pop(scaled, None)
            if before != count:
                _log.info("scaled", model=model.name, pool=pool, before=before, now=count)
        self._set[scaled] = count, now_s

    async def _scale(self, scaled: ScaledObject, count: int) -> int:
        """Set the number of an object, where it differs; return the one that it had."""
        namespace = scaled.namespace or self._cluster.namespace
        path = _PATHS[scaled.kind].format(namespace, scaled.name)
        spec = (await self._cluster.get(path)).get("spec") or {}
        wanted: dict[str, Any] = {"replicas": count}
        if scaled.kind == _PREDICTOR:
            spec = spec.get("predictor") or {}
            wanted = {"minReplicas": count, "maxReplicas": max(count, 1)}
        key = next(iter(wanted))
        before = int(spec.get(key, 1))
        if any(spec.get(name) != value for name, value in wanted.items()):
            body = {"predictor": wanted} if scaled.kind == _PREDICTOR else wanted
            await self._cluster.patch(path, {"spec": body})
        return before
