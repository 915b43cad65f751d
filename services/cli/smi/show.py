"""A node's GPUs: a summary, or one of `nvidia-smi`'s lists, from one survey."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.console.output import print_json, table
from services.cli.console.quantities import energy
from services.cli.smi import nvidia
from services.gpuagent.survey import Gauges, SurveyedGpu, survey
from services.kit.config.loader import load

_MODES = {0: "off", 1: "on"}

_LISTS = (nvidia.gpus_and_devices, nvidia.gpu_instances, nvidia.profiles, nvidia.placements)
"""What `nvidia-smi` prints with -L, -lgi, -lgip and -lgipp."""


def show(config: Path, node: str, listing: int | None, *, as_json: bool) -> None:
    """Print the GPUs of a node.

    Args:
        config: Deployment file.
        node: The node's name: one of the file's, or of this machine's that joined.
        listing: Print this one of `_LISTS`; None: a summary.
        as_json: Print everything as JSON instead.

    Raises:
        ServiceError: The GPUs cannot be read.
    """
    deployment = load(config)
    settings = deployment.nodes.get(node) or deployment.join or deployment.nodes[node]
    gpus = survey(node, settings)
    if as_json:
        print_json({"node": node, "gpus": gpus})
    elif listing is not None:
        typer.echo("\n".join(_LISTS[listing](gpus)))
    else:
        Console().print(summary(node, gpus, simulated=settings.simulated is not None))


def summary(node: str, gpus: Sequence[SurveyedGpu], *, simulated: bool) -> RenderableType:
    """Return the tables, and what the process was not allowed to see."""
    parts: list[RenderableType] = [_gpus(node, gpus, simulated=simulated)]
    slices = _slices(gpus)
    if slices.row_count:
        parts.append(slices)
    if not all(gpu.may_look for gpu in gpus):
        parts.append(
            Text(
                "\nGPU instances are not shown: reading them needs root, or in a container "
                "NVIDIA_MIG_MONITOR_DEVICES=all",
                style="yellow",
            )
        )
    return Group(*parts)


def _gpus(node: str, gpus: Sequence[SurveyedGpu], *, simulated: bool) -> Table:
    title = f"GPUs of {node}{' (simulated)' if simulated else ''}"
    rows = table(title, ">", "GPU", "MIG", ">SM clock MHz", ">power W", ">energy", ">memory MiB")
    for gpu in gpus:
        if gpu.gauges is None:
            rows.add_row(str(gpu.index), Text("lost", style="red"), *("-",) * 5)
        else:
            rows.add_row(str(gpu.index), gpu.name, *_cells(gpu.gauges))
    return rows


def _cells(gauges: Gauges) -> Iterator[str]:
    yield _mode(gauges.mig)
    yield f"{gauges.clock_mhz}/{gauges.max_clock_mhz}"
    yield f"{gauges.power_w:.0f}/{gauges.power_limit_w:.0f}"
    yield "-" if gauges.energy_mj is None else energy(gauges.energy_mj / 1e3)
    yield "-" if gauges.memory_mib is None else f"{gauges.memory_used_mib}/{gauges.memory_mib}"


def _mode(mode: tuple[int, int] | None) -> str:
    if mode is None:
        return "none"
    current, pending = (_MODES[each] for each in mode)
    return current if current == pending else f"{current}, {pending} pending"


def _slices(gpus: Sequence[SurveyedGpu]) -> Table:
    columns = (">GPU", "slice", ">start:size", "segment", "serves", ">processes")
    rows = ((str(gpu.index), *row) for gpu in gpus for row in _rows(gpu))
    return table("Slices", *columns, rows=rows)


def _rows(gpu: SurveyedGpu) -> Iterator[tuple[str, ...]]:
    """Yield the GPU's slices; an uncut GPU is one only where something runs on it."""
    instances = {found.id: f"{found.start}:{found.size}" for found in gpu.instances}
    where = {each.uuid: (each.name, instances.get(each.instance_id, "?")) for each in gpu.devices}
    tenants = {tenant.slice_uuid: tenant for tenant in gpu.tenants}
    if gpu.uuid in tenants:
        where[gpu.uuid] = ("whole", "-")
    for uuid, (name, place) in sorted(where.items(), key=lambda entry: entry[1][1]):
        tenant = tenants.get(uuid)
        runs = (tenant.segment_id, tenant.serves or "-", str(len(tenant.pids))) if tenant else ()
        yield (name, place, *(runs or ("-", "-", "-")))
    bare = set(instances) - {each.instance_id for each in gpu.devices}
    for found in (entry for entry in gpu.instances if entry.id in bare):
        yield (found.name, instances[found.id], "no compute instance", "-", "-")
