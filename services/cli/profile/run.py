"""Measures profiles and writes tables, or compares two tables."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

import typer
from rich import progress
from rich.console import Console
from ruamel.yaml.comments import CommentedMap

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import gpuagent_pb2_grpc as pb_grpc
from services.cli.client import deployment_with, explaining
from services.cli.profile.compare import difference_table, differences
from services.cli.profile.request import (
    Request,
    Target,
    chosen_gpus,
    grid,
    grid_of_texts,
    targets,
)
from services.cli.profile.steps import fitted
from services.cli.yaml_file import beside, edited, scalar
from services.gpuagent.profiling.core.sweep import Point, Sweep
from services.gpuagent.profiling.profiler import logbook
from services.gpuagent.profiling.profiler.logbook import Logbook
from services.gpuagent.profiling.profiler.profiler import ProfileProgress, Profiler
from services.gpuagent.profiling.profiler.rig import Rig, reserved
from services.kit.clock import RealClock
from services.kit.config import Deployment, LanguageProfile
from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Measurement
from services.kit.profiles.table_file import read_fingerprint, read_measurements, write_table
from services.kit.rpc import dial

TABLES: Final = ("csv", "parquet")


async def profile(config: Path, node: str, request: Request) -> None:
    """Measure models on GPUs of a node, and write a table for each variant.

    Args:
        config: Deployment file.
        node: The node, one of the file's.
        request: Points to measure, and the GPUs.

    Raises:
        ServiceError: It cannot be measured, or the agent cannot go on; what was measured is kept.
    """
    deployment, console = await deployment_with(config, node), Console()
    wanted, endpoint = targets(request, deployment), deployment.nodes[node]
    async with dial(
        endpoint.dial, deployment.identity("operator"), deployment.expected("agent", node)
    ) as channel:
        agent: pb_grpc.GpuAgentServiceAsyncStub = pb_grpc.GpuAgentServiceStub(channel)
        client = explaining(agent, "gpuagent", endpoint.dial)
        found = (await client.GetNode(pb.GetNodeRequest())).node
        uuids = chosen_gpus(request.gpu, found.gpus, _together(wanted))

        def waiting(segments: Sequence[str]) -> None:
            console.print(f"waiting for {', '.join(segments)} to leave {', '.join(uuids)}")

        name = f"profile-{uuid4().hex[:8]}"
        async with reserved(agent, uuids, name, wait=request.force_idle, waiting=waiting) as rig:
            await _measure(wanted, request, deployment, rig, console)
    if request.save:
        _save(config, wanted, request.out, deployment, rig.gpu.type.name)
        typer.echo(f"{config} uses the tables from now on; reload it")
    else:
        _print_use(wanted, request.out, deployment, rig.gpu.type.name)


def _together(wanted: Sequence[Target]) -> int:
    """Return the number of GPUs that hold each variant."""
    counts = {each.gpus: f"{each.model}/{each.variant} on {each.gpus}" for each in wanted}
    if len(counts) > 1:
        raise InvalidArgument(
            f"MODEL: measure variants on as many GPUs together, not {', '.join(counts.values())}"
        )
    return next(iter(counts), 1)


def compare(one: Path, other: Path, tolerance: float) -> bool:
    """Print the differences between two tables; return whether there are any.

    Raises:
        InvalidArgument: One of them is no table of ours.
    """
    found = differences(read_measurements(one), read_measurements(other), tolerance)
    for path in (one, other):
        typer.echo(f"{path}: {_machine(path)}")
    if found:
        Console().print(difference_table(found, ("first", "second")))
    else:
        typer.echo(f"no point differs by more than {tolerance:.0%}")
    return bool(found)


async def _measure(
    wanted: Sequence[Target],
    request: Request,
    deployment: Deployment,
    rig: Rig,
    console: Console,
) -> None:
    points = grid(request, deployment.planner, rig.gpu)
    open_channel = partial(
        dial, tls=deployment.identity("operator"), expected=deployment.expected("worker")
    )
    profiler = Profiler(rig, request.effort, RealClock(), open_channel)
    with ExitStack() as stack, Progress(console) as bars:
        # All of them now: errors are reported before the first hour, not after it.
        books = [stack.enter_context(_book(target, request, rig)) for target in wanted]
        for target, book in zip(wanted, books, strict=True):
            own = grid_of_texts(request, points) if target.texts else points
            sweep = Sweep(own, target.limits)
            for known in book.measurements:
                sweep.add(known)
            show = partial(bars.show, target)
            await profiler.run(target.model, target.variant, sweep, book, show)


@contextmanager
def _book(target: Target, request: Request, rig: Rig) -> Iterator[Logbook]:
    """Open a variant's logbook; at any end, write its tables from it."""
    gpu_type = rig.gpu.type.name
    machine = rig.fingerprint(datetime.now(UTC).date().isoformat())
    path = target.path(request.out, gpu_type, "jsonl")
    with logbook.opened(path, machine, resume=request.resume) as book:
        try:
            yield book
        finally:
            for suffix in TABLES:
                table = target.path(request.out, gpu_type, suffix)
                write_table(table, book.fingerprint, book.measurements)


def _machine(path: Path) -> str:
    machine = read_fingerprint(path)
    if machine is None:
        return "of an unknown machine"
    simulated = " (simulated)" if machine.simulated else ""
    return (
        f"{machine.product_name}{simulated}, driver {machine.driver or 'unknown'}, CUDA "
        f"{machine.cuda or 'unknown'}, ONNX Runtime {machine.onnxruntime or 'unknown'}, "
        f"{machine.measured_on}"
    )


def _save(
    config: Path, wanted: Sequence[Target], out: Path, deployment: Deployment, gpu_type: str
) -> None:
    """Put measured tables into the deployment file, comments kept."""
    with edited(config) as document:
        for target in wanted:
            variant = document["models"][target.model]["variants"][target.variant]
            before = deployment.models[target.model].variants[target.variant].profile
            if isinstance(before, LanguageProfile):
                variant["profile"] = _language(before, target, out, gpu_type)
                continue
            profile = CommentedMap(
                kind="table",
                path=scalar(beside(config, target.path(out, gpu_type, "parquet"))),
                gpu=scalar(gpu_type),
                gmacs_per_item=before.gmacs_per_item,
            )
            profile.fa.set_flow_style()
            variant["profile"] = profile


def _language(before: LanguageProfile, target: Target, out: Path, gpu_type: str) -> CommentedMap:
    """Return a language model's profile with what was measured on this GPU type."""
    profile = CommentedMap(before.model_dump(exclude_unset=True, exclude={"measured"}))
    here = (gpu_type, target.gpus)
    others = [each for each in before.measured if (each.gpu, each.gpus) != here]
    found = fitted(read_measurements(target.path(out, gpu_type, "csv")), target.gpus)
    profile["measured"] = [CommentedMap(each.model_dump()) for each in (*others, *found)]
    for each in profile["measured"]:
        each.fa.set_flow_style()
    return profile


def _print_use(wanted: Sequence[Target], out: Path, deployment: Deployment, gpu_type: str) -> None:
    """Print the settings with which the planner uses the tables."""
    for target in wanted:
        before = deployment.models[target.model].variants[target.variant].profile
        path = target.path(out, gpu_type, "parquet")
        if target.texts:
            at = f"models.{target.model}.variants.{target.variant}.profile.measured"
            rows = read_measurements(target.path(out, gpu_type, "csv"))
            for steps in fitted(rows, target.gpus):
                said = ", ".join(f"{key}: {value}" for key, value in steps.model_dump().items())
                typer.echo(f"{at}: [{{{said}}}]")
            continue
        typer.echo(
            f"models.{target.model}.variants.{target.variant}.profile: "
            f"{{kind: table, path: {path}, gpu: {gpu_type}, "
            f"gmacs_per_item: {before.gmacs_per_item:g}}}"
        )


def point(value: Point) -> str:
    """Return a point in a few words."""
    clock = f" at {value.clock_mhz} MHz" if value.clock_mhz else ""
    prompts = f" of {value.prompt_tokens} tokens" if value.prompt_tokens else ""
    return f"{value.profile} batch {value.batch_size} x {value.processes}{prompts}{clock}"


def result(value: Measurement) -> str:
    """Return a measurement in a line."""
    where = point(Point.of(value))
    if not value.ran:
        return f"{where}: did not run: {value.reason}"
    if value.prompt_tokens:
        return (
            f"{where}: step {value.step_s * 1e3:.2f} ms, {value.step_j:.3g} J; a token of a prompt "
            f"{value.prompt_token_s * 1e3:.3f} ms, {value.prompt_token_j:.3g} J "
            f"({value.energy_method}), {value.batches} rounds"
        )
    return (
        f"{where}: {value.latency_s * 1e3:.2f} ms (p95 {value.latency_p95_s * 1e3:.2f}), "
        f"{value.throughput_rps:.1f}/s, {value.energy_j / value.batch_size:.3g} J per item "
        f"({value.energy_method}), {value.batches} batches"
    )


class Progress(progress.Progress):
    """A bar per variant; points that turn out not to matter shorten the bar and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[point]}"),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=600,
        )
        self._bars: dict[Target, progress.TaskID] = {}

    def show(self, target: Target, step: ProfileProgress) -> None:
        """Show the progress of a variant."""
        name = f"{target.model}/{target.variant}"
        if target not in self._bars:
            self._bars[target] = self.add_task(name, completed=step.done, point="")
        if step.last is not None:
            self.console.print(f"{name}  {result(step.last)}", highlight=False, soft_wrap=True)
        self.update(
            self._bars[target],
            completed=step.done,
            total=step.done + step.remaining,
            point=point(step.point) if step.point is not None else "done",
        )
