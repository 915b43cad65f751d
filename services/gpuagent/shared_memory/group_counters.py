"""The ledgers of several GPUs that one worker holds, as one ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from services.gpuagent.core.worker_slot import Grant, Slot
from services.gpuagent.shared_memory.latency_counters import LatencyCounters
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened


class GroupCounters:
    """Ledgers of the GPUs of one worker, whose slot has the same number in each.

    Every GPU is busy while the worker is, and has an equal part of its energy; requests and batches
    are counted once, on the first. What the agent grants is the sum of what it grants on each.

    Args:
        ledgers: Of the segment's first GPU, then of the others.
    """

    def __init__(self, ledgers: Sequence[SharedCounters]) -> None:
        self._first = ledgers[0]
        self._ledgers = tuple(ledgers)

    @property
    def clock_ratio(self) -> float:
        """SM clock over the highest; all GPUs of a segment have one clock."""
        return self._first.clock_ratio

    @property
    def heartbeat_s(self) -> float:
        """The agent's last sign of life, CLOCK_MONOTONIC, s."""
        return self._first.heartbeat_s

    def slot(self, number: int) -> Slot:
        """Return the worker's slot, with its energy on all GPUs."""
        slots = [ledger.slot(number) for ledger in self._ledgers]
        return replace(
            slots[0],
            power_w=sum(slot.power_w for slot in slots),
            batch_energy_j=sum(slot.batch_energy_j for slot in slots),
            active_j=sum(slot.active_j for slot in slots),
            profiled_j=sum(slot.profiled_j for slot in slots),
        )

    def write(self, number: int, slot: Slot) -> None:
        """Replace the worker's slot; counters of each GPU grow by its part.

        Raises:
            InvalidArgument: A name is too long.
        """
        gpus, before = len(self._ledgers), self.slot(number)
        for ledger in self._ledgers:
            own = ledger.slot(number)
            part = replace(
                slot,
                power_w=slot.power_w / gpus,
                batch_energy_j=slot.batch_energy_j / gpus,
                active_j=own.active_j + (slot.active_j - before.active_j) / gpus,
                profiled_j=own.profiled_j + (slot.profiled_j - before.profiled_j) / gpus,
                busy_s=own.busy_s + slot.busy_s - before.busy_s,
            )
            if ledger is not self._first:
                part = replace(
                    part,
                    requests=own.requests,
                    batches=own.batches,
                    compared_s=own.compared_s,
                    profiled_s=own.profiled_s,
                )
            ledger.write(number, part)

    def settle(self, number: int) -> None:
        """Close the account of a dead worker on every GPU."""
        for ledger in self._ledgers:
            ledger.settle(number)

    def grant(self, number: int) -> Grant:
        """Return what the agent granted on all GPUs; power of work once it is known of each."""
        grants = [ledger.grant(number) for ledger in self._ledgers]
        known = all(grant.busy_power_w for grant in grants)
        return Grant(
            sum(grant.busy_power_w for grant in grants) if known else 0.0,
            sum(grant.idle_power_w for grant in grants),
            grants[0].method,
        )

    def latencies(self, number: int) -> LatencyCounters:
        """Return the counts of the worker's latencies."""
        return self._first.latencies(number)

    def busy_among(self, numbers: Iterable[int]) -> int:
        """Return how many of these slots' processes run a batch now."""
        return self._first.busy_among(numbers)


Counters = SharedCounters | GroupCounters
"""The ledger that a worker writes: of its GPU, or of all that it holds."""


def counters_of(ledgers: Sequence[SharedCounters]) -> Counters:
    """Return the ledger of a worker on these GPUs."""
    return ledgers[0] if len(ledgers) == 1 else GroupCounters(ledgers)


@contextmanager
def opened_together(paths: Sequence[Path]) -> Iterator[Counters]:
    """Open the ledgers of a worker's GPUs while the block runs.

    Raises:
        Unavailable: The disk has no room for one.
    """
    with ExitStack() as stack:
        yield counters_of([stack.enter_context(opened(path)) for path in paths])
