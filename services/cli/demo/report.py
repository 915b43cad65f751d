"""What a day cost: figures, savings, JSON, and the table."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from cinquefoil.planner.v1.plan_pb2 import Plan
from services.cli.console.quantities import carbon, energy, percent
from services.cli.console.tables import table
from services.cli.demo.sample import Sample
from services.local.demo.load import RequestStats


@dataclass(frozen=True, slots=True)
class Figures:
    """One suite's day; field names are those of report.json.

    Attributes:
        sent, answered, lost: Requests.
        p50_ms, p95_ms: Latency seen by the client, ms.
        slo_ms: Latency objective, ms.
        accuracy: Share of the answers whose label was right: measured, not stated.
        energy_j_per_request: Metered energy of all GPUs, idle included, per answered request, J.
        carbon_gco2e_per_request: Its carbon by the planner's account.
        gpus: GPUs that drew power.
        plans: Plans in force during the load.
        reconfigurations: Those made during the load that changed something on a GPU.
    """

    sent: int
    answered: int
    lost: int
    p50_ms: float
    p95_ms: float
    slo_ms: float
    accuracy: float
    energy_j_per_request: float
    carbon_gco2e_per_request: float
    gpus: int
    plans: int
    reconfigurations: int


def figures(
    stats: RequestStats, before: Sample, after: Sample, plans: Sequence[Plan], slo_latency_s: float
) -> Figures:
    """Return a suite's figures.

    Args:
        stats: Every request sent.
        before: Sample at the load's start.
        after: Sample after the last answer.
        plans: Plans from the one in force at the start on.
        slo_latency_s: Latency objective, s.
    """
    answered = max(stats.answered, 1)
    return Figures(
        sent=stats.sent,
        answered=stats.answered,
        lost=stats.sent - stats.answered,
        p50_ms=stats.quantile_s(50) * 1e3,
        p95_ms=stats.quantile_s(95) * 1e3,
        slo_ms=slo_latency_s * 1e3,
        accuracy=stats.accuracy,
        energy_j_per_request=(after.energy_j - before.energy_j) / answered,
        carbon_gco2e_per_request=(after.carbon_gco2e - before.carbon_gco2e) / answered,
        gpus=sum(
            total_j > before.gpu_energy_j.get(gpu, 0.0)
            for gpu, total_j in after.gpu_energy_j.items()
        ),
        plans=len(plans),
        reconfigurations=sum(
            plan.version > before.plan and (plan.steps > 0 or plan.slice_changes > 0)
            for plan in plans
        ),
    )


def write(path: Path, suites: Mapping[str, Figures]) -> None:
    """Write report.json."""
    document = {name: asdict(one) for name, one in suites.items()}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def saving(of: float, against: float) -> float:
    """Return the relative saving 1 - of/against; 0 where there is nothing to save."""
    return 1 - of / against if against > 0 else 0.0


def rows(base: Figures, cinquefoil: Figures) -> list[tuple[str, str, str]]:
    """Return the table: a label, then a cell for each suite."""
    words: dict[str, Callable[[Figures], str]] = {
        "requests sent / answered / lost": lambda one: f"{one.sent} / {one.answered} / {one.lost}",
        "latency p50": lambda one: f"{one.p50_ms:.0f} ms",
        "latency p95 (objective)": lambda one: f"{one.p95_ms:.0f} ms ({one.slo_ms:.0f})",
        "accuracy, measured": lambda one: f"{one.accuracy:.4f}",
        "energy per request": lambda one: energy(one.energy_j_per_request),
        "carbon per request": lambda one: carbon(one.carbon_gco2e_per_request),
        "GPUs powered": lambda one: str(one.gpus),
        "plans / reconfigurations": lambda one: f"{one.plans} / {one.reconfigurations}",
    }
    return [(label, said(base), said(cinquefoil)) for label, said in words.items()]


def render(base: Figures, cinquefoil: Figures) -> RenderableType:
    """Return the headline, with the gain and its price, and the table."""
    made = table("Equal load, equal GPUs", "a day of the grid", ">BASE", ">Cinquefoil")
    for row in rows(base, cinquefoil):
        made.add_row(*row)
    return Group(Text(), Text(headline(base, cinquefoil), style="bold"), made)


def headline(base: Figures, cinquefoil: Figures) -> str:
    """Return what was gained and what it cost, in words."""
    less_carbon = saving(cinquefoil.carbon_gco2e_per_request, base.carbon_gco2e_per_request)
    less_energy = saving(cinquefoil.energy_j_per_request, base.energy_j_per_request)
    points = (cinquefoil.accuracy - base.accuracy) * 100
    later_ms = cinquefoil.p95_ms - base.p95_ms
    kept = "within" if cinquefoil.p95_ms <= cinquefoil.slo_ms else "above"
    lost = "no request was lost" if not cinquefoil.lost else f"{cinquefoil.lost} requests were lost"
    return (
        f"Cinquefoil saved {percent(less_carbon)} of the carbon and {percent(less_energy)} of the "
        f"energy of BASE. The price: {points:+.2f} points of accuracy and {later_ms:+.0f} ms at "
        f"p95 ({cinquefoil.p95_ms:.0f} ms, {kept} the objective of {cinquefoil.slo_ms:.0f} ms); "
        f"{lost}."
    )
