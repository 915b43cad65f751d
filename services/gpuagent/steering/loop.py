"""Steers clocks of servers that stay others': those that the deployment file names, no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.gpuagent.clock_loop.core.decide import GovernedSegment
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.observer import SCRAPE_S, ObservedGpu, ObservedServer, Observer
from services.gpuagent.steering.core.steered_gpu import SteeredGpu
from services.kit.clock import Clock
from services.kit.config import SteeredServer
from services.kit.errors import ServiceError
from services.kit.hardware.gpu_types import curve_of
from services.kit.profiles.core.language import LanguageProfile
from services.kit.server_metrics.figures import Histogram
from services.kit.telemetry import logs

_log = logs.get("steering")

_STALE: Final = 3
"""Looks without a new page after which a server's GPU has its own clock again."""

_TOKENS: Final = LanguageProfile.of(1.0).settings.decode_sensitivity
_QUANTITIES: Final = (("ttft_s", "first_token"), ("tpot_s", "token"), ("latency_s", "latency"))


@dataclass(slots=True)
class _Seen:
    """Pages of a server. Attributes: observed_s at the last look, looks without a new page."""

    observed_s: float = -1.0
    missed: int = 0


@dataclass(slots=True)
class ClockSteering:
    """Lowers clocks of GPUs whose every process is of a named server.

    Attributes:
        observer: Sees GPUs, processes and servers.
        clocks: Holds clocks, and gives them back.
        servers: The named servers.
        floor: Least clock over a GPU's highest.
        clock: Time.
        gpus: Of each GPU its state, by UUID.
    """

    observer: Observer
    clocks: ClockLocks
    servers: Sequence[SteeredServer]
    floor: float
    clock: Clock
    gpus: dict[str, SteeredGpu] = field(default_factory=dict)
    _pages: dict[tuple[str, str], _Seen] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Steer until cancelled; the agent's end gives the clocks back."""
        while True:
            await self.look()
            await self.clock.sleep(SCRAPE_S)

    async def look(self) -> None:
        """Look at every GPU once, and set the clock that its servers tolerate."""
        fresh = {
            (url, model)
            for url, server in self.observer.servers.items()
            for model, account in server.accounts.items()
            if self._is_fresh(url, model, account)
        }
        for uuid, gpu in self.observer.gpus.items():
            model = gpu.info.model
            if uuid not in self.gpus:
                curve = curve_of(model.performance)
                self.gpus[uuid] = SteeredGpu(model.clocks_mhz, self.floor, curve)
            totals = dict(self._totals(gpu, fresh))
            ceiling_mhz = self.clocks.ceiling_mhz(uuid)
            held_mhz = self.clocks.state.held_mhz.get(uuid, 0)
            clock_mhz = self.gpus[uuid].look(self.clock.monotonic(), ceiling_mhz, totals)
            try:
                await self.clocks.lower(uuid, clock_mhz, held_mhz)
                self._refused.discard(uuid)
            except ServiceError as error:
                if uuid not in self._refused:
                    _log.warning("clock does not follow", gpu=uuid, error=error.message)
                self._refused.add(uuid)
        self.observer.lowered = frozenset(
            uuid for uuid in self.observer.gpus if self.clocks.in_force_mhz(uuid)
        )

    def _is_fresh(self, url: str, model: str, account: ServerAccount) -> bool:
        seen = self._pages.setdefault((url, model), _Seen())
        seen.missed = 0 if account.observed_s != seen.observed_s else seen.missed + 1
        seen.observed_s = account.observed_s
        return seen.missed < _STALE and account.observed_s > 0

    def _totals(
        self, gpu: ObservedGpu, fresh: set[tuple[str, str]]
    ) -> Iterator[tuple[GovernedSegment, Histogram]]:
        """Yield the objectives on a GPU; none where others use it, too, or a server is silent."""
        found: list[tuple[GovernedSegment, Histogram]] = []
        steered: set[str] = set()
        for server in self.observer.servers.values():
            if not server.workload or server.workload not in gpu.present:
                continue
            for model, account in server.accounts.items():
                objective = self._objective(server, model)
                own = list(_objectives(server.url, account, objective)) if objective else []
                if not own or (server.url, model) not in fresh:
                    return  # a model of the same server without an objective is as a stranger
                found += own
                steered.add(server.workload)
        if gpu.present and gpu.present <= steered:
            yield from found

    def _objective(self, server: ObservedServer, model: str) -> SteeredServer | None:
        workload = self.observer.workloads.get(server.workload)
        name = model or (workload.model if workload else "")
        return next((each for each in self.servers if each.model == name), None)


def _objectives(
    url: str, account: ServerAccount, server: SteeredServer
) -> Iterator[tuple[GovernedSegment, Histogram]]:
    """Yield the objectives of a server that it counts; none, where one of them is not counted."""
    has_tokens = "answer_tokens" in account.counts
    found = []
    for setting, quantity in _QUANTITIES:
        objective_s = getattr(server, setting)
        if objective_s is None:
            continue
        if quantity not in account.times:
            return
        segment = GovernedSegment(
            f"{url} {setting}",
            server.model,
            server.percentile,
            objective_s,
            _TOKENS if has_tokens and quantity == "token" else 1.0,
        )
        found.append((segment, account.times[quantity]))
    yield from found
