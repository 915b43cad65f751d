"""The device while it works for several requests at a time, each of which comes and goes alone.

What the counters call a batch is here a stretch of decoding, from one change of the requests to
the next, or a second of it. Text comes at the pace of the real hardware, on a simulated device too,
which then only says what power that takes: no profile knows how long an answer will be.
"""

from dataclasses import dataclass, replace
from typing import Final

from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.shared_memory.group_counters import Counters
from services.gpuagent.worker.core.tokens import Shares
from services.gpuagent.worker.generative.server_load import ServerLoad
from services.gpuagent.worker.gpu_slot import Batch, Ran, WorkerDevice
from services.kit.clock import Clock
from services.kit.profiles.core.profile import BatchCost

_STRETCH_S: Final = 1.0
_DEAD_S: Final = 10.0  # a worker that dies within a stretch is charged for so long of it at most


@dataclass(frozen=True, slots=True, eq=False)
class Stay:
    """A request's time on the device. Attributes: started_s."""

    started_s: float


class SharedDevice(WorkerDevice):
    """The device as one worker process sees it that decodes several requests at a time."""

    def __init__(self, spec: WorkerSpec, counters: Counters, clock: Clock) -> None:
        super().__init__(spec, counters, clock)
        self._shares = Shares()
        self._since_s = 0.0
        self._power_w = 0.0
        self._method = ""

    def begin(self) -> Stay:
        """Begin a request on a slot; the idle energy before is charged to the first."""
        now_s = self._clock.monotonic()
        stay, idle_s = Stay(now_s), 0.0
        if self._shares:
            self._end_stretch(now_s)
        else:
            idle_s = max(now_s - self._slot.idle_since_s, 0.0)
        self._shares.join(stay, self._idle_power_w * idle_s)
        self._begin_stretch(now_s)
        return stay

    def count(self, stay: Stay, tokens: int) -> None:
        """Count tokens of a request, of its prompt or of its answer."""
        self._shares.count(stay, tokens)
        now_s = self._clock.monotonic()
        if now_s - self._since_s >= _STRETCH_S:
            self._end_stretch(now_s)
            self._begin_stretch(now_s)

    def end(self, stay: Stay) -> Ran[None]:
        """End a request on its slot; return its cost."""
        now_s = self._clock.monotonic()
        self._end_stretch(now_s, requests=1)
        spent = self._shares.leave(stay)
        if self._shares:
            self._begin_stretch(now_s)
        took_s = now_s - stay.started_s
        return Ran(None, stay.started_s, took_s, spent.active_j, spent.idle_j, self._method)

    def note_server_load(self, load: ServerLoad) -> None:
        """Show the load of the server that generates the text."""
        self._write(
            replace(
                self._slot,
                server_waiting=load.waiting,
                server_kv_cache_ratio=load.kv_cache_ratio,
            )
        )

    @property
    def _idle_power_w(self) -> float:
        return self._counters.grant(self._spec.slot).idle_power_w

    def _begin_stretch(self, now_s: float) -> None:
        decoded = len(self._shares)
        profiled = self._profiled(Batch(decoded, decoded, now_s))
        grant = self._counters.grant(self._spec.slot)
        self._power_w, self._method = grant.busy_power_w, grant.method
        if profiled is not None:
            self._power_w, self._method = self._tariff(profiled, grant)
        self._since_s = now_s
        charged = profiled is not None and self._spec.charged
        self._begin(BatchCost(_DEAD_S, self._power_w * _DEAD_S) if charged else None, now_s)

    def _end_stretch(self, now_s: float, requests: int = 0) -> None:
        length_s = max(now_s - self._since_s, 0.0)
        energy_j = self._power_w * length_s
        self._shares.spend(energy_j, self._idle_power_w * length_s)
        self._write(self._slot.ended(now_s, energy_j, requests))
