"""Explanations, differences and proposals as tables and sentences."""

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cinquefoil.planner.v1 import explanation_pb2, plan_pb2, planner_pb2
from cinquefoil.planner.v1.plan_pb2 import PlannedSegment
from services.cli.console.names import GpuNames, gpu_name, slice_name
from services.cli.console.output import condition_lines, table
from services.cli.console.quantities import alternatives, carbon, change, milliseconds, percent
from services.cli.plan.render import segments
from services.kit.rpc.condition_messages import conditions_from

Outlook = explanation_pb2.Outlook


def proposal(
    answer: planner_pb2.DryRunResponse, gpus: GpuNames, applied: int | None = None
) -> RenderableType:
    """Return what would be decided, why, and how to have it.

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
    # What changes leads; why follows.
    if answer.HasField("diff"):
        parts.append(difference(answer.diff, plan.segments, gpus))
    else:
        parts.append(segments("Segments", plan.segments, gpus))
    parts.append(explanation(answer.explanation))
    if plan.prediction.parked_gpus:
        parts.append(Text(_parked(plan.prediction, gpus)))
    if plan.prediction.wanted_gpus:
        wanted = alternatives(plan.prediction.wanted_gpus)
        parts.append(Text(f"\nWanted beyond the fleet, to serve all: {wanted}.", style="yellow"))
    return Group(*parts, Text(f"\n{_what_next(answer.proposal_id, applied)}"))


def explanation(answer: explanation_pb2.Explanation) -> RenderableType:
    """Return what binds a plan, what it promises, and what else there was."""
    title = f"Why plan {answer.version} is as it is" if answer.version else "Why"
    promises = [("plan", answer.plan)]
    if answer.HasField("runner_up"):
        promises.append(("runner-up", answer.runner_up.outlook))
    if answer.HasField("base"):
        promises.append(("BASE", answer.base.outlook))
    return Group(
        Text(f"\n{title}", style="bold"),
        *(Text(sentence) for sentence in answer.sentences),
        *condition_lines(conditions_from(answer.conditions)),
        _bindings(answer),
        _outlooks("What it promises, and what else would", promises),
    )


def difference(
    answer: explanation_pb2.PlanDiff, planned: Sequence[PlannedSegment], gpus: GpuNames
) -> RenderableType:
    """Return what changes between two plans.

    Args:
        answer: The difference.
        planned: Segments of the second.
        gpus: Names of the fleet's.
    """
    names = [_name(version) for version in (answer.from_version, answer.to_version)]
    summary = (
        f"\nFrom {names[0]} to {names[1]}: of the segments, {len(answer.started)} start, "
        f"{len(answer.stopped)} stop and {answer.kept} stay."
    )
    parts: list[RenderableType] = [Text(summary)]
    parts += [segments("Start", answer.started, gpus)] if answer.started else []
    parts += [segments("Stop", answer.stopped, gpus)] if answer.stopped else []
    if answer.shares or answer.clocks:
        parts.append(_changes(answer, planned, gpus))
    promises = list(zip(names, (answer.from_outlook, answer.to_outlook), strict=True))
    return Group(*parts, _outlooks("What they promise", promises, compared=True))


def _parked(prediction: plan_pb2.Prediction, gpus: GpuNames) -> str:
    """Return which GPUs the plan leaves empty, so that their power could be cut."""
    parked = ", ".join(gpu_name(gpus, uuid) for uuid in prediction.parked_gpus)
    nodes = ", ".join(prediction.empty_nodes)
    return (
        f"\nParked: {parked}; {prediction.parked_power_w:.0f} W idle, which could be cut."
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


def _bindings(answer: explanation_pb2.Explanation) -> RenderableType:
    if not answer.bindings:
        return Text("\nNo constraint binds it.")
    rows = table("What keeps it from being better", "constraint", ">used", "how")
    for binding in answer.bindings:
        rows.add_row(
            binding.constraint.replace("_", " "), percent(binding.used), Text(binding.sentence)
        )
    return rows


def _outlooks(
    title: str, promises: Sequence[tuple[str, Outlook]], *, compared: bool = False
) -> Table:
    """Return one column per outlook; of two that are compared, what the second one changes."""
    headings = [f">{name}" for name, _ in promises] + ([">change"] if compared else [])
    rows = table(title, "", *headings)
    for label, words, values, more_is_better in _quantities([each for _, each in promises]):
        changes = [change(*values, more_is_better=more_is_better)] if compared else []
        rows.add_row(label, *map(words, values), *changes)
    return rows


def _quantities(
    all_of: Sequence[Outlook],
) -> Iterator[tuple[str, Callable[[float], str], list[float], bool]]:
    """Yield label, words, the value of each outlook, and whether more is better."""
    yield "objective", "{:.2f} points".format, [each.objective for each in all_of], True
    yield "power", "{:.0f} W".format, [each.power_w for each in all_of], False
    yield "emissions per hour", carbon, [each.carbon_gco2e_per_h for each in all_of], False
    yield "GPUs powered", "{:.0f}".format, [each.gpus for each in all_of], False
    for model in sorted({model for each in all_of for model in each.accuracy}):
        latency_s = [each.latency_s.get(model, math.nan) for each in all_of]
        yield f"latency {model}", _latency, latency_s, False
        accuracy = [each.accuracy.get(model, 0.0) for each in all_of]
        yield f"accuracy {model}", "{:.4f}".format, accuracy, True
        unserved_rps = [each.unserved_rps.get(model, 0.0) for each in all_of]
        if any(unserved_rps):
            yield f"not served {model}", "{:.1f} req/s".format, unserved_rps, False


def _latency(latency_s: float) -> str:
    return milliseconds(None if math.isnan(latency_s) else latency_s)


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


def _name(version: int) -> str:
    return f"plan {version}" if version else "the dry run"
