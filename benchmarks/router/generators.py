"""Generators of load: h2load where it is installed, else a grpc.aio client in its own process.

Both keep a number of requests in flight for a while and write one row per answer, in h2load's
form: start (us since the epoch), HTTP status, time to the end of the answer (us).
"""

import math
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.router import messages
from benchmarks.router.processes import finished
from benchmarks.router.security import Security

WARM_UP = 0.2
"""Share of a measurement's time whose answers do not count."""

_DATA = re.compile(r"\((\d+)\) data")
_REQUESTS = re.compile(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored")


class Wrong(Exception):
    """A load was not answered as it should be; the message says how."""


class Work(NamedTuple):
    """One measurement.

    Attributes:
        port: The server's port.
        size: Of messages.SHAPES.
        in_flight: Requests.
        connections: They share so many, evenly.
        duration_s: For how long, warm-up included.
        answer_bytes: Of the shortest answer.
        security: Certificates and token of the client; None: plaintext.
    """

    port: int
    size: str
    in_flight: int
    connections: int
    duration_s: float
    answer_bytes: int
    security: Security | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Record of a generator.

    Attributes:
        latencies_ms: Of each answer after the warm-up, shape (answers,).
        duration_s: Without the warm-up.
        total: Answers, warm-up included.
    """

    latencies_ms: np.ndarray[Any, np.dtype[np.float64]]
    duration_s: float
    total: int

    @property
    def rate_rps(self) -> float:
        """Answers per second."""
        return self.latencies_ms.size / self.duration_s

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latency."""
        return float(np.percentile(self.latencies_ms, percent))


Generate = Callable[[Work, Path], Awaitable[None]]
"""Makes a load and writes its rows to the file."""


def generator() -> tuple[str, Generate]:
    """Return the generator that this machine has, and its name."""
    if shutil.which("h2load"):
        return "h2load", h2load
    return "grpc.aio (h2load is not installed: apt install nghttp2-client)", grpc_aio


async def measured(generate: Generate, work: Work, folder: Path) -> Load:
    """Make a load.

    Raises:
        Wrong: A request failed.
    """
    rows = folder / "load.tsv"
    rows.unlink(missing_ok=True)
    await generate(work, rows)
    return load(rows, work.duration_s)


def load(rows: Path, duration_s: float) -> Load:
    """Read what a generator wrote.

    Raises:
        Wrong: Nothing was answered, or not everything with success.
    """
    text = rows.read_text() if rows.exists() else ""
    if not text:
        raise Wrong("nothing was answered")
    table = np.loadtxt(text.splitlines(), dtype=np.int64, ndmin=2)
    if (table[:, 1] != 200).any():
        raise Wrong("some answers were not 200")
    warm_s = WARM_UP * duration_s
    counts = table[:, 0] >= table[0, 0] + warm_s * 1e6
    if not counts.any():
        raise Wrong("nothing was answered after the warm-up")
    return Load(table[counts, 2] / 1e3, duration_s - warm_s, len(table))


async def h2load(work: Work, rows: Path) -> None:
    """Make a load with nghttp2's h2load."""
    body = rows.with_suffix(".body")
    body.write_bytes(messages.framed(messages.request(work.size)))
    scheme, shown = "http", list[str]()
    if work.security is not None:
        scheme, shown = "https", [f"--header=authorization: Bearer {work.security.token}"]
    said = await _run(
        "h2load",
        f"--clients={work.connections}",
        f"--max-concurrent-streams={work.in_flight // work.connections}",
        f"--duration={math.ceil(work.duration_s * 1e3)}ms",
        f"--data={body}",
        "--header=content-type: application/grpc",
        "--header=te: trailers",
        f"--log-file={rows}",
        *shown,
        f"{scheme}://127.0.0.1:{work.port}{messages.INFER}",
    )
    requests, data = _REQUESTS.search(said), _DATA.search(said)
    assert requests, said
    assert data, said
    done, succeeded = int(requests[1]), int(requests[2])
    # gRPC's errors are 200s without a message, so only the bytes distinguish them from answers.
    least = done * len(messages.framed(bytes(work.answer_bytes)))
    if succeeded < done or int(data[1]) < least:
        raise Wrong(f"{done} answers, {succeeded} with success, {data[1]} of {least} bytes")


async def grpc_aio(work: Work, rows: Path) -> None:
    """Make a load with benchmarks.router.client."""
    await _run(
        sys.executable,
        "-m",
        "benchmarks.router.client",
        *map(str, (*work[:5], rows)),
        *((str(work.security.folder), work.security.token) if work.security else ()),
    )


async def _run(*command: str | Path) -> str:
    """Run a generator; return what it printed.

    Raises:
        Wrong: The generator failed.
    """
    ran = await finished(*command)
    if ran.returncode:
        raise Wrong(f"{command[0]} failed: {ran.stdout[-500:]}")
    return ran.stdout
