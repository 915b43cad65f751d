"""The table: one column per policy."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.console import quantities
from services.cli.console.output import table
from services.simulator.report.figures import Figures, ModelFigures, TextFigures
from services.simulator.report.report import Report, Result
from services.simulator.stats.sampled_intervals import WaitingCounts

Row = tuple[str, ...]


def render(report: Report, speeds: Mapping[str, float]) -> RenderableType:
    """Return a report as a table.

    Args:
        report: Report of a scenario.
        speeds: Seconds of virtual time per second, by policy.
    """
    policies = {name: result.figures for name, result in report.results.items()}
    length = timedelta(seconds=report.duration_s)
    title = f"{report.name}: {length} from {report.start:%Y-%m-%d %H:%M} UTC, seed {report.seed}"
    made = table(title, "", *(f">{name}" for name in policies), rows=rows(report))
    made.add_row("speed", *(f"{speeds.get(name, 0):,.0f} x" for name in policies))
    return Group(made, Text(), *_notes(report))


def rows(report: Report) -> Iterator[Row]:
    """Yield the table's rows: a label, then a cell per policy."""
    policies = [result.figures for result in report.results.values()]
    first = policies[0]
    yield "requests sent", *(f"{one.sent:,}" for one in policies)
    yield "  in detail", *(f"{one.simulated:,}" for one in policies)
    yield "lost", *(f"{one.lost:,}" for one in policies)
    for name in first.models:
        prefix = f"{name}: " if len(first.models) > 1 else ""
        for label, *cells in _model_rows([one.models[name] for one in policies]):
            yield f"{prefix}{label}", *cells
    for name in first.waiting:
        yield from _waiting_rows(name, [one.waiting[name] for one in policies])
    yield "energy", *(quantities.energy(one.energy_j) for one in policies)
    if any(one.energy_error_j != 0 for one in policies):
        yield "  uncertain by", *(_uncertain(one) for one in policies)
    yield "  of it idle", *(quantities.energy(one.idle_j) for one in policies)
    yield "carbon", *(quantities.carbon(one.carbon_gco2e) for one in policies)
    if len(policies) > 1:
        yield "  saved", *(_saving(one.carbon_gco2e, first.carbon_gco2e) for one in policies)
    yield "plans / decisions", *(f"{one.plans} / {one.decisions}" for one in policies)
    yield "reconfigured", *(str(one.reconfigurations) for one in policies)
    yield "slices changed", *(str(one.slice_changes) for one in policies)


def _model_rows(models: list[ModelFigures]) -> Iterator[Row]:
    slo = models[0]
    yield "accuracy", *("-" if m.accuracy is None else f"{m.accuracy:.4f}" for m in models)
    for percentile in (50, 95, 99):
        quantiles = (getattr(m, f"p{percentile}_s") for m in models)
        yield f"latency p{percentile}", *(quantities.milliseconds(value) for value in quantiles)
    if slo.texts is not None:
        yield from _text_rows([m.texts for m in models if m.texts is not None])
        yield f"p{slo.slo_percentile:g} {_objectives(slo)}", *(_met(m) for m in models)
        yield "  later", *(f"{_share(m.late, m.answered)}" for m in models)
        return
    objective = f"p{slo.slo_percentile:g} <= {quantities.milliseconds(slo.slo_latency_s)}"
    yield objective, *(_met(m) for m in models)
    yield "  later", *(f"{_share(m.late, m.answered)}" for m in models)


def _text_rows(texts: list[TextFigures]) -> Iterator[Row]:
    yield "tokens of prompts", *(f"{one.input_tokens:,}" for one in texts)
    yield "tokens of answers", *(f"{one.output_tokens:,}" for one in texts)
    for name, label in (("ttft", "first token"), ("tpot", "between tokens")):
        for percentile in (50, 99):
            times = (getattr(one, f"{name}_p{percentile}_s") for one in texts)
            yield f"{label} p{percentile}", *(quantities.milliseconds(each) for each in times)
    per_token = (one.active_j_per_token for one in texts)
    yield "active J per token", *("-" if each is None else f"{each:.3g}" for each in per_token)


def _waiting_rows(name: str, counts: list[WaitingCounts]) -> Iterator[Row]:
    yield f"{name}: waited, sent", *(f"{one.sent:,}" for one in counts)
    yield "  answered", *(f"{one.answered:,}" for one in counts)
    yield "  late", *(f"{one.late:,}" for one in counts)
    yield "  energy added", *(quantities.energy(one.energy_marginal_j) for one in counts)
    yield "  carbon added", *(quantities.carbon(one.carbon_marginal_gco2e) for one in counts)
    yield "  had it come at once", *(quantities.carbon(one.at_once_gco2e) for one in counts)


def _objectives(model: ModelFigures) -> str:
    limits = {
        "first": model.slo_ttft_s,
        "between": model.slo_tpot_s,
        "end": model.slo_latency_s,
    }
    return ", ".join(
        f"{name} <= {quantities.milliseconds(limit)}" for name, limit in limits.items() if limit
    )


def _met(model: ModelFigures) -> str:
    return "met" if model.met else "missed"


def _why_lost(result: Result) -> str:
    """Return the promises that plans could not keep, or else the errors of requests."""
    degraded = dict.fromkeys(plan.degraded for plan in result.plans if plan.degraded)
    if degraded:
        return f"since {next(iter(degraded))}" + (" ..." if len(degraded) > 1 else "")
    failures: Counter[str] = Counter()
    for model in result.figures.models.values():
        failures.update(model.failures)
    return "by reason: " + ", ".join(f"{why} {count:,}" for why, count in failures.most_common())


def _uncertain(one: Figures) -> str:
    if one.energy_error_j is None:
        return "?"
    return f"{100 * one.energy_error_j / one.energy_j:.2f} %" if one.energy_j else "-"


def _saving(of: float, against: float) -> str:
    return quantities.percent(1 - of / against) if against else "-"


def _share(part: int, whole: int) -> str:
    return quantities.percent(part / whole) if whole else "-"


def _notes(report: Report) -> Iterator[Text]:
    policies = [result.figures for result in report.results.values()]
    for name, result in report.results.items():
        if result.figures.lost:
            yield Text(f"{name}: {result.figures.lost:,} lost, {_why_lost(result)}", style="yellow")
    if len(policies) > 1:
        yield Text(f"Savings are against {policies[0].policy}.", style="dim")
    if any(one.simulated + one.still_open < one.sent for one in policies):
        yield Text(
            "Requests that were not simulated in detail are represented by those that were, in "
            "the same plan at about the same load; energy is uncertain by that much (95 %).",
            style="dim",
        )
