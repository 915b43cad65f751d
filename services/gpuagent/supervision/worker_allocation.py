"""Each worker's address, ledger slot and files: chosen once, kept over restarts of the agent."""

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cinquefoil.gpuagent.v1.records import SegmentSpec
from services.gpuagent.core import worker_spec
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.core.worker_slot import Grant
from services.gpuagent.core.worker_spec import WorkerEnvironment, WorkerSpec
from services.gpuagent.shared_memory.group_counters import Counters, counters_of
from services.gpuagent.shared_memory.shared_counters import SLOTS, SharedCounters
from services.kit.errors import ResourceExhausted
from services.kit.net import address_of, free_port
from services.kit.segment import gpus_of

Used = AbstractSet[tuple[str, int]]
"""Slots in use: (GPU, slot)."""

_UNREADABLE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class WorkerAllocation:
    """One worker's. Attributes: spec, path (of the spec file), kept (from an earlier agent)."""

    spec: WorkerSpec
    path: Path
    kept: bool


@dataclass(slots=True, eq=False)
class WorkerAllocator:
    """Gives workers their places.

    Attributes:
        folder: Of spec files and logs; absolute.
        host: Address they bind.
        environment: What all of them run with.
        gpu_counters: By GPU.
    """

    folder: Path
    host: str
    environment: WorkerEnvironment
    gpu_counters: Mapping[str, SharedCounters]
    _next_slot: dict[str, int] = field(init=False)
    _recent_ports: deque[int] = field(default_factory=lambda: deque(maxlen=256))

    def __post_init__(self) -> None:
        self._next_slot = dict.fromkeys(self.gpu_counters, 0)

    def of(self, config: WorkerConfig, used: Used) -> tuple[WorkerAllocation, ...]:
        """Return the places of a segment's workers: those that it had before, where it had any.

        Args:
            config: What runs.
            used: Slots that are taken.

        Raises:
            ResourceExhausted: The GPU's ledger has too few free slots.
        """
        numbers = range(config.spec.processes)
        paths = [self.folder / f"{config.spec.segment_id}.{number}.json" for number in numbers]
        kept = self._kept(config, paths, used)
        chosen = kept or tuple(self._fresh(config, used))
        siblings = tuple(slot for _, slot in chosen)
        return tuple(
            WorkerAllocation(self._spec(config, listen, slot, siblings), path, kept=bool(kept))
            for path, (listen, slot) in zip(paths, chosen, strict=True)
        )

    def counters(self, spec: SegmentSpec) -> Counters:
        """Return the ledger of a segment's workers: of all its GPUs."""
        return counters_of([self.gpu_counters[uuid] for uuid in gpus_of(spec)])

    def settle(self, used: Used) -> None:
        """Close the accounts of slots that belong to no worker."""
        for gpu_uuid, counters in self.gpu_counters.items():
            for slot in range(SLOTS):
                if (gpu_uuid, slot) not in used:
                    counters.settle(slot)

    def _kept(
        self, config: WorkerConfig, paths: list[Path], used: Used
    ) -> tuple[tuple[str, int], ...]:
        """Return the earlier agent's choice, or () where not all of it can be used."""
        try:
            specs = [worker_spec.load(path) for path in paths]
        except _UNREADABLE:
            return ()
        slots = tuple(spec.slot for spec in specs)
        same = all(
            spec.slice_uuid == config.worker.slice_uuid
            and spec.siblings == slots
            and spec.gpu_uuids in ((), config.worker.gpu_uuids)
            and used.isdisjoint((uuid, spec.slot) for uuid in gpus_of(config.spec))
            for spec in specs
        )
        return tuple((spec.listen, spec.slot) for spec in specs) if same else ()

    def _fresh(self, config: WorkerConfig, used: Used) -> Iterator[tuple[str, int]]:
        uuids = gpus_of(config.spec)
        ledgers, first = [self.gpu_counters[uuid] for uuid in uuids], self._next_slot[uuids[0]]
        # In turn, so that a slot rests long enough for its last figures to be read.
        order = [(first + step) % SLOTS for step in range(SLOTS)]
        free = [
            slot
            for slot in order
            if used.isdisjoint((uuid, slot) for uuid in uuids)
            and not any(ledger.slot(slot).pid for ledger in ledgers)
        ]
        if len(free) < config.spec.processes:
            where = " and ".join(uuids)
            raise ResourceExhausted(f"{where}: {len(free)} free worker slots of {SLOTS}")
        for slot in free[: config.spec.processes]:
            for uuid, ledger in zip(uuids, ledgers, strict=True):
                self._next_slot[uuid] = slot + 1
                # The power of its last holder does not apply to the new one.
                ledger.set_grant(slot, Grant(idle_power_w=config.idle_power_w))
            yield address_of(self.host, self._port()), slot

    def _port(self) -> int:
        """Return a free port that was not given to a worker that has yet to bind it."""
        while (port := free_port(self.host)) in self._recent_ports:
            pass
        self._recent_ports.append(port)
        return port

    def _spec(
        self, config: WorkerConfig, listen: str, slot: int, siblings: tuple[int, ...]
    ) -> WorkerSpec:
        first, *peers = (self.gpu_counters[uuid].path for uuid in gpus_of(config.spec))
        own = {
            "listen": listen,
            "ledger": first,
            "peer_ledgers": tuple(peers),
            "slot": slot,
            "siblings": siblings,
        }
        return config.worker.model_copy(update=dict(self.environment) | own)
