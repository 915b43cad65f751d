"""Tables of a status, `status.document`."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.cli.console.names import Namer, namer
from services.cli.console.output import condition_line, table
from services.cli.console.quantities import alternatives, carbon, duration, energy, percent
from services.cli.console.slice_bars import SliceCells, bar, labels
from services.cli.status.document import Row
from services.kit.plurals import counted

_POOR = ("held", "assumed")
_NO_VARIANT = Row(variant="none yet", share=0.0, instances=0, connected=0)


def render(status: Row) -> RenderableType:
    """Return the tables, problems last."""
    parts: list[RenderableType] = []
    if status.zones:
        parts.append(_zones(status))
    if status.gpus:
        parts += [gpu_table(status.gpus), gpu_bars(status.gpus)]
    if status.models:
        parts.append(_models(status))
    parts += _summary(status)
    parts += [_condition(each) for each in status.conditions]
    parts += [Text(problem, style="red") for problem in status.problems]
    return Group(*parts)


def _condition(row: Row) -> Text:
    known = Condition(ConditionKind[row.kind], row.subject, row.sentence, row.setting)
    return condition_line(known)


def _zones(status: Row) -> Table:
    rows = table(
        "Zones (gCO2e/kWh)",
        "zone", "signal", ">CI now", ">ACI", ">CIR", ">age", "known", "source",
    )  # fmt: skip
    for zone in status.zones:
        rows.add_row(
            zone.zone,
            zone.signal,
            *_figures(zone),
            duration(zone.staleness_s),
            Text(zone.provenance, style="yellow" if zone.provenance in _POOR else ""),
            Text(zone.source),
        )
    return rows


def _figures(zone: Row) -> tuple[str, str, str]:
    if zone.percentile is not None:
        return f"{zone.percentile:.0f} %ile", "-", "-"
    return (
        f"{zone.intensity_gco2e_per_kwh:.1f}",
        f"{zone.average_gco2e_per_kwh:.1f}",
        f"{zone.ratio:.2f}",
    )


def gpu_table(gpus: Sequence[Row], *, detailed: bool = False) -> Table:
    """Return a row for each slice.

    Args:
        gpus: As `document.gpus_of` returns them.
        detailed: Show clocks, MIG modes and segments, too.
    """
    simulated = " (simulated)" if all(gpu.simulated for gpu in gpus) else ""
    runs = namer((each.model, each.variant, each.stage) for gpu in gpus for each in gpu.slices)
    columns = ["GPU", "type", ">power", ">energy", "slice", "runs", ">batch", "state"]
    if detailed:
        columns[3:4] = [">clock MHz", "MIG"]
        columns.append("segment")
    rows = (row for gpu in gpus for row in _rows_of_gpu(gpu, runs, detailed=detailed))
    return table(f"GPUs{simulated}", *columns, rows=rows)


def _rows_of_gpu(gpu: Row, runs: Namer, *, detailed: bool) -> Iterator[tuple[str, ...]]:
    head = [f"{gpu.node}/{gpu.index}", gpu.type, f"{gpu.power_w:.0f} W"]
    if detailed:
        held = " held" if gpu.locked_clock_mhz else ""
        mode = "on" if gpu.mig_enabled else "off"
        head += [f"{gpu.clock_mhz}/{gpu.max_clock_mhz}{held}", mode]
    else:
        head.append(energy(gpu.energy_j))
    for each in gpu.slices or [None]:
        cells = ["-"] * 5
        if each is not None:
            cells[0], cells[3] = each.placement, _state(each)
            if each.model:
                cells[1] = runs(each.model, each.variant, each.stage)
                cells[2] = f"{each.batch_size}x{each.processes}"
                cells[4] = each.segment_id
        yield (*head, *(cells if detailed else cells[:4]))
        head = [""] * len(head)


def _state(piece: Row) -> str:
    """Return a segment's state, and on a GPU its execution provider."""
    provider = piece.execution_provider.removesuffix("ExecutionProvider")
    shown = f" ({provider})" if provider not in ("", "CPU") else ""
    return f"{piece.state or '-'}{shown}"


def gpu_bars(gpus: Sequence[Row]) -> Table:
    """Return one bar per GPU, a cell for each compute slice."""
    rows = Table.grid(padding=(0, 2))
    known = labels(f"{s.model}/{s.variant}" for g in gpus for s in g.slices if s.model)
    rows.add_row()
    for gpu in gpus:
        pieces = (
            SliceCells(s.start, s.compute_slices, f"{s.model}/{s.variant}" if s.model else "")
            for s in gpu.slices
        )
        rows.add_row(f"{gpu.node}/{gpu.index}", bar(gpu.compute_slices, pieces, known))
    return rows


def _models(status: Row) -> Table:
    return table(
        "Models",
        *("model", "variant", ">share", ">up", ">p50/p95/SLO ms"),
        *(">req/s", ">queue", ">answered", ">fail/late"),
        rows=(row for model in status.models for row in _rows_of_model(model)),
    )


def _rows_of_model(model: Row) -> Iterator[tuple[str, ...]]:
    latencies = (model.p50_s, model.p95_s, model.slo_latency_s)
    head = model.model
    bad = f"{model.failed}/{model.late}"
    counts = (f"{model.rate_rps:.1f}", model.queue_depth, model.answered, bad)
    numbers = (
        "/".join("-" if each is None else f"{each * 1e3:.0f}" for each in latencies),
        *map(str, counts),
    )
    for variant in model.variants or (_NO_VARIANT,):
        workers = f"{variant.connected}/{variant.instances}"
        yield (head, variant.variant, f"{variant.share:.0%}".replace("%", " %"), workers, *numbers)
        head, numbers = "", ("",) * 5


def _summary(status: Row) -> list[RenderableType]:
    lines: list[RenderableType] = [Text()]
    if status.pues:
        pues = (f"{p.node} {p.pue:.2f}{' (measured)' if p.measured else ''}" for p in status.pues)
        lines.append(Text(f"PUE: {', '.join(pues)}"))
    lines += [Text(_tokens(each)) for each in status.models if each.output_tokens]
    lines += [Text(_predictions(each)) for each in status.lengths if each.predictions]
    lines += [Text(_profile(drift), style="yellow") for drift in status.drifts]
    if status.plan is not None:
        plan = status.plan
        lines.append(Text(f"plan {plan.version} ({plan.strategy}, {plan.state}): {plan.reason}"))
        lines += _parked(status.gpus, plan)
        if plan.empty_nodes:
            lines.append(Text(f"empty nodes: {', '.join(plan.empty_nodes)}"))
        if plan.wanted_gpus:
            wanted = alternatives(plan.wanted_gpus)
            lines.append(Text(f"wanted to serve all: {wanted}", style="yellow"))
    if len(set(status.digests.values())) > 1:
        read = ", ".join(f"{name} {digest}" for name, digest in status.digests.items())
        text = f"deployment files differ: {read}; SIGHUP has a service read its file again"
        lines.append(Text(text, style="yellow"))
    if status.leader is not None:
        lines.append(Text(f"planner: {status.leader.holder} leads, term {status.leader.term}"))
    if status.totals is not None:
        used = f"{energy(status.totals.energy_j)}, {carbon(status.totals.carbon_gco2e)}"
        lines.append(Text(f"account: {used}"))
    return lines


def _parked(gpus: Iterable[Row], plan: Row) -> Iterator[Text]:
    """Yield the GPUs that the plan leaves empty, and their power."""
    empty = [gpu for gpu in gpus if gpu.uuid in plan.parked]
    if empty:
        names = ", ".join(f"{gpu.node}/{gpu.index}" for gpu in empty)
        yield Text(f"parked: {names}; {sum(gpu.power_w for gpu in empty):.0f} W, could be cut")


def _profile(drift: Row) -> str:
    """Return the drift of a profile, and the command that measures it again."""
    name = f"{drift.model}/{drift.variant}"
    return (
        f"profile of {name} on {drift.gpu} {drift.slice} ({drift.batch_size}x{drift.processes}) is "
        f"wrong: latency {drift.latency_ratio:.2f} x, energy {drift.energy_ratio:.2f} x; measure "
        f"it: cinquefoil gpuagent profile {name} --node {drift.node} --slices {drift.slice}"
    )


def _tokens(model: Row) -> str:
    """Return a language model's rate, and the cost of a token since the router's start."""
    per_token = f"{model.energy_j / model.output_tokens:.3g} J"
    if model.carbon_gco2e:
        per_token += f", {carbon(model.carbon_gco2e / model.output_tokens)}"
    return (
        f"tokens of {model.model}: {model.output_tokens_per_s:.1f}/s; {model.input_tokens} in, "
        f"{model.output_tokens} out; {per_token} for each of the latter"
    )


def _predictions(lengths: Row) -> str:
    """Return the quality of a model's predicted lengths."""
    right = "none judged" if lengths.class_right is None else percent(lengths.class_right)
    return (
        f"lengths of {lengths.model}: {lengths.predictions} predicted, {lengths.cache_hits} by the "
        f"cache of {counted(lengths.prompts, 'prompt')}; class right: {right}"
    )
