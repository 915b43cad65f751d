"""Protocols of the decision cycle's environment.

Two environments exist: the live one (`services.planner.control.live_environment`: asyncio, the
database, agents and routers over gRPC) and virtual time (`services.simulator.planner`). The cycle
consists of coroutines that await only its environment's, so that either can run them.
"""

import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from cinquefoil.planner.v1.records import Plan, PlannedSegment, PlanState
from services.planner.core.decide import Decision, Snapshot
from services.planner.core.fixed_inputs import FixedInputs
from services.planner.core.online_search.profile_corrections import Beliefs
from services.planner.core.placement.actions import Action
from services.planner.core.triggers import Kind, Observation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan that is not stored yet.

    Attributes:
        plan: The plan; its version is 0.
        decision: Decision that it was built from.
        snapshot: Snapshot that the decision was made from.
        seen: Observation that caused it; later observations are compared with it.
    """

    plan: Plan
    decision: Decision
    snapshot: Snapshot
    seen: Observation


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One node's part of a rollout's stage.

    Attributes:
        change_id: Unique over the deployment's life.
        node: Name of the node.
        groups: Actions in order, those of one group at the same time; each with the time for
            accepted requests when its segment stops, s.
        timeout_s: Longest wait for the node's answer, s.
    """

    change_id: str
    node: str
    groups: Sequence[Sequence[tuple[Action, float]]]
    timeout_s: float


class Clock(Protocol):
    """Source of time."""

    def now(self) -> datetime:
        """Return the time of day, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for intervals."""
        ...


class ChangeEvent(Protocol):
    """Wakes tasks that wait for a change of the cluster's state."""

    @property
    def count(self) -> int:
        """Number of changes so far."""
        ...

    def notify(self) -> None:
        """Wake every waiter after a change."""
        ...

    async def after(self, seen: int, timeout_s: float = math.inf) -> None:
        """Wait until there were more than `seen` changes, at most `timeout_s`."""
        ...

    async def until(self, holds: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Wait until `holds()`, at most `timeout_s`; return whether it does."""
        ...


class PlanStore(Protocol):
    """Stores plans, and beliefs from live measurements."""

    async def add(
        self,
        plan: Plan,
        gpus: Mapping[tuple[str, str], str],
        snapshot: Snapshot | None = None,
        *,
        fixed: FixedInputs | None = None,
        pin: str | None = None,
    ) -> Plan:
        """Store a new plan and return it with its version."""
        ...

    async def set_state(self, version: int, state: PlanState, failure: str = "") -> None:
        """Store the state of a plan."""
        ...

    async def plan(self, version: int = 0) -> Plan:
        """Return a plan; version 0: the newest."""
        ...

    async def save_beliefs(self, beliefs: Beliefs) -> None:
        """Store beliefs from live measurements."""
        ...


class Log(Protocol):
    """Takes log lines."""

    def info(self, event: str, **details: Any) -> Any:
        """Log an event."""
        ...

    def warning(self, event: str, **details: Any) -> Any:
        """Log an event that an operator should look at."""
        ...


class Environment(Protocol):
    """Everything that the decision cycle acts through."""

    @property
    def store(self) -> PlanStore:
        """Store of plans and beliefs."""
        ...

    @property
    def log(self) -> Log:
        """Log of the cycle."""
        ...

    @property
    def shares(self) -> Mapping[str, float]:
        """Current share of its model's load of each serving segment, by segment id."""
        ...

    def new_id(self) -> str:
        """Return an unused segment id."""
        ...

    async def think(self, strategy: str, work: Callable[[], T]) -> T:
        """Run a strategy's computation, and return its result.

        Raises:
            ServiceError: Raised by the computation; Unavailable: it crashed.
        """
        ...

    async def together(self, works: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
        """Run coroutines that never raise concurrently; return their results, in order."""
        ...

    async def serve(self, plan_version: int, segments: Iterable[PlannedSegment]) -> int:
        """Route requests to these segments with these shares; return the table's revision."""
        ...

    async def acknowledged(self, revision: int, timeout_s: float) -> bool:
        """Wait until every router uses `revision` or a later one; False: timeout."""
        ...

    async def perform(self, change: NodeChange) -> None:
        """Run a node's part of a stage there.

        Raises:
            ServiceError: It failed, or the node did not answer in time.
        """
        ...

    def announce(self, plan: Plan) -> None:
        """Publish a plan, or its new state, after it was stored."""
        ...

    async def activate(self, version: int) -> None:
        """Make a plan the active one: the account of the previous one ends, its own begins."""
        ...

    def count_decision(self, draft: Draft) -> None:
        """Count a decision."""
        ...

    def count_plan(self, kind: Kind) -> None:
        """Count a plan that is carried out."""
        ...

    def count_resumed(self) -> None:
        """Count a rollout that is resumed after a restart."""
        ...

    def count_evaluation(self) -> None:
        """Count a configuration that was evaluated."""
        ...
