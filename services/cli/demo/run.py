"""`cinquefoil demo`: trains, starts, passes a day, reports."""

import asyncio
import os
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from services.cli.client import connected
from services.cli.demo import moving_picture, page, report
from services.cli.demo.day import Images, pass_day, send
from services.cli.demo.progress import Progress
from services.cli.demo.sample import Grid, SuiteRun, plans_since
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.config.loader import ENV_PREFIX, load
from services.kit.errors import DeadlineExceeded, InvalidArgument
from services.kit.plurals import counted
from services.local.demo import deployment_files
from services.local.demo.digits import HELD_OUT
from services.local.demo.load import Arrival, RequestStats, arrivals
from services.local.demo.model_family import FAMILY
from services.local.demo.model_family import train as train_family
from services.local.up.health import until_answering
from services.local.up.suite import Suite

_FIRST_PLAN_S = 60.0


async def train(config: Path) -> None:
    """Train the demo's models into the folders that the file names."""
    console = Console()
    deployment = load(config)
    for folder in _folders(deployment):
        accuracy = await asyncio.to_thread(train_family, folder, console.print)
        console.print(f"{folder}: {counted(len(accuracy), 'model')}", highlight=False)


@dataclass(frozen=True, slots=True)
class Options:
    """Course of a demo.

    Attributes:
        seconds: Length of the day, s.
        rate_rps: Requests per second to each model; None: its demand of the file.
        seed: Of the arrivals.
        stay: Keep Cinquefoil's suite with its console and the load, day after day, until ctrl-c.
    """

    seconds: float
    rate_rps: float | None
    seed: int
    stay: bool


async def demo(config: Path, out: Path, options: Options) -> bool:
    """Run the demo; return whether every request was answered.

    Args:
        config: Deployment file.
        out: Folder for report and logs.
        options: Its course.

    Raises:
        ConfigError: The file is wrong.
        ServiceError: A service could not be started, or gave no plan.
    """
    console = Console()
    deployment = load(config)
    await train(config)
    setting = deployment_files.write(deployment, out, options.seconds)
    async with AsyncExitStack() as stack:
        with console.status("Starting one carbon service and two suites"):
            runs = await _start(stack, setting, with_console=options.stay)
        rates_rps = {
            name: options.rate_rps or model.demand_rps for name, model in deployment.models.items()
        }
        load_plan = arrivals(rates_rps, options.seconds, HELD_OUT, options.seed)
        rates = ", ".join(f"{name} {rate:g} req/s" for name, rate in rates_rps.items())
        console.print(
            f"{counted(len(load_plan), 'request')} to each suite in a day of "
            f"{options.seconds:g} s: {rates}",
            highlight=False,
        )
        figures = await _day(console, deployment, setting, runs, load_plan, out)
        if not options.stay:
            console.print("Stopping the suites", highlight=False)
            await stack.aclose()
        _print_report(console, figures, runs, out)
        if options.stay:
            await _stay(console, out / "cinquefoil/cinquefoil.yaml", runs["cinquefoil"], load_plan)
    return all(one.lost == 0 for one in figures.values())


def _print_report(
    console: Console, figures: Mapping[str, report.Figures], runs: Mapping[str, SuiteRun], out: Path
) -> None:
    console.print(report.render(figures["base"], figures["cinquefoil"]))
    if warning := report.busy(figures.values(), os.getloadavg()[1], os.cpu_count() or 1):
        console.print(Text(warning, style="yellow"))
    for name, run in runs.items():
        losses = RequestStats.total(run.stats.values()).losses
        for reason, count in losses.most_common(3):
            console.print(Text(f"{name} lost {count}: {reason}", style="red"))
    files = ", ".join(f"{out}/report.{kind}" for kind in ("html", "svg", "json"))
    console.print(files, highlight=False, soft_wrap=True)


async def _stay(console: Console, file: Path, run: SuiteRun, load_plan: Sequence[Arrival]) -> None:
    """Send the day's load to Cinquefoil's suite, day after day, until cancelled."""
    listen = load(file).console.listen
    where = f"http://{listen}/" if listen else "nowhere: console.listen is empty"
    console.print(f"\nThe suite stays, with its load; ctrl-c stops it. Console: {where}")
    console.print(Text(f"cinquefoil status -c {file}"), soft_wrap=True)
    if listen and console.is_terminal:
        await asyncio.to_thread(webbrowser.open, where)
    images = await asyncio.to_thread(Images.held_out, {arrival.model for arrival in load_plan})
    try:
        while True:
            run.stats.clear()
            await send(load_plan, images, {"cinquefoil": run}, RealClock())
    except asyncio.CancelledError:
        # The border: cancelled is how a person ends this command.
        console.print("Stopped; no process is left.")


async def _start(
    stack: AsyncExitStack, setting: deployment_files.DemoFiles, *, with_console: bool
) -> dict[str, SuiteRun]:
    # The files include the environment's overrides; two suites cannot share its ports.
    clean = {key: val for key, val in os.environ.items() if not key.startswith(ENV_PREFIX)}
    services = ("planner", "router", *(f"gpuagent-{n}" for n in load(setting.carbon).nodes))
    carbon = Suite.of(
        setting.carbon, setting.carbon.parent / "logs", without=services, environment=clean
    )
    await stack.enter_async_context(carbon)
    suites = {
        name: Suite.of(
            file,
            file.parent / "logs",
            without=("carbon",),
            with_console=with_console and name == "cinquefoil",
            environment=clean,
        )
        for name, file in setting.suites.items()
    }
    async with asyncio.TaskGroup() as starts:
        for name, suite in suites.items():
            starts.create_task(stack.enter_async_context(suite), name=f"demo.{name}.start")
    runs = {}
    for name, file in setting.suites.items():
        deployment = load(file)
        clients = await stack.enter_async_context(connected(deployment))
        runs[name] = SuiteRun(clients)
        await _first_plan(name, deployment)
    return runs


async def _first_plan(name: str, deployment: Deployment) -> None:
    try:
        async with asyncio.timeout(_FIRST_PLAN_S):
            await until_answering(
                deployment.router.dial,
                deployment.identity("operator"),
                deployment.expected("router"),
            )
    except TimeoutError:
        raise DeadlineExceeded(
            f"the {name} suite had no plan in force after {_FIRST_PLAN_S:g} s; see its logs"
        ) from None


async def _day(  # noqa: PLR0913, PLR0917 - what a day is made of
    console: Console,
    deployment: Deployment,
    setting: deployment_files.DemoFiles,
    runs: Mapping[str, SuiteRun],
    load_plan: Sequence[Arrival],
    out: Path,
) -> dict[str, report.Figures]:
    clock, grid = RealClock(), Grid(setting.zone, setting.speedup)
    with Progress(console, runs, grid, clock, deployment_files.DAY_S / setting.speedup) as progress:
        await pass_day(runs, grid, load_plan, clock, progress.show)
    figures = {}
    for name, run in runs.items():
        plans = await plans_since(run.clients, run.samples[0].plan)
        figures[name] = report.figures(run.stats, run.samples, plans, deployment.models)
    report.write(out / "report.json", figures)
    samples = {name: run.samples for name, run in runs.items()}
    page.write(out / "report.html", figures, grid.changes, samples, deployment.models)
    moving_picture.write(out / "report.svg", figures, grid.changes, samples, deployment.models)
    return figures


def _folders(deployment: Deployment) -> list[Path]:
    variants = [each for model in deployment.models.values() for each in model.variants.items()]
    strangers = sorted({name for name, _ in variants} - set(FAMILY))
    if strangers:
        raise InvalidArgument(
            f"the demo trains the variants {', '.join(FAMILY)}, and has no {', '.join(strangers)}; "
            "`cinquefoil up` serves models of your own"
        )
    return sorted({variant.file.parent for _, variant in variants})
