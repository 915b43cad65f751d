"""Costs of a day: figures, savings, JSON, and the table."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from cinquefoil.planner.v1.plan_pb2 import Plan
from services.cli.console.output import table
from services.cli.console.quantities import carbon, energy, percent
from services.cli.demo.sample import Sample
from services.kit.config import Model
from services.kit.plurals import counted, listed
from services.local.demo.load import RequestStats

TITLE: Final = "A day of the grid"
COLUMNS: Final = ("equal load", ">BASE", ">Cinquefoil")

_BUSY: Final = 1.5
"""Processes that could run for each core, from which on latencies are not the suites' own."""

Row = tuple[str, str, str]
"""A label, BASE's figure, and Cinquefoil's."""


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model's day in one suite; field names are those of report.json.

    Attributes:
        sent, answered, lost: Requests.
        p50_ms, p95_ms: Latency seen by the client, ms.
        slo_percentile, slo_ms: Latency objective: this percentile, in (0, 100), within so many ms.
        slo_latency_ms: Latency seen by the client at that percentile, ms.
        accuracy: Share of the answers whose label was right: measured, not stated.
    """

    sent: int
    answered: int
    lost: int
    p50_ms: float
    p95_ms: float
    slo_percentile: float
    slo_ms: float
    slo_latency_ms: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One suite's day; field names are those of report.json.

    Attributes:
        sent, answered, lost: Requests to all models.
        accuracy: Share of the answers whose label was right: measured, not stated.
        energy_j_per_request: Metered energy of all GPUs, idle included, per answered request, J.
        carbon_gco2e_per_request: Its carbon by the planner's account.
        idle_j_per_request: What one GPU draws with nothing running, per answered request, J.
        gpus: GPUs, all of them powered.
        plans: Plans in force during the load.
        reconfigurations: Those made during the load that changed something on a GPU.
        models: By name.
    """

    sent: int
    answered: int
    lost: int
    accuracy: float
    energy_j_per_request: float
    carbon_gco2e_per_request: float
    idle_j_per_request: float
    gpus: int
    plans: int
    reconfigurations: int
    models: Mapping[str, ModelFigures]


def figures(
    stats: Mapping[str, RequestStats],
    samples: Sequence[Sample],
    plans: Sequence[Plan],
    models: Mapping[str, Model],
) -> Figures:
    """Return a suite's figures.

    Args:
        stats: Every request sent, by model.
        samples: From the load's start to after the last answer, at least one.
        plans: Plans from the one in force at the start on.
        models: The models, for their objectives.
    """
    first, last = samples[0], samples[-1]
    whole = RequestStats.total(stats.values())
    answered = max(whole.answered, 1)
    idle_w = sum(gpu.idle_w for gpu in last.gpus) / max(len(last.gpus), 1)
    return Figures(
        sent=whole.sent,
        answered=whole.answered,
        lost=whole.sent - whole.answered,
        accuracy=whole.accuracy,
        energy_j_per_request=(last.energy_j - first.energy_j) / answered,
        carbon_gco2e_per_request=(last.carbon_gco2e - first.carbon_gco2e) / answered,
        idle_j_per_request=idle_w * (last.seconds - first.seconds) / answered,
        gpus=len(last.gpus),
        plans=len(plans),
        reconfigurations=sum(
            plan.version > first.plan and (plan.steps > 0 or plan.slice_changes > 0)
            for plan in plans
        ),
        models={name: _of_model(one, models[name]) for name, one in sorted(stats.items())},
    )


def _of_model(stats: RequestStats, model: Model) -> ModelFigures:
    return ModelFigures(
        sent=stats.sent,
        answered=stats.answered,
        lost=stats.sent - stats.answered,
        p50_ms=stats.quantile_s(50) * 1e3,
        p95_ms=stats.quantile_s(95) * 1e3,
        slo_percentile=model.slo.percentile,
        slo_ms=model.slo.latency_s * 1e3,
        slo_latency_ms=stats.quantile_s(model.slo.percentile) * 1e3,
        accuracy=stats.accuracy,
    )


def write(path: Path, suites: Mapping[str, Figures]) -> None:
    """Write report.json."""
    document = {name: asdict(one) for name, one in suites.items()}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def render(base: Figures, cinquefoil: Figures) -> RenderableType:
    """Return the headline, with the gain and its price, and the table."""
    made = table(TITLE, *COLUMNS, rows=rows(base, cinquefoil))
    headline = Text(gain(base, cinquefoil), style="bold")
    return Group(Text(), headline, Text(price(base, cinquefoil)), made)


def rows(base: Figures, cinquefoil: Figures) -> Iterator[Row]:
    """Yield the table's rows."""

    def row(label: str, words: Callable[[Figures], str]) -> Row:
        return label, words(base), words(cinquefoil)

    yield row("carbon per request", lambda one: carbon(one.carbon_gco2e_per_request))
    yield row("energy per request", lambda one: energy(one.energy_j_per_request))
    yield row("GPUs", lambda one: f"{one.gpus}")
    yield row("requests sent", lambda one: f"{one.sent}")
    yield row("answered / lost", lambda one: f"{one.answered} / {one.lost}")
    for name, model in cinquefoil.models.items():

        def latency(one: Figures, name: str = name) -> str:
            found = one.models[name]
            missed = ", missed" if found.slo_latency_ms > found.slo_ms else ""
            return f"{found.slo_latency_ms:.0f} ms{missed}"

        def accuracy(one: Figures, name: str = name) -> str:
            return f"{one.models[name].accuracy:.4f}"

        yield row(f"{name}: p{model.slo_percentile:g} (<= {model.slo_ms:.0f} ms)", latency)
        yield row(f"{name}: accuracy, measured", accuracy)
    yield row("plans / reconfigurations", lambda one: f"{one.plans} / {one.reconfigurations}")


def saving(of: float, against: float) -> float:
    """Return the relative saving 1 - of/against; 0 where there is nothing to save."""
    return 1 - of / against if against > 0 else 0.0


def gain(base: Figures, cinquefoil: Figures) -> str:
    """Return the gain, in words."""
    less_carbon = saving(cinquefoil.carbon_gco2e_per_request, base.carbon_gco2e_per_request)
    less_energy = saving(cinquefoil.energy_j_per_request, base.energy_j_per_request)
    text = (
        f"Cinquefoil saved {percent(less_carbon)} of the carbon and {percent(less_energy)} of the "
        f"energy of BASE"
    )
    spared = base.gpus - cinquefoil.gpus
    if not spared:
        return f"{text}."
    idle_j = spared * cinquefoil.idle_j_per_request
    beside = saving(cinquefoil.energy_j_per_request + idle_j, base.energy_j_per_request)
    return (
        f"{text}, on {cinquefoil.gpus} instead of {counted(base.gpus, 'GPU')}: BASE "
        "needs one for each model. "
        f"With as many GPUs, {spared} idle, it would save {percent(beside)} of the energy."
    )


def price(base: Figures, cinquefoil: Figures) -> str:
    """Return the price of the gain: accuracy, latency beside BASE's, and requests lost."""
    points = (cinquefoil.accuracy - base.accuracy) * 100
    latencies = ", ".join(
        f"{name} p{one.slo_percentile:g} {one.slo_latency_ms:.0f} ms "
        f"(BASE {base.models[name].slo_latency_ms:.0f})"
        for name, one in cinquefoil.models.items()
    )
    missed = _both_missed(base, cinquefoil)
    kept = missed or "every model met its latency objective"
    lost = "no request was lost" if not cinquefoil.lost else f"{cinquefoil.lost} requests were lost"
    return f"The price: {points:+.2f} points of accuracy; {latencies}; {kept}; {lost}."


def _both_missed(base: Figures, cinquefoil: Figures) -> str:
    """Return which objectives the suites missed; "": none."""
    late = {"Cinquefoil": _late(cinquefoil), "BASE": _late(base)}
    if late["Cinquefoil"] == late["BASE"]:
        late = {"both": late["BASE"]}
    return " and ".join(
        f"{suite} missed the latency objective of {listed(names)}"
        for suite, names in late.items()
        if names
    )


def _late(figures: Figures) -> list[str]:
    return [name for name, one in figures.models.items() if one.slo_latency_ms > one.slo_ms]


def busy(suites: Iterable[Figures], load: float, cores: int) -> str:
    """Return the warning that latencies show a busy machine; "": none was missed, or it is not.

    Args:
        suites: The suites.
        load: Processes that could run, on average over five minutes.
        cores: The machine's cores.
    """
    if load < _BUSY * cores or not any(map(_late, suites)):
        return ""
    return (
        f"This machine was busy with {load:.0f} processes on {counted(cores, 'core')}, and the "
        "latencies show that: run the demo again when it is not."
    )
