"""Plans as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cinquefoil.planner.v1.plan_pb2 import Plan, PlanState
from services.cli.tables import table as new_table
from services.cli.words import carbon, energy, milliseconds, percent
from services.kit.units import J_PER_KWH, S_PER_H

_STYLES = {"failed": "red", "active": "green", "rolling": "yellow"}


def table(plans: Iterable[Plan]) -> RenderableType:
    """Return one row per plan."""
    rows = new_table(
        "",
        *("plan", "made (UTC)", "state", "strategy"),
        *(">gap", ">steps", ">power", "because"),
    )
    for plan in plans:
        rows.add_row(
            str(plan.version),
            f"{plan.created_at.ToDatetime():%m-%d %H:%M:%S}",
            _state(plan),
            plan.strategy,
            _gap(plan),
            str(plan.steps),
            f"{plan.prediction.power_w:.0f} W",
            Text(plan.reason),
        )
    return rows if rows.row_count else Text("No plan yet.")


def one(plan: Plan) -> RenderableType:
    """Return why a plan was made, what it expected, what came of it, and what runs where."""
    made = f"{plan.created_at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
    parts: list[RenderableType] = [
        Text.assemble(
            (f"Plan {plan.version}", "bold"), f" by {plan.strategy}, {made}: ", _state(plan)
        ),
        Text(f"because {plan.reason}"),
        Text(
            f"rollout: {plan.steps} steps, {plan.slice_changes} slices created or destroyed; "
            f"solved in {plan.prediction.solve_s:.2f} s, gap {_gap(plan)}"
        ),
    ]
    if plan.failure:
        parts.append(Text(plan.failure, style="red"))
    return Group(*parts, _known(plan), _expected(plan), _segments(plan))


def _known(plan: Plan) -> Table:
    rows = new_table("Known when it was made", "input", "value")
    for zone, intensity in sorted(plan.inputs.intensity_gco2e_per_kwh.items()):
        rows.add_row(f"intensity {zone}", f"{intensity:.1f} gCO2e/kWh")
    for model, demand_rps in sorted(plan.inputs.demand_rps.items()):
        rows.add_row(f"demand {model}", f"{demand_rps:.1f} req/s")
    for gpu, count in sorted(plan.inputs.gpus.items()):
        rows.add_row(f"GPUs {gpu}", str(count))
    rows.add_row("carbon weight", f"{plan.inputs.carbon_weight:g}")
    return rows


def _expected(plan: Plan) -> Table:
    rows = new_table("Expected, and what came of it", "", ">expected", ">seen")
    seen, expected = plan.outcome, plan.prediction
    lived = plan.HasField("outcome") and seen.active_s > 0
    rows.add_row(
        "power",
        f"{expected.power_w:.0f} W",
        f"{seen.energy_j / seen.active_s:.0f} W" if lived else "-",
    )
    rows.add_row(
        "emissions per hour",
        carbon(expected.carbon_gco2e_per_h),
        carbon(seen.carbon_gco2e / seen.active_s * S_PER_H) if lived else "-",
    )
    for model in sorted(expected.accuracy):
        rows.add_row(f"accuracy {model}", f"{expected.accuracy[model]:.4f}", "-")
        rows.add_row(
            f"latency {model}",
            milliseconds(_get(expected.latency_s, model)),
            milliseconds(_get(seen.latency_s, model)),
        )
        if unserved_rps := expected.unserved_rps.get(model, 0.0):
            rows.add_row(f"not served {model}", f"{unserved_rps:.1f} req/s", "-")
    if lived:
        rows.add_row("requests", "", f"{seen.requests} in {seen.active_s:.0f} s")
        rows.add_row("energy", "", f"{energy(seen.energy_j)} ({seen.energy_j / J_PER_KWH:.3g} kWh)")
    rows.add_row("objective", f"{expected.objective:.2f} points", "-")
    return rows


def _segments(plan: Plan) -> Table:
    rows = new_table(
        "Segments",
        *("node", "GPU", "slice", "runs"),
        *(">batch", ">share", ">req/s", ">latency"),
    )
    for segment in plan.segments:
        spec = segment.spec
        rows.add_row(
            segment.node,
            spec.gpu_uuid[:8],
            f"{spec.placement.profile}@{spec.placement.start}",
            f"{spec.model}/{spec.variant}",
            f"{spec.batch_size}x{spec.processes}",
            percent(segment.share),
            f"{segment.throughput_rps:.0f}",
            milliseconds(segment.latency_s),
        )
    return rows


def _state(plan: Plan) -> Text:
    word = PlanState.Name(plan.state).removeprefix("PLAN_STATE_").lower()
    return Text(word, style=_STYLES.get(word, ""))


def _gap(plan: Plan) -> str:
    return percent(plan.prediction.gap) if plan.prediction.HasField("gap") else "-"


def _get(values: Mapping[str, float], key: str) -> float | None:
    return values.get(key)
