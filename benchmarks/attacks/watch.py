"""Effects of an attack on others: the honest callers' answers, and the services' memory."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import psutil

from benchmarks.attacks.target import OBJECTIVE_S, Target

_LOOK_S: Final = 0.1
_MIB: Final = 2**20
_WARM_S: Final = 4.0
_CALLERS: Final = ("certificate", "token", "operator")


@dataclass(slots=True)
class Effects:
    """Effects of one attack.

    Attributes:
        calls: Of the honest, by caller.
        good: Of those, answered rightly within the objective.
        faults: Others, by what was wrong.
        growth_mib: Most memory of a service beyond what it had before.
        grew: That service.
        cpu_s: Processor time that the services took.
    """

    calls: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    growth_mib: float = 0.0
    grew: str = ""
    cpu_s: float = 0.0

    @property
    def least_share(self) -> float:
        """Share of good calls of the caller that was hurt most."""
        return min((self.good[each] / self.calls[each] for each in self.calls), default=1.0)

    @property
    def affected(self) -> int:
        """Calls that were not answered rightly in time."""
        return self.calls.total() - self.good.total()


class Watch:
    """Honest callers of a target, and the memory of its services."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._current = Effects()
        self.total = Effects()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the honest callers while the block runs."""
        target = self._target
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.attacks.honest"),
            *(str(target.config), str(target.folder / "models"), target.token),
            stdout=asyncio.subprocess.PIPE,
        )
        reading = asyncio.create_task(self._read(process), name="attacks.honest")
        try:
            async with asyncio.timeout(60):
                while not all(self._current.good[each] for each in _CALLERS):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
            await asyncio.sleep(_WARM_S)  # pools, caches and code are there
            self.total = Effects()
            yield
        finally:
            reading.cancel()
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            caller, found, latency_s = line.decode().split()
            in_time = float(latency_s) <= OBJECTIVE_S
            for each in (self._current, self.total):
                each.calls[caller] += 1
                if found == "answered" and in_time:
                    each.good[caller] += 1
                else:
                    each.faults["late" if found == "answered" else found] += 1

    @asynccontextmanager
    async def row(self) -> AsyncIterator[Effects]:
        """Yield the effects of what the block does."""
        self._current = effects = Effects()
        looking = asyncio.create_task(self._look(effects), name="attacks.memory")
        began_s = self._cpu_s()
        try:
            yield effects
        finally:
            looking.cancel()
            ended_s = self._cpu_s()
            effects.cpu_s = sum(ended_s[pid] - began_s.get(pid, 0.0) for pid in ended_s)

    def _cpu_s(self) -> dict[int, float]:
        """Return the processor time of each service that runs, s."""
        found = {}
        for pid in self._target.suite.processes.values():
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                found[pid] = times.user + times.system
        return found

    async def _look(self, effects: Effects) -> None:
        services = dict(self._target.suite.processes)  # one that starts meanwhile grows anyway
        before: dict[int, float] = {}
        while True:
            for name, pid in services.items():
                with suppress(psutil.Error):
                    mib = psutil.Process(pid).memory_info().rss / _MIB
                    growth = mib - before.setdefault(pid, mib)
                    if growth > effects.growth_mib:
                        effects.growth_mib, effects.grew = growth, name
            await asyncio.sleep(_LOOK_S)
