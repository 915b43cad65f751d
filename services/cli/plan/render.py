"""Plans, explanations, differences and proposals as tables and sentences.

Tables of segments and lists have chosen columns; whatever else a message has is shown from its
descriptor, so that a new field of a plan needs nothing here.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cinquefoil.planner.v1 import explanation_pb2, planner_pb2
from cinquefoil.planner.v1.plan_pb2 import Plan, PlannedSegment, PlanState
from services.cli import saving
from services.cli.console.messages import Cell, Fact, Messages, word
from services.cli.console.names import GpuNames, gpu_name, namer, slice_name
from services.cli.console.output import condition_lines, table
from services.cli.console.quantities import alternatives, change, change_by, percent
from services.cli.plan.deviation import Measure, largest, measures, observed, unlike
from services.kit.plurals import counted
from services.kit.rpc.condition_messages import conditions_from

_STYLES: Final = {"failed": "red", "active": "green", "rolling": "yellow"}

_LISTED: Final[Mapping[str, str]] = {
    "latency": "latency_s",
    "accuracy": "accuracy",
    "power": "power_w",
    "carbon": "carbon_gco2e_per_h",
}
"""Columns of the list of plans: expected, seen and the deviation of a field of predictions."""

_COLUMNS: Final[Mapping[str, int]] = {
    "plan": 7,
    "state": 10,
    "made (UTC)": 14,
    "latency": 8,
    "accuracy": 8,
    "power": 7,
    "carbon": 13,
}
"""Widths of the list's columns: 80 with the space between them."""

_HEAD: Final = frozenset(
    ("version", "created_at", "state", "strategy", "reason", "steps", "slice_changes", "failure")
) | {"degraded", "conditions", "inputs", "segments", "prediction", "outcome"}
"""Fields of a plan that `one` shows in lines and tables of their own."""


def listed(plans: Sequence[Plan], pinned_version: int = 0, pinned_by: str = "") -> RenderableType:
    """Return some lines per plan: predicted and measured figures, and the deviation.

    Of several models, the one that deviates most is shown.
    """
    parts: list[RenderableType] = [_line(*(Text(each, style="bold") for each in _COLUMNS))]
    for plan in plans:
        found = measures(plan)
        held = "\npinned" if plan.version == pinned_version else ""
        figures = [_pair(largest(found, name)) for name in _LISTED.values()]
        made = f"{plan.created_at.ToDatetime():%m-%d %H:%M:%S}\n{plan.strategy}"
        parts.append(_line(Text(f"{plan.version}{held}"), state(plan), Text(made), *figures))
        others = sorted({each.unlike for each in found if each.unlike})
        apart = f"; measured under another {' and '.join(others)}" if others else ""
        saves = f"\n{owed}" if (owed := saving.of_plan(plan.prediction)) else ""
        parts.append(Padding(Text(f"{plan.reason}{apart}{saves}"), (0, 0, 1, 2)))
    parts.append(Text("Below each prediction: what was measured, and by how much it deviates."))
    if pinned_version:
        by = f" by {pinned_by}" if pinned_by else ""
        parts.append(Text(f"Plan {pinned_version} is pinned{by}; run: cinquefoil plan unpin"))
    return Group(*parts)


def _line(*cells: RenderableType) -> Table:
    """Return a line of the list: its columns have the same place on each."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, width in _COLUMNS.items():
        justify: Literal["left", "right"] = "right" if name in _LISTED else "left"
        grid.add_column(width=width, justify=justify, overflow="fold")
    grid.add_row(*cells)
    return grid


def one(plan: Plan, gpus: GpuNames) -> RenderableType:
    """Return a plan's reason, its expected and observed figures, and its segments."""
    made = f"{plan.created_at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC"
    head: list[RenderableType] = [
        Text.assemble(
            (f"Plan {plan.version}", "bold"), f" by {plan.strategy}, {made}: ", state(plan)
        ),
        Text(f"because {plan.reason}"),
        Text(
            f"rollout: {counted(plan.steps, 'step')}, {counted(plan.slice_changes, 'slice')} "
            "created or destroyed"
        ),
    ]
    if plan.degraded:
        head.append(Text(f"degraded: {plan.degraded}", style="yellow"))
    if plan.failure:
        head.append(Text(plan.failure, style="red"))
    view = Messages(gpus)
    return Group(
        *head,
        view.details(plan, hide=_HEAD),
        view.details(plan.inputs, "Known when it was made"),
        view.compared(
            "Predicted and measured",
            {"predicted": plan.prediction, "measured": observed(plan)},
            ("deviation", lambda was, now: Measure(was, now, unlike(plan, was.path)).words),
        ),
        view.details(plan.outcome, "While it was active", hide=("latency_s", "accuracy")),
        segments("Segments", plan.segments, gpus),
    )


def segments(title: str, planned: Sequence[PlannedSegment], gpus: GpuNames) -> Table:
    """Return one row per segment."""
    runs = namer((each.spec.model, each.spec.variant, each.spec.stage) for each in planned)
    return Messages(gpus).table(
        title,
        planned,
        {
            "GPU": lambda each: gpu_name(gpus, each.spec.gpu_uuid, each.node),
            "slice": "spec.placement",
            "runs": lambda each: runs(each.spec.model, each.spec.variant, each.spec.stage),
            ">batch": lambda each: f"{each.spec.batch_size}x{each.spec.processes}",
            ">share": "share",
            ">req/s": lambda each: f"{each.throughput_rps:.0f}",
            "latency": "latency_s",
        },
    )


def state(plan: Plan) -> Text:
    """Return a plan's state, as a word."""
    name = word(PlanState.DESCRIPTOR, plan.state)
    return Text(name, style=_STYLES.get(name, ""))


def proposal(
    answer: planner_pb2.DryRunResponse, gpus: GpuNames, applied: int | None = None
) -> RenderableType:
    """Return a proposal, its reasons, and the command that applies it.

    Args:
        answer: The dry run's.
        gpus: Names of the fleet's.
        applied: Version under which the plan was applied; None: it was not.
    """
    plan = answer.plan
    parts: list[RenderableType] = [
        Text.assemble(("Would be decided", "bold"), f" by {plan.strategy}: {plan.reason}")
    ]
    if plan.degraded:
        parts.append(Text(f"degraded: {plan.degraded}", style="yellow"))
    # The changes lead; the reasons follow.
    if answer.HasField("diff"):
        parts.append(difference(answer.diff, plan.segments, gpus))
    else:
        parts.append(segments("Segments", plan.segments, gpus))
    parts.append(explanation(answer.explanation))
    parts.append(Messages(gpus).details(plan, hide=_HEAD))
    if plan.prediction.parked_gpus:
        parts.append(Text(_parked(plan, gpus)))
    if plan.prediction.wanted_gpus:
        wanted = alternatives(plan.prediction.wanted_gpus)
        parts.append(Text(f"\nWanted beyond the fleet, to serve all: {wanted}.", style="yellow"))
    return Group(*parts, Text(f"\n{_what_next(answer.proposal_id, applied)}"))


def explanation(answer: explanation_pb2.Explanation) -> RenderableType:
    """Return a plan's binding constraints, its promises, and the alternatives."""
    title = f"Why plan {answer.version} is as it is" if answer.version else "Why"
    view = Messages()
    bindings: RenderableType = Text("\nNo limit is reached.")
    if answer.bindings:
        columns: dict[str, Cell] = {
            "constraint": lambda each: each.constraint.replace("_", " "),
            ">used": "used",
            "how": "sentence",
        }
        bindings = view.table("What keeps it from being better", answer.bindings, columns)
    promises = {
        "plan": answer.plan,
        **({"unchanged": answer.unchanged} if answer.HasField("unchanged") else {}),
        **({"runner-up": answer.runner_up.outlook} if answer.HasField("runner_up") else {}),
        **({"BASE": answer.base.outlook} if answer.HasField("base") else {}),
    }
    return Group(
        Text(f"\n{title}", style="bold"),
        *(Text(sentence) for sentence in answer.sentences),
        *condition_lines(conditions_from(answer.conditions)),
        bindings,
        view.compared("What it promises, and what else would", promises),
    )


def difference(
    answer: explanation_pb2.PlanDiff, planned: Sequence[PlannedSegment], gpus: GpuNames
) -> RenderableType:
    """Return the changes between two plans.

    Args:
        answer: The difference.
        planned: Segments of the second.
        gpus: Names of the fleet's.
    """
    names = [f"plan {version}" if version else "the dry run" for version in _versions(answer)]
    summary = (
        f"\nFrom {names[0]} to {names[1]}: starts {counted(len(answer.started), 'segment')}, "
        f"stops {len(answer.stopped)}, keeps {answer.kept}."
    )
    parts: list[RenderableType] = [Text(summary)]
    parts += [segments("Start", answer.started, gpus)] if answer.started else []
    parts += [segments("Stop", answer.stopped, gpus)] if answer.stopped else []
    if answer.shares or answer.clocks:
        parts.append(_changes(answer, planned, gpus))
    if names[0] == names[1]:
        return Group(*parts)
    promises = dict(zip(names, (answer.from_outlook, answer.to_outlook), strict=True))

    def changed(before: Fact, after: Fact) -> RenderableType:
        others = [each.circumstance for each in answer.unlike if before.path in each.fields]
        return Text(f"other {', '.join(others)}") if others else _change(before, after)

    return Group(
        *parts,
        Messages(gpus).compared("What they promise", promises, ("change", changed)),
        *(Text(f"Not comparable where {each.sentence}.") for each in answer.unlike),
    )


def _versions(answer: explanation_pb2.PlanDiff) -> tuple[int, int]:
    return answer.from_version, answer.to_version


def _change(before: Fact, after: Fact) -> RenderableType:
    if before.path == "objective":  # its zero is BASE's: a ratio would say nothing
        return change_by(after.value - before.value, "points")
    return change(before.value, after.value, more_is_better=before.more_is_better)


def _pair(measure: Measure | None) -> str:
    """Return the expected value, below it the observed one, and the deviation."""
    if measure is None:
        return ""
    lines = [measure.expected.text]
    if measure.seen is not None:
        lines += [measure.seen.text, "" if measure.unlike else measure.words]
    return "\n".join(filter(None, lines))


def _parked(plan: Plan, gpus: GpuNames) -> str:
    """Return the GPUs that the plan leaves empty, so that they could be switched off."""
    prediction = plan.prediction
    parked = ", ".join(gpu_name(gpus, uuid) for uuid in prediction.parked_gpus)
    nodes = ", ".join(prediction.empty_nodes)
    return (
        f"\nParked: {parked}; {prediction.parked_power_w:.0f} W idle, which could be switched off."
        f"{f' Empty nodes: {nodes}.' if nodes else ''}"
    )


def _what_next(proposal_id: str, applied: int | None) -> str:
    if applied is not None:
        return (
            f"Plan {applied} is being rolled out. The next cause to plan may replace it; "
            "`cinquefoil plan pin` holds it."
        )
    if proposal_id:
        return f"Nothing was changed. Within 10 minutes: cinquefoil plan apply {proposal_id}"
    return "Nothing was changed. This plan is for other circumstances and cannot be applied."


def _changes(
    answer: explanation_pb2.PlanDiff, planned: Sequence[PlannedSegment], gpus: GpuNames
) -> Table:
    rows = table("Changes of what stays", "what", ">from", ">to")
    known = {each.spec.segment_id: each for each in planned}
    for share in answer.shares:
        name = _segment(known.get(share.segment_id), gpus) or f"segment {share.segment_id}"
        rows.add_row(f"share of {name}", percent(share.from_share), percent(share.to_share))
    for clock in answer.clocks:
        rows.add_row(
            f"clock of {gpu_name(gpus, clock.gpu_uuid)}",
            *(f"{mhz} MHz" if mhz else "driver's" for mhz in (clock.from_mhz, clock.to_mhz)),
        )
    return rows


def _segment(planned: PlannedSegment | None, gpus: GpuNames) -> str:
    if planned is None:
        return ""
    spec = planned.spec
    gpu = gpu_name(gpus, spec.gpu_uuid, planned.node)
    return f"{spec.model}/{spec.variant} on {gpu} {slice_name(spec.placement)}"
