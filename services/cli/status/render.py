"""Tables of a status."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.status.view import Gpu, Model, Status
from services.cli.words import carbon, energy, milliseconds, percent


def render(status: Status) -> RenderableType:
    """Return the tables, problems last."""
    parts: list[RenderableType] = []
    if status.zones:
        parts.append(_zones(status))
    if status.gpus:
        parts.append(_gpus(status))
    if status.models:
        parts.append(_models(status))
    parts += _summary(status)
    parts += [Text(problem, style="red") for problem in status.problems]
    return Group(*parts)


def _zones(status: Status) -> Table:
    table = Table("zone", "signal", title="Zones (gCO2e/kWh)", title_justify="left")
    for name in ("CI now", "ACI", "CIR"):
        table.add_column(name, justify="right")
    table.add_column("source")
    for row in status.zones:
        table.add_row(
            row.zone,
            row.signal,
            f"{row.intensity_gco2e_per_kwh:.1f}",
            f"{row.average_gco2e_per_kwh:.1f}",
            f"{row.ratio:.2f}",
            Text(row.source),
        )
    return table


def _gpus(status: Status) -> Table:
    table = Table("node", "GPU", "type", title="GPUs", title_justify="left")
    table.add_column("power", justify="right")
    table.add_column("energy", justify="right")
    for name in ("slice", "runs", "batch x procs", "state"):
        table.add_column(name)
    for gpu in status.gpus:
        _add_gpu(table, gpu)
        table.add_section()
    return table


def _add_gpu(table: Table, gpu: Gpu) -> None:
    node = gpu.node if gpu.connected else f"{gpu.node} (away)"
    kind = f"{gpu.type} (simulated)" if gpu.simulated else gpu.type
    head = (node, str(gpu.index), kind, f"{gpu.power_w:.0f} W", energy(gpu.energy_j))
    if not gpu.slices:
        table.add_row(*head, "-", "-", "-", "-")
    for slice_ in gpu.slices:
        runs = f"{slice_.model}/{slice_.variant}" if slice_.model else "-"
        size = f"{slice_.batch_size} x {slice_.processes}" if slice_.model else "-"
        table.add_row(*head, slice_.placement, runs, size, slice_.state or "-")
        head = ("", "", "", "", "")


def _models(status: Status) -> Table:
    table = Table("model", "variant", title="Models", title_justify="left")
    for name in ("share", "workers", "p50", "p95", "SLO", "queue", "answered", "failed", "late"):
        table.add_column(name, justify="right")
    for model in status.models:
        _add_model(table, model)
        table.add_section()
    return table


def _add_model(table: Table, model: Model) -> None:
    numbers = (
        milliseconds(model.p50_s),
        milliseconds(model.p95_s),
        milliseconds(model.slo_latency_s),
        str(model.queue_depth),
        str(model.answered),
        str(model.failed),
        str(model.late),
    )
    name = model.model
    for variant in model.variants:
        workers = f"{variant.connected}/{variant.instances}"
        table.add_row(name, variant.variant, percent(variant.share), workers, *numbers)
        name, numbers = "", ("",) * 7
    if not model.variants:
        table.add_row(name, "none yet", "-", "-", *numbers)


def _summary(status: Status) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if status.away:
        lines.append(Text(f"away: {', '.join(status.away)}", style="yellow"))
    if status.plan is not None:
        plan = status.plan
        lines.append(Text(f"plan {plan.version} ({plan.strategy}, {plan.state}): {plan.reason}"))
    if status.totals is not None:
        used = f"{energy(status.totals.energy_j)}, {carbon(status.totals.carbon_gco2e)}"
        lines.append(Text(f"account: {used}"))
    return lines
