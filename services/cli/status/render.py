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
from services.cli.grid.show import site_line
from services.cli.reasons import PlannerView
from services.cli.regions.rows import region_line
from services.cli.status.document import Row
from services.kit.plurals import counted

_POOR = ("held", "assumed")
_GIVEN = {"synthetic": "made up", "static": "stated"}
"""Provenance of values that are not measured, by their source."""


def render(status: Row) -> RenderableType:
    """Return the tables, problems last."""
    parts: list[RenderableType] = []
    if status.zones:
        parts.append(_zones(status))
    if status.gpus:
        parts += [gpu_table(status.gpus), gpu_bars(status.gpus)]
    if status.models:
        parts += [_models(status), *_serving(status)]
    parts += _summary(status)
    parts += [condition_line(_known(each)) for each in status.conditions]
    parts += [Text(problem, style="red") for problem in status.problems]
    return Group(*parts)


def _known(row: Row) -> Condition:
    return Condition(ConditionKind[row.kind], row.subject, row.sentence, row.setting)


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
            duration(zone.age_s),
            Text(_known_how(zone), style="yellow" if zone.provenance in _POOR else ""),
            zone.source,
        )
    return rows


def _known_how(zone: Row) -> str:
    fresh = zone.provenance not in _POOR
    return _GIVEN.get(zone.source, zone.provenance) if fresh else str(zone.provenance)


def _figures(zone: Row) -> tuple[str, str, str]:
    if zone.percentile is not None:
        return f"{zone.percentile:.0f} %ile", "", ""
    return (
        f"{zone.intensity_gco2e_per_kwh:.1f}",
        f"{zone.average_gco2e_per_kwh:.1f}",
        f"{zone.ratio:.2f}",
    )


def gpu_table(gpus: Sequence[Row], *, detailed: bool = False) -> RenderableType:
    """Return the GPUs with a row for each slice.

    Args:
        gpus: As `document.gpus_of` returns them.
        detailed: Show clocks, MIG modes and segments, too: GPUs and slices in tables of their own.
    """
    simulated = " (simulated)" if all(gpu.simulated for gpu in gpus) else ""
    runs = namer((each.model, each.variant, each.stage) for gpu in gpus for each in gpu.slices)
    if detailed:
        heads = ("GPU", "type", ">power", ">energy", ">clock MHz", "MIG")
        rows = ((*_head(gpu), _clock(gpu), "on" if gpu.mig_enabled else "off") for gpu in gpus)
        slices = ((_name(gpu), *row) for gpu in gpus for row in _slices(gpu, runs))
        heads_below = ("GPU", "slice", "runs", ">batch", "state", "segment")
        return Group(
            table(f"GPUs{simulated}", *heads, rows=rows), table("Slices", *heads_below, rows=slices)
        )
    columns = ("GPU", "type", ">power", ">energy", "slice", "runs", ">batch", "state")
    return table(f"GPUs{simulated}", *columns, rows=(r for gpu in gpus for r in _rows(gpu, runs)))


def _name(gpu: Row) -> str:
    return f"{gpu.node}/{gpu.index}"


def _head(gpu: Row) -> tuple[str, ...]:
    return _name(gpu), gpu.type, f"{gpu.power_w:.0f} W", energy(gpu.energy_j)


def _clock(gpu: Row) -> str:
    held = " held" if gpu.locked_clock_mhz else ""
    return f"{gpu.clock_mhz}/{gpu.max_clock_mhz}{held}"


def _rows(gpu: Row, runs: Namer) -> Iterator[tuple[str | Text, ...]]:
    head: tuple[str, ...] = _head(gpu)
    for row in _slices(gpu, runs):
        yield (*head, *row[:-1])
        head = ("", "", "", "")


def _slices(gpu: Row, runs: Namer) -> Iterator[tuple[str | Text, ...]]:
    """Yield slice, segment, batch, state and id; of a GPU without slices, a row that says so.

    Ids and places are whole in narrow columns, too: commands take them.
    """
    if not gpu.slices:
        yield ("not cut", "", "", "", "")
    for each in gpu.slices:
        if each.model:
            name, batch = runs(each.model, each.variant, each.stage), each.batch_size
            size, place = f"{batch}x{each.processes}", Text(each.placement)
            yield place, name, size, _state(each), Text(each.segment_id)
        else:
            yield Text(each.placement), "free", "", "", ""


def _state(piece: Row) -> str:
    """Return a segment's state, and on a GPU its execution provider."""
    provider = piece.execution_provider.removesuffix("ExecutionProvider")
    shown = f" ({provider})" if provider not in ("", "CPU") else ""
    return f"{piece.state}{shown}"


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
        *("model", ">p50/p95/SLO\nms", ">req/s", ">queue", ">answered", ">failed/\nlate"),
        rows=map(_model, status.models),
    )


def _model(model: Row) -> tuple[str, ...]:
    slo = f"{model.slo_latency_s * 1e3:.0f}"
    seen = [f"{each * 1e3:.0f}" for each in (model.p50_s, model.p95_s) if each is not None]
    return (
        model.model,
        "/".join([*seen, slo]) if seen else f"SLO {slo}",
        f"{model.rate_rps:.1f}",
        str(model.queue_depth),
        str(model.answered),
        f"{model.failed}/{model.late}",
    )


def _serving(status: Row) -> Iterator[RenderableType]:
    """Yield the variants that serve, and a line for each model of which none does.

    A condition of the model itself stands among the others, and says it.
    """
    rows = [
        (
            f"{model.model}/{each.variant}",
            f"{each.share:.0%}".replace("%", " %"),
            f"{each.connected}/{each.instances}",
        )
        for model in status.models
        for each in model.variants
    ]
    if rows:
        yield table("Serving", "variant", ">share", ">workers\nconnected", rows=rows)
    yield from (Text(_waiting(model)) for model in status.models if model.waiting)
    view, explained = _view(status), {each.subject for each in status.conditions}
    for model in status.models:
        if not model.variants and f"model/{model.model}" not in explained:
            why = view.why_unserved(model.model)
            yield Text(f"{model.model} is not served: {why}", style="yellow")
    if not any(model.answered for model in status.models):
        name = status.models[0].model
        yield Text(f"No request has been answered yet (run: cinquefoil load {name}).")


def _view(status: Row) -> PlannerView:
    rolling = status.plan is not None and status.plan.state in ("proposed", "rolling")
    away = "the planner does not answer (run: cinquefoil doctor)"
    return PlannerView(
        tuple(map(_known, status.conditions)),
        status.plan.version if rolling else 0,
        away if status.totals is None else "",
    )


def _summary(status: Row) -> list[RenderableType]:
    lines: list[RenderableType] = [Text()]
    if status.pues:
        pues = (f"{p.node} {p.pue:.2f}{' (measured)' if p.measured else ''}" for p in status.pues)
        lines.append(Text(f"PUE: {', '.join(pues)}"))
    lines += [Text(_tokens(each)) for each in status.models if each.output_tokens]
    lines += [Text(_predictions(each)) for each in status.lengths if each.predictions]
    if status.batches:
        waiting = sum(each.lines - each.completed - each.failed for each in status.batches)
        opened = counted(len(status.batches), "file")
        lines.append(Text(f"batches: {counted(waiting, 'request')} of {opened} wait"))
    lines += [Text(each.sentence) for each in status.grid_events]
    lines += [site_line(each) for each in status.sites]
    lines += [Text(region_line(each)) for each in status.regions if not each.here]
    lines += [Text(each.sentence) for each in status.carbon_budgets]
    lines += [Text(_profile(drift), style="yellow") for drift in status.drifts]
    lines += _plan(status)
    if len(set(status.digests.values())) > 1:
        read = ", ".join(f"{name} {digest}" for name, digest in status.digests.items())
        text = f"deployment files differ: {read}; SIGHUP has a service read its file again"
        lines.append(Text(text, style="yellow"))
    if status.leader is not None:
        lines += _planners(status)
    if status.totals is not None:
        used = f"{energy(status.totals.energy_j)}, {carbon(status.totals.carbon_gco2e)}"
        priced = status.totals.cost_eur_per_h
        cost = f"; now {priced:.3g} EUR/h" if priced is not None else ""
        lines.append(Text(f"account: {used}{cost}"))
    return lines


def _planners(status: Row) -> Iterator[Text]:
    """Yield who leads and, of several planners, who stands by; without any the next fault stops."""
    leader, standings = status.leader, status.planners
    yield Text(f"planner: {leader.holder} leads, term {leader.term}")
    if standings:
        text = ", ".join(f"{address} {standing}" for address, standing in standings.items())
        alone = "stands by" not in standings.values()
        yield Text(
            f"planners: {text}{': none stands by' if alone else ''}",
            style="yellow" if alone else "",
        )


def _plan(status: Row) -> list[Text]:
    """Return lines on the newest plan, or why there is none."""
    plan = status.plan
    if plan is None:
        if status.totals is None:
            return []
        if status.plans_nothing:
            return [Text("no plan: others' servers answer every model")]
        return [Text(f"no plan yet: {_view(status).why_no_plan()}", style="yellow")]
    lines = [Text(f"plan {plan.version} ({plan.strategy}, {plan.state}): {plan.reason}")]
    lines += [Text(f"accuracy: {plan.accuracy}")] if plan.accuracy else []
    lines += _parked(status.gpus, plan)
    if plan.empty_nodes:
        lines.append(Text(f"empty nodes: {', '.join(plan.empty_nodes)}"))
    if plan.wanted_gpus:
        wanted = alternatives(plan.wanted_gpus)
        lines.append(Text(f"wanted to serve all: {wanted}", style="yellow"))
    return lines


def _parked(gpus: Iterable[Row], plan: Row) -> Iterator[Text]:
    """Yield the GPUs that the plan leaves empty, and their power."""
    empty = [gpu for gpu in gpus if gpu.uuid in plan.parked]
    if empty:
        names = ", ".join(f"{gpu.node}/{gpu.index}" for gpu in empty)
        watts = sum(gpu.power_w for gpu in empty)
        yield Text(f"parked: {names}; {watts:.0f} W, which could be switched off")


def _profile(drift: Row) -> str:
    """Return the drift of a profile, and the command that measures it again."""
    name = f"{drift.model}/{drift.variant}"
    return (
        f"profile of {name} on {drift.gpu} {drift.slice} ({drift.batch_size}x{drift.processes}) is "
        f"wrong: latency {drift.latency_ratio:.2f} x, energy {drift.energy_ratio:.2f} x; measure "
        f"it: cinquefoil gpuagent profile {name} --node {drift.node} --slices {drift.slice}"
    )


def _waiting(model: Row) -> str:
    """Return the requests of a model that can wait, and their energy since the router's start."""
    its = model.waiting
    why = f" ({its.held_by})" if its.queued and its.held_by else ""
    return (
        f"requests of {model.model} that can wait: {its.queued} queued{why}, {its.in_flight} of "
        f"{its.room} run, {its.answered} answered; {energy(its.energy_j)}, of which "
        f"{energy(its.marginal_energy_j)} would not have been used without them"
    )


def _tokens(model: Row) -> str:
    """Return a language model's rate, and the cost of a token since the router's start."""
    count, total_j = model.output_tokens, model.energy_j + model.idle_energy_j
    per_token = f"{model.energy_j / count:.3g} J active, {total_j / count:.3g} J with idle"
    if model.carbon_total_gco2e:
        per_token += f", {carbon(model.carbon_total_gco2e / count)}"
    return (
        f"tokens of {model.model}: {model.output_tokens_per_s:.1f}/s; {model.input_tokens} in, "
        f"{count} out; of each of the latter {per_token}"
    )


def _predictions(lengths: Row) -> str:
    """Return the quality of a model's predicted lengths."""
    right = "none judged" if lengths.class_right is None else percent(lengths.class_right)
    return (
        f"lengths of {lengths.model}: {lengths.predictions} predicted, {lengths.cache_hits} by the "
        f"cache of {counted(lengths.prompts, 'prompt')}; class right: {right}"
    )
