"""Nodes of Kubernetes that the plan leaves empty: marked, so that an autoscaler may end them.

Workers are processes of the agent's pod, which a DaemonSet owns: to an autoscaler every machine is
empty. So machines that serve are kept from it, and those that do not are marked.
Sources: Cluster Autoscaler's FAQ ("scale-down-disabled"); Karpenter, "Disruption" (do-not-disrupt).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cinquefoil.planner.v1.records import PlanState
from services.kit.clock import Clock
from services.kit.kubernetes import Cluster, Refused, reconnector
from services.planner.control.publisher import Publisher
from services.planner.core.cycle.cluster_state import ClusterState

MARK: Final = "cinquefoil.io/parked"
KEPT: Final = "cinquefoil.io/kept"
"""Annotation of nodes whose `_KEEPING` is ours, not an operator's."""

_KEEPING: Final = (
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
)
_TAINT: Final = {"key": MARK, "value": "true", "effect": "PreferNoSchedule"}
_ABSENT: Final = 404
_CONFLICT: Final = 409
_ATTEMPTS: Final = 5
"""Times in turn that a change of a node is tried beside others' changes of it; then later."""

_CHECK_S: Final = 30.0


class ParkedNodes:
    """Marks nodes as the active plan has them.

    Args:
        cluster: The API server.
        state: State of the cluster.
        publisher: The active plan.
        clock: Time.
    """

    def __init__(
        self, cluster: Cluster, state: ClusterState, publisher: Publisher, clock: Clock
    ) -> None:
        self._cluster, self._state, self._publisher = cluster, state, publisher
        self._clock = clock
        self._marked: dict[str, bool] = {}

    async def keep(self) -> None:
        """Mark nodes at each change, until cancelled."""
        api = reconnector("nodes", self._clock)

        async def session() -> None:
            while True:
                seen = self._state.changed.count
                for name, parked in self._parked().items():
                    if self._marked.get(name) is not parked:
                        await mark(self._cluster, name, parked=parked)
                        self._marked[name] = parked
                api.connected()
                await self._clock.sleep(1.0)
                await self._state.changed.after(seen, timeout_s=_CHECK_S)

        self._marked.clear()
        await api.run(session)

    def _parked(self) -> dict[str, bool]:
        """Return whether each connected node is empty, by the active plan and by its report."""
        plan, fleet = self._publisher.board.value.plan, self._state.fleet
        for name in self._marked.keys() - {
            each for each in fleet.settings if fleet.connected(each)
        }:
            del self._marked[name]  # its machine may be another one when it comes back
        if plan is None or plan.state is not PlanState.ACTIVE:
            return {}
        empty = set(plan.prediction.empty_nodes)
        return {
            name: name in empty and not report.segments
            for name in fleet.settings
            if fleet.connected(name) and (report := fleet.node(name)) is not None
        }


async def mark(cluster: Cluster, name: str, *, parked: bool) -> None:
    """Mark a node as it should be, beside others who change it.

    Raises:
        Refused: The API server refuses, or others were faster each time.
    """
    path = f"/api/v1/nodes/{name}"
    for attempt in range(_ATTEMPTS):
        try:
            found = await cluster.get(path)
            if body := changes(found, parked=parked):
                version = found["metadata"]["resourceVersion"]
                body["metadata"] = {**body.get("metadata", {}), "resourceVersion": version}
                await cluster.patch(path, body)
        except Refused as error:
            if error.status == _ABSENT:
                return  # a node that is none of Kubernetes
            if error.status != _CONFLICT or attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def changes(node: Mapping[str, Any], *, parked: bool) -> dict[str, Any]:
    """Return what to merge into a node; nothing: it is marked as it should be."""
    metadata, taints = node["metadata"], node.get("spec", {}).get("taints") or []
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    found: dict[str, Any] = {}
    if (labels.get(MARK) == "true") is not parked:
        found["labels"] = {MARK: "true" if parked else None}
    if parked and KEPT in notes:
        found["annotations"] = dict.fromkeys((KEPT, *_KEEPING))
    elif not parked and not all(notes.get(each) == "true" for each in _KEEPING):
        found["annotations"] = {KEPT: "true", **dict.fromkeys(_KEEPING, "true")}
    body: dict[str, Any] = {"metadata": found} if found else {}
    others = [each for each in taints if each.get("key") != MARK]
    if (len(others) < len(taints)) is not parked:
        body["spec"] = {"taints": [*others, _TAINT] if parked else others}
    return body
