"""Executes steps: an action or a change, whatever comes of it is an outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.gpuagent.core.model import Action, Outcome, Transaction
from services.gpuagent.core.permissions import ALL_GRANTED, Permissions
from services.gpuagent.reconfigure.transactions import TransactionFailed, Transactions
from services.kit.clock import Clock
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("steps")


@dataclass(frozen=True, slots=True)
class StepExecutor:
    """Changes a node.

    Attributes:
        changes: Carries them out.
        clock: Time.
        changed: Called after each change of the node.
        permissions: Whether the agent may change its node.
    """

    changes: Transactions
    clock: Clock
    changed: Callable[[], None]
    permissions: Permissions = ALL_GRANTED

    async def execute(self, step: Action | Transaction) -> Outcome:
        """Do what a step says; whatever goes wrong is in the outcome."""
        began_s = self.clock.monotonic()
        change = step if isinstance(step, Transaction) else Transaction(((step,),))
        error: ServiceError | None = None
        try:
            self.permissions.require()
            await self.changes.carry_out(change)
        except ServiceError as failure:
            error = failure
        elapsed_s = self.clock.monotonic() - began_s
        _log.info(
            "step", actions=[str(action) for action in change.actions], ok=error is None,
            error=error and error.message, elapsed_s=round(elapsed_s, 3),
        )  # fmt: skip
        self.changed()
        lost = error.not_restored if isinstance(error, TransactionFailed) else ()
        return Outcome(error, elapsed_s, lost)
