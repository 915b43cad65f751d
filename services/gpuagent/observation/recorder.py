"""Stores what an observer sees, by five minutes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from services.gpuagent.observation.core.record import STEP_S, GpuRecord, Record, ServerRecord
from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.core.steps import StepSums
from services.gpuagent.observation.history import History
from services.gpuagent.observation.observer import ObservedGpu, Observer
from services.kit.clock import Clock
from services.kit.errors import ServiceError
from services.kit.server_metrics.figures import Histogram
from services.kit.telemetry import logs

_log = logs.get("observer")

MAX_SERVERS: Final = 128
"""Servers' models that a record has."""
_GPU_AMOUNTS: Final = ("observed_s", "energy_j", "idle_j", "carbon_gco2e", "known_j", "busy_s")
_SERVER_AMOUNTS: Final = (
    *("observed_s", "requests", "prompt_tokens", "answer_tokens", "items", "active_j"),
)
_Kept = TypeVar("_Kept", GpuRecord, ServerRecord)


@dataclass(slots=True)
class _Totals:
    """Running totals at the last record, by their owner."""

    gpus: dict[str, GpuRecord] = field(default_factory=dict)
    servers: dict[tuple[str, str], ServerRecord] = field(default_factory=dict)


class Recorder:
    """Stores the steps of an observer's running totals.

    Args:
        observer: The observer.
        history: Where records go.
        clock: Time.
    """

    def __init__(self, observer: Observer, history: History, clock: Clock) -> None:
        self._observer, self._history, self._clock = observer, history, clock
        self._last = _Totals()

    async def run(self) -> None:
        """Store a record at the end of each five minutes, until cancelled, and one then."""
        start_s = self._start_s()
        self.record(start_s)  # what was seen before is of no record
        try:
            while True:
                await self._clock.sleep(start_s + STEP_S - self._clock.now().timestamp())
                await self._store(self.record(start_s))
                start_s = max(self._start_s(), start_s + STEP_S)
        finally:
            await asyncio.shield(self._store(self.record(start_s)))

    def _start_s(self) -> int:
        return int(self._clock.now().timestamp()) // STEP_S * STEP_S

    async def _store(self, record: Record) -> None:
        """Store a record; what cannot be stored is logged."""
        if not record.gpus:
            return
        try:
            if not await asyncio.to_thread(self._history.add, record):
                _log.warning("observations not stored: too many servers", path=self._history.path)
        except ServiceError as error:
            _log.warning("observations not stored", error=error.message)

    def record(self, start_s: int) -> Record:
        """Return what came since the last record."""
        observer, last, now = self._observer, self._last, _Totals()
        gpus, servers = list[GpuRecord](), list[ServerRecord]()
        for uuid, gpu in observer.gpus.items():
            now.gpus[uuid] = total = _gpu(gpu)
            found = _more(total, last.gpus.get(uuid), _GPU_AMOUNTS)
            if found.observed_s > 0:
                gpus.append(found)
        for url, server in observer.servers.items():
            held = tuple(
                uuid
                for uuid, gpu in observer.gpus.items()
                if server.workload and server.workload in gpu.ledger.workloads
            )
            active_j = observer.active_j(server)
            for model, account in server.accounts.items():
                if len(servers) >= MAX_SERVERS:
                    break
                own_j = active_j if len(server.accounts) == 1 else None
                so_far = _server(url, model, account, held, own_j)
                now.servers[url, model] = so_far
                servers.append(_since(so_far, last.servers.get((url, model))))
                account.peak_recorded = 0.0
        self._last = now
        return Record(start_s, tuple(gpus), tuple(each for each in servers if each.observed_s > 0))


def _gpu(gpu: ObservedGpu) -> GpuRecord:
    model, ledger = gpu.info.model, gpu.ledger
    ratio = min(gpu.info.clock_mhz / max(model.max_clock_mhz, 1), 1.0) or 1.0
    return GpuRecord(
        uuid=gpu.info.uuid,
        type=model.name,
        observed_s=ledger.observed_s,
        energy_j=ledger.total_j,
        idle_j=ledger.idle_j,
        carbon_gco2e=ledger.carbon_gco2e,
        known_j=ledger.known_j,
        busy_s=ledger.busy_s,
        clock_ratio=ratio,
        divided=gpu.info.mig_enabled,
    )


def _server(
    url: str, model: str, account: ServerAccount, gpus: tuple[str, ...], active_j: float | None
) -> ServerRecord:
    return ServerRecord(
        url,
        account.server,
        model,
        gpus,
        account.observed_s,
        account.counts.get("requests"),
        account.counts.get("prompt_tokens"),
        account.counts.get("answer_tokens"),
        account.counts.get("items"),
        active_j,
        account.peak_recorded,
        dict(account.times),
        StepSums.of(account.steps.flat),
    )


def _since(total: ServerRecord, before: ServerRecord | None) -> ServerRecord:
    """Return what a server did since its last totals."""
    if before is None:
        return total
    return replace(
        _more(total, before, _SERVER_AMOUNTS),
        times={
            name: each.since(before.times.get(name, Histogram()))
            for name, each in total.times.items()
        },
        steps=total.steps.plus(before.steps, -1.0),
    )


def _more(total: _Kept, before: _Kept | None, amounts: tuple[str, ...]) -> _Kept:
    """Return totals less those before; an amount that is not known of both stays."""
    found: dict[str, Any] = {}
    for name in amounts if before is not None else ():
        now, then = getattr(total, name), getattr(before, name)
        if now is not None and then is not None:
            found[name] = max(now - then, 0.0)
    return replace(total, **found)
