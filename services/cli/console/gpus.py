"""GPUs of nodes as a table: a row for each slice, with what runs there; and as bars."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu, GpuEnergy, Node, Segment
from cinquefoil.planner.v1.planner_pb2 import FleetNode
from services.cli.console.messages import word
from services.cli.console.names import Namer, namer, slice_name
from services.cli.console.output import table
from services.cli.console.quantities import energy
from services.cli.console.slice_bars import SliceCells, bar, labels


def gpu_table(nodes: Sequence[FleetNode], *, detailed: bool = False) -> Table:
    """Return the GPUs and what runs on their slices.

    Args:
        nodes: The nodes; their latest energy gives the power.
        detailed: Also show MIG modes, clocks and segments.
    """
    simulated = " (simulated)" if all(each.node.simulated for each in nodes) else ""
    runs = namer(
        (each.spec.model, each.spec.variant, each.spec.stage)
        for node in nodes
        for each in node.node.segments
    )
    columns = ["GPU", "type", ">power", ">energy", "slice", "runs", ">batch", "state"]
    if detailed:
        columns[3:4] = [">clock MHz", "MIG"]
        columns.append("segment")
    rows = (
        row
        for node in nodes
        for gpu in by_index(node.node)
        for row in _rows(node, gpu, runs, detailed=detailed)
    )
    return table(f"GPUs{simulated}", *columns, rows=rows)


def gpu_bars(nodes: Sequence[FleetNode]) -> Table:
    """Return a bar per GPU, a cell for each compute slice."""
    rows = Table.grid(padding=(0, 2))
    specs = [segment.spec for node in nodes for segment in node.node.segments]
    known = labels(f"{spec.model}/{spec.variant}" for spec in specs)
    rows.add_row()
    for node in nodes:
        for gpu in by_index(node.node):
            cells = compute_slices(gpu)
            rows.add_row(
                f"{node.node.name}/{gpu.index}", bar(cells, slice_cells(node.node, gpu), known)
            )
    return rows


def slice_cells(node: Node, gpu: Gpu) -> Iterator[SliceCells]:
    """Yield a GPU's slices, with what runs on each."""
    widths = {kind.name: kind.compute_slices for kind in gpu.type.profiles}
    running = _running(node, gpu)
    for each in gpu.slices:
        found = running.get(slice_name(each.placement))
        runs = f"{found.spec.model}/{found.spec.variant}" if found else ""
        width = widths.get(each.placement.profile, compute_slices(gpu))
        yield SliceCells(each.placement.start, width, runs)


def compute_slices(gpu: Gpu) -> int:
    """Return how many compute slices a GPU has."""
    return max((kind.compute_slices for kind in gpu.type.profiles), default=1)


def by_index(node: Node) -> Iterable[Gpu]:
    """Return a node's GPUs in order of index."""
    return sorted(node.gpus, key=lambda gpu: gpu.index)


def _running(node: Node, gpu: Gpu) -> dict[str, Segment]:
    return {
        slice_name(each.spec.placement): each
        for each in node.segments
        if each.spec.gpu_uuid == gpu.uuid
    }


def _rows(of: FleetNode, gpu: Gpu, runs: Namer, *, detailed: bool) -> Iterator[tuple[str, ...]]:
    account = next((each for each in of.energy if each.gpu_uuid == gpu.uuid), GpuEnergy())
    head = [f"{of.node.name}/{gpu.index}", gpu.type.name, f"{account.power_w:.0f} W"]
    if detailed:
        held = " held" if gpu.locked_clock_mhz else ""
        mode = "on" if gpu.mig_enabled else "off"
        head += [f"{gpu.clock_mhz}/{gpu.type.max_clock_mhz}{held}", mode]
    else:
        head.append(energy(account.total_j))
    running = _running(of.node, gpu)
    for name in [slice_name(each.placement) for each in gpu.slices] or ["-"]:
        segment = running.get(name)
        cells = ("-",) * 3 if segment is None else _segment(segment, runs)
        yield (*head, name, *cells, *([segment.spec.segment_id if segment else "-"] * detailed))
        head = [""] * len(head)


def _segment(segment: Segment, runs: Namer) -> tuple[str, str, str]:
    """Return what runs, its batch size and processes, and its state with what computes."""
    spec, provider = segment.spec, segment.execution_provider.removesuffix("ExecutionProvider")
    computes = f" ({provider})" if provider not in ("", "CPU") else ""
    state = word(Segment.DESCRIPTOR.fields_by_name["state"].enum_type, segment.state)
    name = runs(spec.model, spec.variant, spec.stage)
    return name, f"{spec.batch_size}x{spec.processes}", f"{state}{computes}"
