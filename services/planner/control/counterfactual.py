"""Periodic update of BASE's energy per request."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from services.kit.errors import ServiceError
from services.kit.telemetry import logs
from services.planner.core.accounting.baseline import BaselineRates, baseline_rates
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.model import Problem

_log = logs.get("counterfactual")

_EVERY_S: Final = 60.0
_PAUSE: Final = 9.0
"""Pause as a multiple of the time spent, while the nodes of a large fleet join."""


@dataclass(frozen=True, slots=True, eq=False)
class Counterfactual:
    """Solves BASE's problem for the current fleet and demand, periodically.

    Attributes:
        _state: State of the cluster; its settings have BASE's batch sizes.
        _receive: Receives the rates.
    """

    _state: ClusterState
    _receive: Callable[[BaselineRates], None]

    async def keep(self) -> None:
        """Update the rates for ever: when the fleet changes, and every minute."""
        state, clock = self._state, self._state.clock
        seen: frozenset[tuple[str, str]] = frozenset()
        looked_at, due_s = -1, 0.0
        while True:
            count, began_s = state.changed.count, clock.monotonic()
            if looked_at != state.fleet.revision or began_s >= due_s:
                revision, now = state.fleet.revision, state.snapshot({})
                gpus = frozenset((gpu.node, gpu.uuid) for gpu in now.gpus) if now else frozenset()
                looked_at = revision if gpus else -1
                if gpus and (gpus != seen or began_s >= due_s):
                    seen, due_s = gpus, began_s + _EVERY_S
                    await self._find(self._problem())
            await asyncio.sleep(_PAUSE * (clock.monotonic() - began_s))
            await state.changed.after(count, _EVERY_S)

    async def _find(self, problem: Problem) -> None:
        try:
            arriving_rps = self._state.demand.arriving_rps()
            found = await asyncio.to_thread(baseline_rates, problem, arriving_rps)
        except ServiceError as error:
            _log.warning("BASE cannot be computed", why=error.message)
            found = {}
        self._receive(found)

    def _problem(self) -> Problem:
        state = self._state
        demand_rps = state.demand_rps()
        return Problem(
            gpus=state.fleet.gpus(state.intensity_for_plans(), state.clock.monotonic()),
            models=tuple(
                replace(model, demand_rps=demand_rps.get(model.name, 0.0)) for model in state.models
            ),
            catalog=(),
            objective=state.objective,
            batch_sizes=state.settings.batch_sizes,
        )
