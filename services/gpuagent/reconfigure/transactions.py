"""Carries out transactions, one at a time, each as a whole or not at all, and reports outcomes."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cinquefoil.gpuagent.v1.records import DesiredGpu, StartSegment
from services.gpuagent.core import transaction_rules
from services.gpuagent.core.device_port import ALL_GRANTED, Permissions
from services.gpuagent.core.model import Action, Outcome, Transaction
from services.gpuagent.core.reconcile import gaps, reconcile
from services.gpuagent.core.transaction_rules import PriorState
from services.gpuagent.reconfigure.actions import NO_ANSWER, Actions
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.managed_node import ManagedNode
from services.kit.errors import Cancelled, FailedPrecondition, ServiceError, Unavailable
from services.kit.telemetry import logs

_log = logs.get("transactions")

_UNDO_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Between tries of an action that takes something back."""

_RESUME_S: Final = 30.0
"""Time a segment has to answer that runs again, s; later it may, without a caller waiting."""

Failure = tuple[Action, ServiceError]


class TransactionFailed(ServiceError):
    """A transaction was undone. It carries the status of the action that failed first.

    Attributes:
        not_restored: Changes that could not be undone; empty: the node is as it was before.
    """

    def __init__(self, failures: Sequence[Failure], not_restored: tuple[str, ...]) -> None:
        first = failures[0][1]
        what = "; ".join(f"cannot {action}: {error.message}" for action, error in failures)
        after = f"not restored: {'; '.join(not_restored)}" if not_restored else "all was undone"
        super().__init__(
            f"{what} ({after})",
            reason=first.reason,
            field=first.field,
            retry_after_s=first.retry_after_s,
        )
        self.status = first.status  # type: ignore[misc]  # the cause's, where others have their own
        self.not_restored = not_restored


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """A reconfiguration. Attributes: transaction, gaps (models short of segments), elapsed_s."""

    transaction: Transaction
    gaps: tuple[str, ...]
    elapsed_s: float = 0.0


@dataclass(slots=True, eq=False)
class Transactions:
    """Changes a node: step by step, or to a state that an operator wants.

    A transaction in progress outlives its caller.

    Attributes:
        node: What is changed.
        actions: Carries out the single ones.
        journal: What the transaction in progress touches, as it was: on disk before its first
            action, until it is done, or undone.
        permissions: Whether the agent may change its node.
    """

    node: ManagedNode
    actions: Actions
    journal: Store[PriorState]
    permissions: Permissions = ALL_GRANTED
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def execute(self, step: Action | Transaction) -> Outcome:
        """Execute a step; every error is in the outcome."""
        began_s = self.node.clock.monotonic()
        transaction = step if isinstance(step, Transaction) else Transaction(((step,),))
        error: ServiceError | None = None
        try:
            self.permissions.require()
            await self.carry_out(transaction)
        except ServiceError as failure:
            error = failure
        elapsed_s = self.node.clock.monotonic() - began_s
        _log.info(
            "step", actions=[str(action) for action in transaction.actions], ok=error is None,
            error=error and error.message, elapsed_s=round(elapsed_s, 3),
        )  # fmt: skip
        self.node.changed()
        lost = error.not_restored if isinstance(error, TransactionFailed) else ()
        return Outcome(error, elapsed_s, lost)

    async def apply(
        self, desired: Sequence[DesiredGpu], *, dry_run: bool, allow_gap: bool
    ) -> Reconfigured:
        """Bring GPUs to a desired state, as one transaction.

        Args:
            desired: GPUs that are not among them are left alone.
            dry_run: Return the transaction without carrying it out.
            allow_gap: A model may have fewer segments in between than before and after.

        Raises:
            FailedPrecondition: A model would have a gap; or a step failed, and all was undone.
            ServiceError: It cannot be, or may not.
        """
        node = await self.node.read()
        transaction = reconcile(desired, node)
        missing = gaps(transaction, node)
        if dry_run:
            return Reconfigured(transaction, missing)
        self.permissions.require()
        if missing and not allow_gap:
            raise FailedPrecondition(
                f"there is no room to start first and stop then for {', '.join(missing)}: it would "
                "have fewer segments for a while; say allow_gap if others carry its load",
                reason="CAPACITY_GAP",
            )
        outcome = await self.execute(transaction)
        if outcome.error is not None:
            raise outcome.error
        return Reconfigured(transaction, missing, outcome.elapsed_s)

    async def carry_out(self, transaction: Transaction) -> None:
        """Bring the node to where `transaction` leads; nothing is done where it is there already.

        Where the caller is cancelled, the transaction ends after its present group, and is undone.

        Raises:
            TransactionFailed: An action failed, and what had been done was undone.
            ServiceError: It cannot be; nothing was done.
        """
        gone = asyncio.Event()
        work = _tried(self._transact(transaction, gone))
        task = self.node.tasks.create_task(work, name="transaction")
        try:
            error = await asyncio.shield(task)
        except asyncio.CancelledError:
            gone.set()
            raise
        if error is not None:
            raise error

    async def repair(self) -> tuple[str, ...]:
        """Undo the transaction that an agent before this one ended in.

        Returns:
            What could not be brought back. It is not tried again: what is there then, is.

        Raises:
            FailedPrecondition: The journal is damaged.
        """
        async with self._turn:
            then = await asyncio.to_thread(self.journal.load)
            if then is None:
                return ()
            lost = await self._back(then)
            _log.warning("undid a transaction that a crash cut short", not_restored=lost)
            await asyncio.to_thread(self.journal.clear)
            return lost

    async def _transact(self, transaction: Transaction, gone: asyncio.Event) -> None:
        async with self._turn:
            if gone.is_set():
                return
            node = await self.node.read()
            transaction_rules.check(transaction, node)
            for action in transaction.actions:
                self.actions.check(action)
            rest = transaction_rules.outstanding(transaction, node)
            if not rest.groups:
                return
            then = transaction_rules.before(rest, node)
            try:
                await asyncio.to_thread(self.journal.save, then)
            except Unavailable as error:  # disk full: no change is made
                raise error.because("; nothing was changed") from error
            failures = await self._forward(rest, gone)
            lost = await self._back(then) if failures else ()
            if not lost:
                await asyncio.to_thread(self.journal.clear)
            if failures:
                raise TransactionFailed(failures, lost)

    async def _forward(self, transaction: Transaction, gone: asyncio.Event) -> list[Failure]:
        """Carry out group after group; stop after the first with a failure, and return it."""
        for group in transaction.groups:
            if gone.is_set():
                return [(group[0], Cancelled("the caller has gone"))]
            failures = await self._at_once(group)
            if failures:
                return failures
        return []

    async def _back(self, then: PriorState) -> tuple[str, ...]:
        """Undo as many actions as possible; return those that could not be undone."""
        lost: list[str] = []
        for group in transaction_rules.undo(then).groups:
            async with asyncio.TaskGroup() as tasks:
                undoing = [
                    tasks.create_task(self._insist(action), name=f"undo: {action}")
                    for action in group
                ]
            lost.extend(problem for task in undoing if (problem := task.result()))
        return tuple(lost)

    async def _at_once(self, group: Sequence[Action]) -> list[Failure]:
        """Carry out actions at the same time; all have ended when it returns."""
        async with asyncio.TaskGroup() as tasks:
            doing = [
                (action, tasks.create_task(_tried(self.actions.do(action)), name=str(action)))
                for action in group
            ]
        return [(action, error) for action, task in doing if (error := task.result())]

    async def _insist(self, action: Action) -> str:
        """Take an action back, trying again for a while; return why it could not be, or ""."""
        error: ServiceError | None = None
        for pause_s in (0.0, *_UNDO_PAUSES_S):
            await self.node.clock.sleep(pause_s)
            if isinstance(action, StartSegment):
                error = await _tried(self.actions.resume(action.spec, _RESUME_S))
            else:
                error = await _tried(self.actions.do(action))
            if error is None:
                return ""
            _log.warning("cannot undo", action=str(action), error=error.message)
            if error.reason == NO_ANSWER:
                break
        return f"cannot {action}: {error.message}" if error else ""


async def _tried(work: Awaitable[None]) -> ServiceError | None:
    """Return the error rather than raise it, as concurrent actions must end by themselves."""
    try:
        await work
    except ServiceError as error:
        return error
    except OSError as error:  # the journal cannot be written
        return Unavailable(str(error))
    return None
