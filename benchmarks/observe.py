"""Observed energy by process on a real GPU, against what each process draws alone. Read only.

Two processes of PyTorch compute for a share of the time, each alone and then together, while the
observer reads the GPU as `cinquefoil observe` does. A minute; no clock, limit or mode is set. Their
cycles are drawn at random, 20 to 80 ms: the driver samples every 200 ms, and would see processes
with cycles of 200 ms always at the same point of these (docs/measurements/gpuagent.md). Needs
PyTorch, nvidia-ml-py, psutil, aiohttp, grpcio, protobuf, pydantic, structlog and rich.

python -m benchmarks.observe [--json FILE] [--seconds S] [--duties A,B]
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import harness
from benchmarks.harness import Figures, Skipped
from services.gpuagent.core.device_port import Permissions
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.observation.observer import ACTIVITY_S, METER_S, Observer
from services.kit.errors import ServiceError

_READ_ONLY = Permissions(granted=False, setting="a benchmark only reads")
_WORK = """
import random, sys, time, torch
duty = float(sys.argv[1])
a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
print("ready", flush=True)
ahead_s = 0.0  # computed beyond the duty; the next cycles make up for it
while True:
    began, cycle_s = time.monotonic(), random.uniform(0.02, 0.08)
    busy_s = 0.0
    while busy_s < duty * cycle_s - ahead_s:
        a @ a
        torch.cuda.synchronize()
        busy_s = time.monotonic() - began
    length_s = max(cycle_s, busy_s)
    ahead_s += busy_s - duty * length_s
    time.sleep(length_s - busy_s)
"""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase. Attributes: meter_j, idle_j, active_j by process, unattributed_j, seconds."""

    meter_j: float
    idle_j: float
    active_j: dict[int, float]
    unattributed_j: float
    seconds: float


@contextmanager
def computing(*duties: float) -> Iterator[list[int]]:
    """Run processes that compute for these shares of the time while the block runs."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _WORK, str(duty)], stdout=subprocess.PIPE, text=True
        )
        for duty in duties
    ]
    try:
        for each in running:
            if each.stdout is None or each.stdout.readline().strip() != "ready":
                raise Skipped("PyTorch does not compute on a GPU here")
        yield [each.pid for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()


async def observe(observer: Observer, seconds: float, pids: list[int]) -> Phase:
    """Observe for a time; return what was booked since."""
    ledger = next(iter(observer.gpus.values())).ledger
    await asyncio.sleep(2)  # the driver's samples of the phase before have passed
    await observer.read_gpus()
    keys = {pid: observer.workload_of(pid) for pid in pids}

    def booked() -> Phase:
        active = {
            pid: ledger.workloads[key].active_j if key in ledger.workloads else 0.0
            for pid, key in keys.items()
        }
        unattributed_j = ledger.unattributed_j
        return Phase(ledger.total_j, ledger.idle_j, active, unattributed_j, time.monotonic())

    before = booked()
    while time.monotonic() - before.seconds < seconds:
        for _ in range(round(METER_S / ACTIVITY_S)):
            await asyncio.sleep(ACTIVITY_S)
            await observer.read_activity()
        await observer.read_gpus()
    ledger.settle()
    after = booked()
    return Phase(
        after.meter_j - before.meter_j,
        after.idle_j - before.idle_j,
        {pid: after.active_j[pid] - before.active_j[pid] for pid in pids},
        after.unattributed_j - before.unattributed_j,
        after.seconds - before.seconds,
    )


async def report(seconds: float, duties: tuple[float, float]) -> list[Figures]:
    """Measure the first GPU.

    Raises:
        Skipped: There is no GPU here, or PyTorch does not use it.
    """
    try:
        async with DeviceThread(NvmlGpus(permissions=_READ_ONLY)) as device:
            observer = Observer(device, lambda: None, discover=False)
            await observer.start()
            return await _measured(observer, seconds, duties)
    except ServiceError as error:
        raise Skipped(error.message) from error


async def _measured(
    observer: Observer, seconds: float, duties: tuple[float, float]
) -> list[Figures]:
    gpu = next(iter(observer.gpus.values()), None)
    if gpu is None:
        raise Skipped("no GPU can be read here")
    cpu_s, began_s = time.process_time(), time.monotonic()
    rows = []
    alone_w = []
    for duty in duties:
        with computing(duty) as pids:
            found = await observe(observer, seconds, pids)
        alone_w.append((found.meter_j - found.idle_j) / found.seconds)
        rows.append(_row(f"alone, {duty:.0%}", found))
    with computing(*duties) as pids:
        found = await observe(observer, 2 * seconds, pids)
    rows.append(_row("together", found))
    active_j = sum(found.active_j.values())
    true = alone_w[0] / sum(alone_w)
    seen = found.active_j[pids[0]] / active_j if active_j > 0 else 0.0
    ledger = gpu.ledger
    booked_j = ledger.idle_j + ledger.unattributed_j
    booked_j += sum(each.active_j for each in ledger.workloads.values())
    summary = {
        "share_of_the_first_percent": 100 * seen,
        "by_what_each_draws_alone_percent": 100 * true,
        "error_points": 100 * abs(seen - true),
        "idle_w": ledger.idle_w(has_context=True),
        "idle_is_measured": ledger.idle_is_measured(has_context=True),
        "parts_over_meter": booked_j / ledger.total_j,
        "observer_cpu_percent": 100 * (time.process_time() - cpu_s) / (time.monotonic() - began_s),
    }
    return [
        Figures(f"Energy by process, {gpu.info.model.product_name}", rows),
        Figures("Shares while both compute", [summary], "alone: active power of each by the meter"),
    ]


def _row(phase: str, found: Phase) -> dict[str, Any]:
    shares = ", ".join(f"{joules:.0f}" for joules in found.active_j.values())
    return {
        "phase": phase,
        "meter_j": found.meter_j,
        "idle_j": found.idle_j,
        "active_j_by_process": shares,
        "unattributed_j": found.unattributed_j,
    }


def main() -> None:
    """Run, print, and write what was wanted."""
    parser = harness.options("observe")
    parser.add_argument("--seconds", type=float, default=12.0, help="per phase; together: twice")
    parser.add_argument("--duties", default="0.6,0.2", help="shares of the time of the two")
    given = parser.parse_args()
    first, second = map(float, given.duties.split(","))
    try:
        tables = asyncio.run(report(given.seconds, (first, second)))
    except Skipped as reason:
        sys.exit(f"observe: skipped, {reason}")
    harness.publish("observe", harness.Report(tables), given)


if __name__ == "__main__":
    main()
