"""Plans as tables."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cinquefoil.planner.v1.plan_pb2 import Plan, PlannedSegment, PlanState
from services.cli.console.names import GpuNames, gpu_name, namer, slice_name, word
from services.cli.console.output import table as new_table
from services.cli.console.quantities import (
    alternatives,
    carbon,
    duration,
    energy,
    milliseconds,
    percent,
)
from services.cli.plan.deviation import Measure, largest, measures
from services.kit.plurals import counted
from services.kit.units import J_PER_KWH

_STYLES: Final = {"failed": "red", "active": "green", "rolling": "yellow"}

_MEASURES: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "power_w": ("power", "{:.0f} W".format),
    "carbon_gco2e_per_h": ("emissions per hour", carbon),
    "latency_s": ("latency", milliseconds),
    "accuracy": ("accuracy", "{:.4f}".format),
}


def table(plans: Iterable[Plan], pinned_version: int = 0, pinned_by: str = "") -> RenderableType:
    """Return some lines per plan: what it expected, what was seen, and the deviation.

    Of several models, the one that deviates most is shown.
    """
    rows = new_table(
        "",
        *("plan", "made (UTC)"),
        *(">latency", ">accuracy", ">power", ">per hour", "because"),
    )
    for plan in plans:
        found = measures(plan)
        held = " pinned" if plan.version == pinned_version else ""
        rows.add_row(
            Text.assemble(f"{plan.version}{held}\n", state(plan)),
            f"{plan.created_at.ToDatetime():%m-%d %H:%M:%S}\n{plan.strategy}",
            _pair(largest(found, "latency_s"), milliseconds),
            _pair(largest(found, "accuracy"), "{:.4g}".format),
            _pair(largest(found, "power_w"), "{:.0f} W".format),
            _pair(largest(found, "carbon_gco2e_per_h"), carbon),
            Text(plan.reason),
        )
    for column in rows.columns[:2]:
        column.no_wrap = True
    if not rows.row_count:
        return Text("No plan yet.")
    if not pinned_by:
        return rows
    return Group(rows, Text(f"Plan {pinned_version} is held by {pinned_by}."))


def _pair(measure: Measure | None, words: Callable[[float], str]) -> str:
    """Return what was expected, below it what was seen, and by how much that differs."""
    if measure is None:
        return "-"
    lines = [words(measure.expected)]
    if measure.seen is not None:
        lines += [words(measure.seen), _percent(measure.deviation)]
    return "\n".join(filter(None, lines))


def _percent(deviation: float | None) -> str:
    return "" if deviation is None else f"{deviation:+.0%}".replace("%", " %")


def one(plan: Plan, gpus: GpuNames) -> RenderableType:
    """Return why a plan was made, what it expected, what came of it, and what runs where."""
    made = f"{plan.created_at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
    parts: list[RenderableType] = [
        Text.assemble(
            (f"Plan {plan.version}", "bold"), f" by {plan.strategy}, {made}: ", state(plan)
        ),
        Text(f"because {plan.reason}"),
        Text(
            f"rollout: {counted(plan.steps, 'step')}, {counted(plan.slice_changes, 'slice')} "
            "created or destroyed; "
            f"solved in {plan.prediction.solve_s:.2f} s, gap {_gap(plan)}"
        ),
    ]
    if plan.degraded:
        parts.append(Text(f"degraded: {plan.degraded}", style="yellow"))
    if plan.failure:
        parts.append(Text(plan.failure, style="red"))
    return Group(*parts, _known(plan), _expected(plan), _segments(plan, gpus))


def _known(plan: Plan) -> Table:
    rows = new_table("Known when it was made", "input", "value")
    for zone, intensity in sorted(plan.inputs.intensity_gco2e_per_kwh.items()):
        rows.add_row(f"intensity {zone}", f"{intensity:.1f} gCO2e/kWh{_age(plan, zone)}")
    for model, demand_rps in sorted(plan.inputs.demand_rps.items()):
        rows.add_row(f"demand {model}", f"{demand_rps:.1f} req/s{_forecast(plan, model)}")
    for gpu, count in sorted(plan.inputs.gpus.items()):
        rows.add_row(f"GPUs {gpu}", str(count))
    rows.add_row("carbon weight", f"{plan.inputs.carbon_weight:g}")
    rows.add_row("accuracy floor", percent(plan.inputs.accuracy_floor))
    for goal, weight in plan.inputs.goals.ListFields():
        rows.add_row(f"goal {goal.name}", f"{weight:g}")
    return rows


def _age(plan: Plan, zone: str) -> str:
    if zone not in plan.inputs.staleness_s:
        return ""
    return f" ({duration(plan.inputs.staleness_s[zone])} old)"


def _forecast(plan: Plan, model: str) -> str:
    if model not in plan.inputs.load_forecast:
        return ""
    of = plan.inputs.load_forecast[model]
    return f" (forecast {of.mean_rps:.1f}, {of.low_rps:.1f}..{of.high_rps:.1f})"


def _expected(plan: Plan) -> Table:
    rows = new_table("Expected, and what came of it", "", ">expected", ">seen", ">deviation")
    for measure in measures(plan):
        label, words = _MEASURES[measure.name]
        rows.add_row(
            f"{label} {measure.model}".rstrip(),
            words(measure.expected),
            "-" if measure.seen is None else words(measure.seen),
            _percent(measure.deviation) or "-",
        )
    seen, expected = plan.outcome, plan.prediction
    for model, unserved_rps in sorted(expected.unserved_rps.items()):
        if unserved_rps > 0:
            rows.add_row(f"not served {model}", f"{unserved_rps:.1f} req/s", "-", "-")
    if expected.parked_gpus:
        label = f"parked GPUs: {len(expected.parked_gpus)}"
        rows.add_row(label, f"{expected.parked_power_w:.0f} W idle", "-", "-")
    if expected.empty_nodes:
        rows.add_row("empty nodes", ", ".join(expected.empty_nodes), "-", "-")
    if expected.wanted_gpus:
        rows.add_row("GPUs wanted", alternatives(expected.wanted_gpus), "-", "-")
    if plan.HasField("outcome") and seen.active_s > 0:
        rows.add_row("requests", "", f"{seen.requests} in {seen.active_s:.0f} s", "")
        kwh = f"{seen.energy_j / J_PER_KWH:.3g} kWh"
        rows.add_row("energy", "", f"{energy(seen.energy_j)} ({kwh})", "")
    rows.add_row("objective", f"{expected.objective:.2f} points", "-", "-")
    return rows


def _segments(plan: Plan, gpus: GpuNames) -> Table:
    rows = segments("Segments", plan.segments, gpus)
    if plan.clocks_mhz:
        clocks = sorted((gpu_name(gpus, uuid), mhz) for uuid, mhz in plan.clocks_mhz.items())
        held = ", ".join(f"{gpu} {mhz} MHz" for gpu, mhz in clocks)
        rows.caption, rows.caption_justify = f"clocks held: {held}", "left"
    return rows


def segments(title: str, planned: Sequence[PlannedSegment], gpus: GpuNames) -> Table:
    """Return one row per segment."""
    rows = new_table(
        title,
        *("GPU", "slice", "runs"),
        *(">batch", ">share", ">req/s", ">latency"),
    )
    runs = namer((each.spec.model, each.spec.variant, each.spec.stage) for each in planned)
    for segment in planned:
        spec = segment.spec
        rows.add_row(
            gpu_name(gpus, spec.gpu_uuid, segment.node),
            slice_name(spec.placement),
            runs(spec.model, spec.variant, spec.stage),
            f"{spec.batch_size}x{spec.processes}",
            percent(segment.share),
            f"{segment.throughput_rps:.0f}",
            milliseconds(segment.latency_s),
        )
    return rows


def state(plan: Plan) -> Text:
    """Return where a plan stands, as a word."""
    name = word(PlanState.Name(plan.state), "PLAN_STATE_")
    return Text(name, style=_STYLES.get(name, ""))


def _gap(plan: Plan) -> str:
    return percent(plan.prediction.gap) if plan.prediction.HasField("gap") else "-"
