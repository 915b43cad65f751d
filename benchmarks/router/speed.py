"""Speed of each path: rounds that alternate, so that a noisy machine affects all alike."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from benchmarks.router.generators import Generate, Work, Wrong, measured
from benchmarks.router.messages import SHAPES
from benchmarks.router.paths import PATHS, Start, secure_paths
from benchmarks.router.processes import Server, Unavailable
from benchmarks.router.samples import CASES, Cell, Sample, Speeds
from benchmarks.router.security import Security
from benchmarks.router.verify import verify

VISITORS = frozenset({"ray"})
"""Started for their turns only: idle, Ray takes a tenth of a core."""

Servers = Mapping[str, Server]


class Plan(NamedTuple):
    """Extent of the measurement.

    Attributes:
        rounds: Of all loads on all paths.
        seconds: Of one load on one path, warm-up included.
    """

    rounds: int
    seconds: float


class Meter:
    """Measures servers, and keeps what it found.

    Attributes:
        samples: By load and path, one per round, in order.
        absent: Why a path is not measured.
    """

    def __init__(
        self,
        plan: Plan,
        generate: Generate,
        folder: Path,
        absent: Mapping[str, str],
        paths: Mapping[str, Start],
    ) -> None:
        self.samples: dict[Cell, list[Sample]] = {}
        self.absent = dict(absent)
        self._answer_bytes: dict[str, int] = {}
        self._plan = plan
        self._paths = paths
        self._generate = generate
        self._folder = folder

    async def run(self, names: Iterable[str]) -> None:
        """Measure these paths; the first one is the others' backend."""
        residents = [name for name in names if name not in VISITORS | self.absent.keys()]
        visitors = [name for name in names if name in VISITORS - self.absent.keys()]
        with _progress(self._plan.rounds) as rounds:
            async with AsyncExitStack() as stack:
                servers: dict[str, Server] = {}
                for name in residents:
                    await self._start(stack, name, servers)
                if "direct" in self.absent:
                    raise Unavailable(f"direct: {self.absent['direct']}")
                for turn in rounds:
                    await self._round(servers, turn)
                    for name in visitors:
                        await self._visit(name, servers)
                for name, server in servers.items():
                    await self._verify_again(name, server)

    async def _visit(self, name: str, servers: Servers) -> None:
        if name in self.absent:
            return
        async with AsyncExitStack() as stack:
            guests = dict(servers)
            await self._start(stack, name, guests)
            if name in guests:
                await self._round({name: guests[name]}, 0)

    async def _start(self, stack: AsyncExitStack, name: str, servers: dict[str, Server]) -> None:
        """Start a server, have it verified, and leave its end to the stack; or note why not."""
        own = self._folder / name
        own.mkdir(exist_ok=True)
        backend_port = servers["direct"].port if servers else 0
        try:
            async with AsyncExitStack() as here:
                server = await here.enter_async_context(self._paths[name](own, backend_port))
                self._answer_bytes[name] = await _verify(name, server)
                stack.push_async_exit(here.pop_all())
        except (Unavailable, Wrong) as reason:
            self._drop(name, str(reason))
        else:
            servers[name] = server

    async def _verify_again(self, name: str, server: Server) -> None:
        if name in self.absent:
            return
        try:
            await _verify(name, server)
        except Wrong as reason:
            self._drop(name, f"after the last round: {reason}")

    def _drop(self, name: str, reason: str) -> None:
        """Measure a path no more; what there is of it cannot be compared round by round."""
        self.absent[name] = reason
        for case in CASES:
            self.samples.pop(Cell(case, name), None)

    async def _round(self, servers: Servers, turn: int) -> None:
        names = list(servers)
        first = turn % len(names)
        for case in CASES:
            for name in names[first:] + names[:first]:
                if name in self.absent:
                    continue
                server = servers[name]
                work = Work(
                    server.port,
                    case.size,
                    case.in_flight,
                    case.connections,
                    self._plan.seconds,
                    self._answer_bytes[name],
                    server.security,
                )
                try:
                    sample = await self._sample(server, work)
                except Wrong as reason:
                    self._drop(name, f"{case}: {reason}")
                else:
                    self.samples.setdefault(Cell(case, name), []).append(sample)

    async def _sample(self, server: Server, work: Work) -> Sample:
        began_s = server.cpu_s()
        load = await measured(self._generate, work, self._folder)
        cpu_us = (server.cpu_s() - began_s) / load.total * 1e6
        return Sample(load.rate_rps, load.percentile_ms(50), load.percentile_ms(99), cpu_us)


async def speeds(
    wanted: Iterable[str], absent: Mapping[str, str], plan: Plan, generate: Generate, folder: Path
) -> Speeds:
    """Measure.

    Args:
        wanted: Of PATHS; "direct" is always there, it is the others' backend.
        absent: Paths that cannot run, and why.
        plan: Extent of the measurement.
        generate: Makes the load.
        folder: For the servers' files.

    Raises:
        Unavailable: The backend does not run.
    """
    meter = Meter(plan, generate, folder, absent, PATHS)
    await meter.run([name for name in PATHS if name in {"direct", *wanted}])
    return Speeds(meter.samples, meter.absent)


async def secure_speeds(plan: Plan, generate: Generate, folder: Path) -> Speeds:
    """Measure the paths that speak TLS on both sides, clients with a token.

    Raises:
        Unavailable: The backend does not run.
    """
    paths = secure_paths(Security.made(folder / "pki"))
    meter = Meter(plan, generate, folder, {}, paths)
    await meter.run(paths)
    return Speeds(meter.samples, meter.absent)


async def _verify(name: str, server: Server) -> int:
    """Read answers of all sizes; return the bytes of the shortest."""
    receipt = name == "cinquefoil"
    return min([await verify(server, size, receipt=receipt) for size in SHAPES])


@contextmanager
def _progress(rounds: int) -> Iterator[Iterator[int]]:
    """Show how many rounds are done."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield iter(progress.track(range(rounds), description="router: rounds"))
