"""Numbers of others' servers that models should have, for KEDA and for `scale` alike."""

import asyncio
from dataclasses import replace
from typing import Final

from services.kit.errors import Unavailable
from services.planner.adapters.router_sessions import RouterSessions
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.model import Model
from services.planner.core.replicas import Replicas, wanted

_HOLDS_S: Final = 1.0


class WantedReplicas:
    """Numbers of servers by model and pool; each holds for a second.

    Args:
        state: State of the cluster.
        routers: Those that report load.
    """

    def __init__(self, state: ClusterState, routers: RouterSessions) -> None:
        self._state, self._routers = state, routers
        self._known: dict[str, tuple[float, Replicas]] = {}

    async def of(self, model: Model, *, at_once: bool = False) -> Replicas:
        """Return how many servers each pool of a model should have.

        Args:
            model: The model.
            at_once: The number of a moment ago does not do.

        Raises:
            Unavailable: Nothing is known of the load, or of the grid.
        """
        now_s = self._state.clock.monotonic()
        known_s, known = self._known.get(model.name, (-_HOLDS_S, None))
        if known is None or at_once or now_s - known_s >= _HOLDS_S:
            known = await self._computed(model)
            self._known[model.name] = now_s, known
        return known

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
