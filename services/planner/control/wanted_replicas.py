"""Numbers of others' servers that models should have, for KEDA and for `scale` alike."""

import asyncio
from dataclasses import replace
from typing import Final, NamedTuple

from services.kit.errors import Unavailable
from services.planner.adapters.router_sessions import RouterSessions
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.model import Model
from services.planner.core.replicas import Replicas, wanted

_HOLDS_S: Final = 1.0
_HOLDS_AT_ONCE_S: Final = 0.1


class _Computation(NamedTuple):
    """A computation of a model's servers. Attributes: model, began_s (monotonic), task."""

    model: Model
    began_s: float
    task: asyncio.Task[Replicas]

    def holds(self, model: Model, now_s: float, for_s: float) -> bool:
        """Return whether it is still to be used, so long after its begin; a failure never is."""
        if self.model is not model:
            return False
        if not self.task.done():
            return True
        failed = self.task.cancelled() or self.task.exception() is not None
        return not failed and now_s - self.began_s < for_s


class WantedReplicas:
    """Numbers of servers by model and pool; each holds for a second, and all callers share it.

    Args:
        state: State of the cluster.
        routers: Those that report load.
    """

    def __init__(self, state: ClusterState, routers: RouterSessions) -> None:
        self._state, self._routers = state, routers
        self._known: dict[str, _Computation] = {}

    async def of(self, model: Model, *, at_once: bool = False) -> Replicas:
        """Return how many servers each pool of a model should have.

        Args:
            model: The model.
            at_once: The number of a second ago does not do, that of a tenth of it does.

        Raises:
            Unavailable: Nothing is known of the load, or of the grid.
        """
        now_s = self._state.clock.monotonic()
        known = self._known.get(model.name)
        holds_s = _HOLDS_AT_ONCE_S if at_once else _HOLDS_S
        if known is None or not known.holds(model, now_s, holds_s):
            task = asyncio.create_task(self._computed(model), name=f"planner.scaler[{model.name}]")
            known = self._known[model.name] = _Computation(model, now_s, task)
        return await asyncio.shield(known.task)  # others wait for it, too

    async def _computed(self, model: Model) -> Replicas:
        state = self._state
        if not self._routers.connected:
            raise Unavailable(
                f"no router reports the load of {model.name}: its servers stay as they are",
                reason="NO_LOAD_REPORTS",
            )
        intensity = state.intensity_for_plans()
        if missing := {each.zone for each in model.servers.values()} - intensity.keys():
            raise Unavailable(
                f"the intensity of {', '.join(sorted(missing))} is not known yet",
                reason="ZONE_UNKNOWN",
            )
        burst = state.burstiness.known.get(model.name, model.dispersion)
        return await asyncio.to_thread(
            wanted,
            replace(model, dispersion=burst),
            state.demand_rps()[model.name],
            dict(intensity),
            state.objective,
            state.settings.batch_sizes,
        )
