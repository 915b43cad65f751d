"""The decision cycle in the planner service, with operators' orders, and over restarts."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from cinquefoil.planner.v1.records import Plan, PlanState
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.grouping import grouped
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.adapters.store import Store
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.control.live_environment import LiveEnvironment
from services.planner.control.operator_queue import OperatorQueue
from services.planner.control.publisher import Publisher
from services.planner.core import feasibility
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.cycle import DecisionCycle, Work
from services.planner.core.cycle.environment import Draft
from services.planner.core.decide import Snapshot
from services.planner.core.maintenance import Freeze
from services.planner.core.plan import Pin, ordered_by
from services.planner.core.plan_builder import remembered

_log = logs.get("reconciler")

_LONGEST_FREEZE = timedelta(days=366)
_UNFINISHED = (PlanState.PROPOSED, PlanState.ROLLING)


class Reconciler:
    """Makes plans and carries them out, one at a time.

    Args:
        state: State of the cluster.
        environment: Environment that the cycle acts through.
        account_writer: Account of the fleet.
        publisher: Routing tables and plans for subscribers.

    Attributes:
        cycle: The decision cycle.
        standing: The planner's current standing.
    """

    def __init__(
        self,
        state: ClusterState,
        environment: LiveEnvironment,
        account_writer: AccountingWriter,
        publisher: Publisher,
    ) -> None:
        self._state = state
        self._store: Store = environment.store
        self._account_writer = account_writer
        self._publisher = publisher
        self._orders = OperatorQueue(state.changed)
        self.cycle = DecisionCycle(state, environment, self._orders)
        self.standing = self.cycle.standing
        self._proposing = asyncio.Lock()  # dry runs must not starve plans

    # ---- operators' orders ---------------------------------------------------------------------

    async def freeze(self, freeze: Freeze) -> None:
        """Replace only lost capacity until the freeze ends, also over restarts.

        Raises:
            InvalidArgument: It ends in the past, or in more than a year.
        """
        now = self._state.clock.now()
        if not now < freeze.until <= now + _LONGEST_FREEZE:
            raise InvalidArgument.at(
                "until", f"must be within a year from now, got {freeze.until.isoformat()}"
            )
        await self._orders.give(partial(self._set_freeze, replace(freeze, since=now)))

    async def unfreeze(self) -> None:
        """End a freeze; the planner considers all changes since at once."""
        await self._orders.give(partial(self._set_freeze, None))

    async def propose(
        self, alter: Callable[[Snapshot], Snapshot], limit_s: float = math.inf
    ) -> Draft:
        """Return the decision under other circumstances; nothing is stored or changed.

        Args:
            alter: Returns the snapshot under those circumstances; its errors are passed on.
            limit_s: Limit of the strategy's search, if shorter than the setting, s.

        Raises:
            FailedPrecondition: Nothing can be decided yet.
        """
        planning = self.cycle.planning
        snapshot = alter(planning.snapshot())
        async with self._proposing:
            return await planning.decided("dry run", snapshot, limit_s)

    async def apply(self, plan: Plan, principal: str = "") -> Plan:
        """Carry out the plan of a dry run now; return it, stored and announced.

        Args:
            plan: The plan.
            principal: Identity of the operator; "": identities are not checked.

        Raises:
            InvalidArgument: A number of the plan is invalid.
            FailedPrecondition: A plan is pinned, a freeze is on, or the fleet lacks what this plan
                needs.
        """
        feasibility.check(plan.segments)
        return await self._orders.give(partial(self._apply, plan, principal))

    async def rollback(self, version: int, principal: str = "") -> Plan:
        """Carry out an earlier plan again as a new version, and pin it; arguments as for `pin`.

        Raises:
            NotFound: There is no such plan.
            FailedPrecondition: A freeze is on, or the fleet lacks what it needs; the message says
                what.
        """
        plan = await self._store.plan(version)
        begin = partial(
            self._begin, f"rollback to {version}{ordered_by(principal)}", plan, pin=principal
        )
        return await self._orders.give(begin)

    async def pin(self, version: int | None = None, principal: str = "") -> int:
        """Hold the active plan until `unpin`, also over restarts; return its version.

        Args:
            version: Version that must be active; None: any.
            principal: As for `apply`.

        Raises:
            NotFound: There is no such plan, or none is active.
            FailedPrecondition: It is not the active one.
        """
        plan = await self._store.plan(version or 0)
        return await self._orders.give(
            partial(self._hold, plan.version if version else None, principal)
        )

    async def unpin(self) -> None:
        """Resume automatic planning."""
        await self._orders.give(self._release)

    # ---- life ----------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Restore the state from before a restart, so that subscribers are served at once."""
        standing = self.standing
        found = await self._store.newest_first(1)
        newest = found[0] if found else None
        is_active = newest is not None and newest.state is PlanState.ACTIVE
        standing.active = newest if is_active else await self._store.active()
        standing.pinned = await self._store.pin()
        standing.pinned_at = await self._store.pinned_at()
        standing.freeze = await self._store.freeze()
        self._state.believe(await self._store.beliefs())
        await self._account_writer.restore(standing.active)
        if newest is None:
            return
        gpus, fixed = await self._store.gpus(), await self._store.fixed()
        if newest.state in _UNFINISHED:
            standing.unfinished = newest, remembered(newest, gpus, fixed)
        elif newest.state is PlanState.FAILED:
            standing.failed = newest
        plans = [newest] if is_active or not standing.active else [newest, standing.active]
        await self._publisher.restore(plans)
        planned = grouped((each.node, each.spec.segment_id) for p in plans for each in p.segments)
        now_s = self._state.clock.monotonic()
        self._state.fleet.expect(planned, now_s, self._publisher.routed_before)
        if standing.active is not None:
            demand_rps = standing.active.inputs.demand_rps
            self._state.demand.park(name for name, rps in demand_rps.items() if not rps)
            standing.wanted = remembered(standing.active, gpus, fixed)

    async def run(self) -> None:
        """Run the decision cycle until it is cancelled."""
        try:
            await self.cycle.run()
        finally:
            self._orders.close()

    # ---- orders in their turn ------------------------------------------------------------------

    async def _apply(self, plan: Plan, principal: str) -> tuple[Plan, Work]:
        """Begin the plan of a dry run, unless another plan is pinned."""
        if self.standing.pinned is not None:
            raise FailedPrecondition(
                f"plan {self.standing.pinned.version} is pinned; `cinquefoil plan unpin` first",
                reason="PINNED",
            )
        return await self._begin(f"apply: {plan.reason}{ordered_by(principal)}", plan)

    async def _begin(self, reason: str, plan: Plan, *, pin: str | None = None) -> tuple[Plan, Work]:
        """Store and announce an earlier plan, or a dry run's, as the newest."""
        freeze = self.standing.freeze
        if freeze is not None and self._state.clock.now() < freeze.until:
            raise FailedPrecondition(
                f"frozen until {freeze.until.isoformat(timespec='seconds')}; "
                "`cinquefoil plan unfreeze` first",
                reason="FROZEN",
            )
        planning, lifecycle = self.cycle.planning, self.cycle.lifecycle
        draft = await planning.again(reason, plan, planning.snapshot())
        stored = await lifecycle.publish(draft, pin=pin)
        self.standing.unfinished = None
        prometheus.PLANS.labels("order").inc()
        if pin is not None:
            await self._set_pin(Pin(stored.version, pin))
        return stored, partial(lifecycle.roll_out, stored, draft)

    async def _hold(self, version: int | None, principal: str) -> tuple[int, None]:
        active = self.standing.active
        if active is None:
            raise FailedPrecondition.at("version", "no plan is active yet")
        if version not in (None, active.version):
            raise FailedPrecondition.at(
                "version",
                f"plan {version} is not the active one, which is {active.version}; "
                "roll back to it instead",
            )
        await self._set_pin(Pin(active.version, principal))
        _log.info("pinned", version=active.version, principal=principal)
        return active.version, None

    async def _set_pin(self, pin: Pin | None) -> None:
        at = None if pin is None else self._state.clock.now()
        await self._store.pin.save(pin)
        await self._store.pinned_at.save(at)
        self.standing.pinned, self.standing.pinned_at = pin, at
        self._state.changed.notify()  # subscribers get the conditions

    async def _set_freeze(self, freeze: Freeze | None) -> tuple[None, None]:
        await self._store.freeze.save(freeze)
        self.standing.freeze = freeze
        self._state.changed.notify()
        if freeze is None:
            _log.info("unfrozen")
        else:
            _log.info(
                "frozen",
                until=freeze.until.isoformat(),
                reason=freeze.reason,
                principal=freeze.principal,
            )
        return None, None

    async def _release(self) -> tuple[None, None]:
        await self._set_pin(None)
        _log.info("unpinned")
        return None, None
