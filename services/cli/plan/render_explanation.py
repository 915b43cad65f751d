"""Explanations, differences and proposals as tables and sentences."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cinquefoil.planner.v1 import explanation_pb2, plan_pb2, planner_pb2
from services.cli.console.conditions import condition_lines
from services.cli.console.quantities import alternatives, carbon, milliseconds, percent
from services.cli.console.tables import table
from services.cli.plan.render import segments
from services.kit.rpc.condition_messages import conditions_from

Outlook = explanation_pb2.Outlook


def proposal(answer: planner_pb2.DryRunResponse, applied: int | None) -> RenderableType:
    """Return what would be decided, why, and how to have it.

    Args:
        answer: The dry run's.
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
        parts.append(difference(answer.diff))
    else:
        parts.append(segments("Segments", plan.segments))
    parts.append(explanation(answer.explanation))
    if plan.prediction.parked_gpus:
        parts.append(Text(_parked(plan.prediction)))
    if plan.prediction.wanted_gpus:
        wanted = alternatives(plan.prediction.wanted_gpus)
        parts.append(Text(f"\nWanted beyond the fleet, to serve all: {wanted}.", style="yellow"))
    return Group(*parts, Text(f"\n{_what_next(answer.proposal_id, applied)}"))


def explanation(answer: explanation_pb2.Explanation) -> RenderableType:
    """Return what binds a plan, what it promises, and what else there was."""
    title = f"Why plan {answer.version} is as it is" if answer.version else "Why"
    promises = {"plan": answer.plan}
    if answer.HasField("runner_up"):
        promises["runner-up"] = answer.runner_up.outlook
    if answer.HasField("base"):
        promises["BASE"] = answer.base.outlook
    return Group(
        Text(f"\n{title}", style="bold"),
        *(Text(sentence) for sentence in answer.sentences),
        *condition_lines(conditions_from(answer.conditions)),
        _bindings(answer),
        _outlooks("What it promises, and what else would", promises),
    )


def difference(answer: explanation_pb2.PlanDiff) -> RenderableType:
    """Return what changes between two plans."""
    names = [_name(version) for version in (answer.from_version, answer.to_version)]
    summary = (
        f"\nFrom {names[0]} to {names[1]}: of the segments, {len(answer.started)} start, "
        f"{len(answer.stopped)} stop and {answer.kept} stay."
    )
    parts: list[RenderableType] = [Text(summary)]
    parts += [segments("Start", answer.started)] if answer.started else []
    parts += [segments("Stop", answer.stopped)] if answer.stopped else []
    if answer.shares or answer.clocks:
        parts.append(_changes(answer))
    promises = dict(zip(names, (answer.from_outlook, answer.to_outlook), strict=True))
    return Group(*parts, _outlooks("What they promise", promises))


def _parked(prediction: plan_pb2.Prediction) -> str:
    """Return which GPUs the plan leaves empty, so that their power could be cut."""
    gpus = ", ".join(gpu[:8] for gpu in prediction.parked_gpus)
    nodes = ", ".join(prediction.empty_nodes)
    return (
        f"\nParked: {gpus}; {prediction.parked_power_w:.0f} W idle, which could be cut."
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


def _outlooks(title: str, promises: Mapping[str, Outlook]) -> Table:
    """Return one column per outlook."""
    rows = table(title, "", *(f">{name}" for name in promises))
    all_of = list(promises.values())

    def add(label: str, words: Callable[[Outlook], str]) -> None:
        rows.add_row(label, *(words(each) for each in all_of))

    add("objective", lambda each: f"{each.objective:.2f} points")
    add("power", lambda each: f"{each.power_w:.0f} W")
    add("emissions per hour", lambda each: carbon(each.carbon_gco2e_per_h))
    add("GPUs powered", lambda each: str(each.gpus))
    for model in sorted({model for each in all_of for model in each.accuracy}):
        for row in _of_model(model, all_of):
            rows.add_row(*row)
    return rows


def _of_model(model: str, promises: Sequence[Outlook]) -> Iterator[tuple[str, ...]]:
    yield f"latency {model}", *(milliseconds(each.latency_s.get(model)) for each in promises)
    yield f"accuracy {model}", *(f"{each.accuracy.get(model, 0.0):.4f}" for each in promises)
    unserved_rps = [each.unserved_rps.get(model, 0.0) for each in promises]
    if any(unserved_rps):
        yield f"not served {model}", *(f"{rps:.1f} req/s" for rps in unserved_rps)


def _changes(answer: explanation_pb2.PlanDiff) -> Table:
    rows = table("Changes of what stays", "what", ">from", ">to")
    for share in answer.shares:
        change = percent(share.from_share), percent(share.to_share)
        rows.add_row(f"share of segment {share.segment_id}", *change)
    for clock in answer.clocks:
        rows.add_row(
            f"clock of {clock.gpu_uuid}",
            *(f"{mhz} MHz" if mhz else "driver's" for mhz in (clock.from_mhz, clock.to_mhz)),
        )
    return rows


def _name(version: int) -> str:
    return f"plan {version}" if version else "the dry run"
