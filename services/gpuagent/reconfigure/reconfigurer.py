"""Brings the node to a state that an operator wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.gpuagent.core.model import Transaction
from services.gpuagent.core.reconcile import DesiredGpu, gaps, reconcile
from services.gpuagent.reconfigure.inventory import Inventory
from services.gpuagent.reconfigure.transactions import StepExecutor
from services.kit.errors import FailedPrecondition


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """What was done. Attributes: transaction, gaps (models short of segments), elapsed_s."""

    transaction: Transaction
    gaps: tuple[str, ...]
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reconfigurer:
    """Compares, then changes. Attributes: inventory (reads the node), steps (carry it out)."""

    inventory: Inventory
    steps: StepExecutor

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
        node = await self.inventory.read()
        transaction = reconcile(desired, node)
        missing = gaps(transaction, node)
        if dry_run:
            return Reconfigured(transaction, missing)
        self.steps.permissions.require()
        if missing and not allow_gap:
            raise FailedPrecondition(
                f"there is no room to start first and stop then for {', '.join(missing)}: it would "
                "have fewer segments for a while; say allow_gap if others carry its load",
                reason="CAPACITY_GAP",
            )
        outcome = await self.steps.execute(transaction)
        if outcome.error is not None:
            raise outcome.error
        return Reconfigured(transaction, missing, outcome.elapsed_s)
