"""Cost of the console, against a deployment that runs.

    cinquefoil up &
    python -m benchmarks.console [--address HOST:PORT] [--token TOKEN] [--json FILE]
        [--pid PID] [--planner-pid PID] [--config FILE] [--kill]

Processor time is that of the process `--pid`, the console's (its log has it under `cinquefoil up`);
without it that table is left out. With `--planner-pid` a dry run has the processor time that it
takes the planner, which other work on the machine does not lengthen. The page is all that a browser
loads for the page Now, as it goes over the wire (gzip). With `--config` the weight of
carbon of that deployment is changed to and fro,
and Chromium shows when: from the planner's announcement of a plan until the page has it;
`page_cpu_median_ms` is its main thread's processor time until the page shows the plan. With
`--kill` the process `--pid` is killed while pages are open and digits are sent to the router.
"""

import asyncio
import math
import re
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import cast

import httpx
import psutil
from playwright.async_api import async_playwright, expect

from benchmarks.harness import Figures, Report, options, publish
from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import Clients, connected
from services.cli.tensors import request_of
from services.kit.config.loader import load
from services.kit.errors import ServiceError
from services.local.demo.digits import held_out

_PAGES = 50
_STREAMING_S = 10.0
_ROUNDS = 40
_PAINTS = 7
_KILLED_S = 10.0
_EVERY_S = 0.02
_HISTORY_S = 15.0
_PLANS = 5
_COMPLETE_MS = 60_000
_PAINT = "performance.getEntriesByName('first-contentful-paint').map((each) => each.startTime)"


@dataclass(frozen=True)
class Pids:
    """Processes whose processor time is read; None: it is left out."""

    console: int | None
    planner: int | None


async def measure(
    address: str, token: str, pids: Pids, config: Path | None, *, kill: bool
) -> Report:
    """Return the figures of one console."""
    pid = pids.console
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with _clients(address, headers) as clients:
        tables = [await _loading(clients[0]), await _dry_runs(clients[0], pids.planner)]
        if pid is not None:
            tables.append(await _streams(clients, psutil.Process(pid)))
    if config is not None:
        tables.append(await _screen(address, headers, config))
    if kill and pid is not None and config is not None:
        async with _clients(address, headers) as clients:
            tables.append(await _killed(clients, psutil.Process(pid), config))
    return Report(tables)


@asynccontextmanager
async def _clients(
    address: str, headers: dict[str, str]
) -> AsyncGenerator[list[httpx.AsyncClient], None]:
    """Yield clients at addresses of their own: one reader has at most 32 streams of events."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://{address}",
                    headers=headers,
                    timeout=120,
                    transport=httpx.AsyncHTTPTransport(
                        local_address=local, limits=httpx.Limits(max_connections=_PAGES + 10)
                    ),
                )
            )
            for local in ("127.0.0.1", "127.0.0.2")
        ]


async def _loading(client: httpx.AsyncClient) -> Figures:
    """Load the page as a browser does that has nothing of it."""
    to_load, seen, wire_bytes = ["/"], set[str](), 0
    started_s = time.perf_counter()
    while to_load:
        path = to_load.pop()
        if path in seen:
            continue
        seen.add(path)
        response = await client.get(path)
        wire_bytes += response.num_bytes_downloaded
        text = response.text if path.endswith((".js", "/")) else ""
        found = re.findall(r'(?:href|src)="(/static/[^"]+)"|from "\./([^"]+)"', text)
        to_load += [absolute or f"/static/{relative}" for absolute, relative in found]
    loading_s = time.perf_counter() - started_s
    row = {"files": len(seen), "wire_kb": wire_bytes / 1e3, "loading_ms": loading_s * 1e3}
    return Figures("The page Now, all files, one after another", [row])


async def _dry_runs(client: httpx.AsyncClient, planner: int | None) -> Figures:
    rows = []
    for name, circumstances in (
        ("another weight of carbon", "carbon_weight={}"),
        ("another load", "demand={}"),
    ):
        times_s = []
        before_s = _used_s(planner)
        for n in range(_ROUNDS):
            started_s = time.perf_counter()
            answer = await client.get(f"/api/what-if?{circumstances.format(0.05 + n * 0.02)}")
            answer.raise_for_status()
            times_s.append(time.perf_counter() - started_s)
        times_s.sort()
        rows.append(
            {
                "slider": name,
                "median_ms": times_s[_ROUNDS // 2] * 1e3,
                "p95_ms": times_s[int(_ROUNDS * 0.95)] * 1e3,
                "planner_cpu_ms": (_used_s(planner) - before_s) / _ROUNDS * 1e3,
            }
        )
    return Figures("A dry run behind a slider", rows)


def _used_s(pid: int | None) -> float:
    """Return the processor time that a process has used, s; nan: none is given."""
    if pid is None:
        return math.nan
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


async def _streams(clients: list[httpx.AsyncClient], console: psutil.Process) -> Figures:
    """Keep streams of the present open, and read the process's clock before and after."""
    rows = []
    for pages in (1, _PAGES):
        async with AsyncExitStack() as stack:
            await _open(clients, pages, stack)
            before = console.cpu_times()
            await asyncio.sleep(_STREAMING_S)
            after = console.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        rows.append({"open_pages": pages, "cores": used_s / _STREAMING_S})
    return Figures("Processor time of the console while pages are open", rows)


async def _killed(pages: list[httpx.AsyncClient], console: psutil.Process, config: Path) -> Figures:
    """Send requests at a steady rate before and after the console is killed with pages open."""
    images, _ = held_out()
    request = request_of("digits", "image", "FP32", images[:1])
    rows = []
    async with AsyncExitStack() as stack, connected(load(config)) as clients:
        await _open(pages, _PAGES, stack)
        for name in ("console with 50 pages", "console killed"):
            if name == "console killed":
                console.kill()
            took_s: list[float] = []
            failed = 0
            end_s = time.perf_counter() + _KILLED_S
            while (started_s := time.perf_counter()) < end_s:
                try:
                    await clients.inference.ModelInfer(request, timeout=10)
                    took_s.append(time.perf_counter() - started_s)
                except ServiceError:
                    failed += 1
                await asyncio.sleep(_EVERY_S)
            took_s.sort()
            row = {
                "requests": name,
                "answered": len(took_s),
                "failed": failed,
                "median_ms": took_s[len(took_s) // 2] * 1e3,
                "p95_ms": took_s[int(len(took_s) * 0.95)] * 1e3,
            }
            rows.append(row)
    return Figures("Requests to the router, one after another, when the console dies", rows)


async def _open(clients: list[httpx.AsyncClient], pages: int, stack: AsyncExitStack) -> None:
    """Follow the present as pages do, until the stack ends."""
    for client in islice(cycle(clients), pages):
        response = await stack.enter_async_context(client.stream("GET", "/api/events"))
        response.raise_for_status()
        for work in (_read(response), _follow_history(client)):
            stack.callback(asyncio.create_task(work).cancel)


async def _screen(address: str, headers: dict[str, str], config: Path) -> Figures:
    """Look at the page Now while plans change."""
    shown_ms = []
    async with async_playwright() as playwright, connected(load(config)) as clients:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        paints_ms, busy_ms = [], []
        for _ in range(_PAINTS):  # each with nothing in its cache
            context = await browser.new_context(extra_http_headers=headers)
            page = await context.new_page()
            devtools = await context.new_cdp_session(page)
            await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
            await page.goto(f"http://{address}/#/now")
            newest = page.locator("#newest")
            await expect(newest).to_contain_text("Plan", timeout=_COMPLETE_MS)
            paints_ms += await page.evaluate(_PAINT)
            found = (await devtools.send("Performance.getMetrics"))["metrics"]
            busy_ms += [1e3 * each["value"] for each in found if each["name"] == "TaskDuration"]
        for weight in islice(cycle((1.0, 0.0)), _PLANS):
            version = await _changed(clients, weight)
            changed_s = time.perf_counter()
            await expect(newest).to_have_text(f"Plan {version}", timeout=_COMPLETE_MS)
            shown_ms.append((time.perf_counter() - changed_s) * 1e3)
        await browser.close()
    shown_ms.sort()
    row = {
        "first_paint_median_ms": sorted(paints_ms)[_PAINTS // 2],
        "first_paint_most_ms": max(paints_ms),
        "page_cpu_median_ms": sorted(busy_ms)[_PAINTS // 2],
        "update_median_ms": shown_ms[_PLANS // 2],
        "update_most_ms": shown_ms[-1],
    }
    return Figures("The page Now in Chromium, and a new plan on it", [row])


async def _changed(clients: Clients, carbon_weight: float) -> int:
    """Change the weight of carbon; return the plan that follows, as soon as it is announced."""
    watching = clients.planner.Watch(planner_pb2.WatchRequest(), timeout=_COMPLETE_MS / 1e3)
    async with aclosing(cast(AsyncGenerator[planner_pb2.WatchResponse, None], watching)) as plans:
        before = (await anext(plans)).plan.version
        request = planner_pb2.SetObjectiveRequest(carbon_weight=carbon_weight)
        await clients.planner.SetObjective(request)
        async for announced in plans:
            if announced.plan.version > before:
                return int(announced.plan.version)
    raise RuntimeError("the planner has ended")


async def _read(response: httpx.Response) -> None:
    with suppress(httpx.HTTPError):  # the console may be killed
        async for _ in response.aiter_raw():
            pass


async def _follow_history(client: httpx.AsyncClient) -> None:
    """Read the last day as often as the page Now does."""
    with suppress(httpx.HTTPError):  # the console may be killed
        while True:
            await client.get("/api/history?hours=24")
            await asyncio.sleep(_HISTORY_S)


if __name__ == "__main__":
    parser = options("console")
    parser.add_argument("--address", default="127.0.0.1:8467")
    parser.add_argument("--token", default="")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--planner-pid", type=int)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    try:
        report = asyncio.run(
            measure(
                arguments.address,
                arguments.token,
                Pids(arguments.pid, arguments.planner_pid),
                arguments.config,
                kill=arguments.kill,
            )
        )
    except httpx.ConnectError:
        sys.stdout.write(f"console: skipped, there is none at {arguments.address}\n")
    else:
        publish("console", report, arguments)
