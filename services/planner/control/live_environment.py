"""The live environment of the decision cycle: asyncio, the database, agents and routers."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from services.kit.errors import ServiceError, Unavailable
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.adapters.agent_sessions import AgentSessions
from services.planner.adapters.router_sessions import RouterSessions
from services.planner.adapters.store import Store
from services.planner.adapters.wire.convert_node import step_to
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.control.leading import Leading
from services.planner.control.publisher import Publisher
from services.planner.core.cycle.environment import Draft, NodeChange
from services.planner.core.triggers import Kind

_log = logs.get("cycle")
_tracebacks = logs.Tracebacks()

T = TypeVar("T")


class LiveEnvironment:
    """Environment of the decision cycle in the planner service; see `Environment`."""

    log = _log

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator
        self,
        store: Store,
        account_writer: AccountingWriter,
        publisher: Publisher,
        agents: AgentSessions,
        routers: RouterSessions,
        leading: Leading,
    ) -> None:
        self.store = store
        self.serve, self.announce = publisher.serve, publisher.announce
        self.acknowledged, self.activate = routers.acknowledged, account_writer.activate
        self.count_resumed = prometheus.RESUMED.inc
        self.count_evaluation = prometheus.EVALUATIONS.inc
        self._publisher = publisher
        self._agents = agents
        self._routers = routers
        self._leading = leading

    @property
    def shares(self) -> Mapping[str, float]:
        """Current share of its model's load of each serving segment, by segment id."""
        return self._publisher.shares

    def new_id(self) -> str:
        """Return an unused segment id."""
        return f"s-{uuid.uuid4().hex[:12]}"

    async def think(self, strategy: str, work: Callable[[], T]) -> T:
        """Run a strategy's computation in a thread.

        Raises:
            ServiceError: Raised by the computation; Unavailable: it crashed.
        """
        try:
            return await asyncio.to_thread(work)
        except ServiceError:
            raise
        except Exception as error:
            # Border to the strategies: a crash of one must not take the routes down.
            _log.error("strategy crashed", strategy=strategy, **_tracebacks.details(error))
            raise Unavailable(f"strategy {strategy} crashed: {error}") from error

    async def together(self, works: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
        """Run coroutines concurrently; return their results, in order."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work) for work in works]
        return [task.result() for task in running]

    async def perform(self, change: NodeChange) -> None:
        """Send a node its part of a stage, as one change if it has several actions.

        Nothing is sent while another planner may lead.

        Raises:
            ServiceError: It failed, or the node did not answer in time.
        """
        await self._leading.may_act()
        step = step_to(change, self.store.leadership.lease.term)
        await self._agents.perform(change.node, step, change.timeout_s)

    def count_decision(self, draft: Draft) -> None:
        """Count a decision."""
        solve_s = draft.plan.prediction.solve_s
        prometheus.SOLVE_SECONDS.labels(draft.snapshot.strategy).observe(solve_s)

    def count_plan(self, kind: Kind) -> None:
        """Count a plan that is carried out."""
        prometheus.PLANS.labels(kind.value).inc()
