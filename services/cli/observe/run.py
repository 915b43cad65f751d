"""Observes this machine for a while, and reports."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console
from rich.live import Live
from rich.text import Text

from services.cli.console import quantities
from services.cli.observe import page
from services.cli.observe.advice import Step, advise
from services.cli.observe.days import advised
from services.cli.observe.figures import Figures, collect
from services.cli.observe.intensity import Electricity, electricity
from services.cli.observe.metrics import AdviceCollector
from services.cli.observe.render import render
from services.cli.observe.scenario import scenario
from services.console.documents import as_text
from services.gpuagent.core.device_port import Permissions
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.observation.history import MAX_DAYS, History
from services.gpuagent.observation.observer import Observer
from services.gpuagent.observation.recorder import Recorder
from services.gpuagent.observation.scraping import checked_url
from services.kit.clock import RealClock
from services.kit.errors import ServiceError, Unavailable
from services.kit.process import metrics
from services.kit.telemetry import logs

_READ_ONLY: Final = Permissions(granted=False, setting="observe only reads")
_SHOWN_S: Final = 5.0
_ADVISED_S: Final = 600.0
_log = logs.get("observe")


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the command.

    Attributes:
        seconds: Time to observe, s.
        zone, intensity: Of the electricity; "" and None: not known.
        servers: Metrics pages.
        config: Deployment file that may have the zone.
        every_s: Time between two reports in `out`, each of all that was observed, s; 0: one at
            the end.
        store: File of observations, to which records are added; None: nothing is stored.
        metrics: "host:port" of metrics of plans in shadow, day by day; "": none.
        out: Folder of report.html and report.json; None: none are written.
        as_json: Print JSON instead of tables.
    """

    seconds: float
    zone: str = ""
    intensity: float | None = None
    servers: tuple[str, ...] = ()
    config: Path = Path("cinquefoil.yaml")
    every_s: float = 0.0
    store: Path | None = None
    metrics: str = ""
    out: Path | None = None
    as_json: bool = False


async def observe(options: Options) -> Figures:
    """Observe, and print the report; a cancellation ends the observation, not the report.

    Raises:
        ServiceError: The driver does not answer, or a setting is wrong.
    """
    servers = tuple(map(checked_url, options.servers))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)  # now: the observation takes its time
    console = Console(stderr=options.as_json)
    async with (
        electricity(options.zone, options.intensity, options.config) as grid,
        DeviceThread(NvmlGpus(permissions=_READ_ONLY)) as device,
        metrics.exposed(options.metrics, [days := AdviceCollector()], service="observe"),
    ):
        observer = Observer(device, grid.now, servers=servers)
        await observer.start()
        if not observer.gpus:
            raise Unavailable(
                "no GPU can be read here; in MIG mode that takes root, or the device node of "
                "mig/monitor (docs/rights.md)"
            )
        since_s, cpu_s = time.time(), time.process_time()

        def seen() -> Figures:
            used_s = time.process_time() - cpu_s
            return collect(observer, since_s, grid.label, grid.now(), used_s)

        async def again(out: Path) -> None:
            while True:
                await asyncio.sleep(options.every_s)
                figures = seen()
                await asyncio.to_thread(_write, figures, advise(figures, _day_ahead(grid)), out)

        also = [again(options.out)] if options.out and options.every_s else []
        if options.store is not None:
            history = History(options.store)
            also += [Recorder(observer, history, RealClock()).run(), _advise(history, days)]
        await _observe_for(options.seconds, observer, console, seen, also)
        for gpu in observer.gpus.values():
            gpu.ledger.settle()
        figures = seen()
        steps = advise(figures, _day_ahead(grid))
    _report(figures, steps, options, console)
    return figures


async def _advise(history: History, collector: AdviceCollector) -> None:
    """Plan in shadow for each day that has ended, until cancelled."""
    while True:
        try:
            collector.days = await asyncio.to_thread(advised, history, MAX_DAYS)
        except ServiceError as error:  # nothing is stored yet, or the disk is full
            _log.debug("not planned in shadow", error=error.message)
        await asyncio.sleep(_ADVISED_S)


def _day_ahead(grid: Electricity) -> Sequence[float]:
    return grid.day_ahead() if grid.constant is None else ()


async def _observe_for(
    seconds: float,
    observer: Observer,
    console: Console,
    seen: Callable[[], Figures],
    also: Sequence[Coroutine[Any, Any, None]],
) -> None:
    """Observe for a time, or until cancelled; show what was seen on a terminal."""
    until_s = time.monotonic() + seconds
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            tasks.create_task(observer.run(), name="observe")
            for each in also:
                tasks.create_task(each)
            if console.is_terminal:
                tasks.create_task(_show(console, seen, until_s), name="observe.show")
    except TimeoutError:
        return
    except asyncio.CancelledError:  # ctrl-c: report what there is
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()


async def _show(console: Console, seen: Callable[[], Figures], until_s: float) -> None:
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(Text(progress(seen(), until_s - time.monotonic())), refresh=True)
            await asyncio.sleep(_SHOWN_S)


def progress(figures: Figures, left_s: float) -> str:
    """Return what was seen so far, in lines of a terminal."""
    watts = sum(gpu.mean_w for gpu in figures.gpus)
    first = (
        f"observing {len(figures.gpus)} GPUs: {watts:.0f} W, "
        f"{quantities.energy(figures.energy_j)}; report in {quantities.duration(max(left_s, 0))} "
        "(ctrl-c: now)"
    )
    drawn = (f"  {quantities.energy(each.active_j):>8}  {each.name}" for each in figures.workloads)
    lines = [first, *islice(drawn, 8)]
    for server in figures.servers[:8]:
        rate = "-" if server.tokens_per_s is None else f"{server.tokens_per_s:.3g}"
        lines.append(f"  {rate:>6} tokens/s  {server.server} {server.model}")
    return "\n".join(lines)


def _report(figures: Figures, steps: tuple[Step, ...], options: Options, console: Console) -> None:
    if options.out is not None:
        _write(figures, steps, options.out)
    if options.as_json:
        sys.stdout.write(_json(figures, steps))
        return
    console.print(render(figures, steps))
    if options.out is not None:
        console.print(Text(f"{options.out}/report.html, report.json"))


def _json(figures: Figures, steps: Sequence[Step]) -> str:
    return json.dumps(json.loads(as_text(document(figures, steps))), indent=2) + "\n"


def _write(figures: Figures, steps: tuple[Step, ...], out: Path) -> None:
    """Write the report; a reader finds the one before or this one, whole."""
    found = scenario(figures)
    if found is not None:
        text = yaml.safe_dump(found, sort_keys=False)
        (out / "scenario.yaml").write_text(text, encoding="utf-8")
    for name, write in (
        ("report.json", lambda path: path.write_text(_json(figures, steps), encoding="utf-8")),
        ("report.html", lambda path: page.write(figures, steps, path)),
    ):
        draft = out / f".{name}"
        write(draft)
        draft.replace(out / name)


def document(figures: Figures, steps: Sequence[Step]) -> dict[str, Any]:
    """Return the report for JSON."""
    fields = {name: getattr(figures, name) for name in Figures.__slots__ if name != "models"}
    parts = ("gpus", "workloads", "servers", "minutes")
    return {
        **fields,
        "since": figures.since.isoformat(),
        **{name: [asdict(each) for each in fields[name]] for name in parts},
        "steps": [asdict(step) for step in steps],
    }
