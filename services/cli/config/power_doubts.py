"""Doubts about power budgets, prices and costs: what can never be kept, or is of another unit."""

from collections.abc import Iterator
from typing import Final

from services.kit.config import Deployment, Site
from services.kit.hardware import gpu_types

_LEAST_W: Final = 50.0
"""Budget below which kilowatts are probably meant: one idle GPU with its host draws more."""

_DEAR_EUR_PER_KWH: Final = 2.0
_DEAR_EUR_PER_T: Final = 2000.0
_RULES: Final = ("base", "co2opt", "parvagpu", "infadapter")

Finding = tuple[tuple[str, ...], str]


def power_doubts(deployment: Deployment) -> Iterator[Finding]:
    """Yield limits of sites that cannot be kept, or never bind."""
    for name, site in deployment.sites.items():
        if site.power_budget_w is not None:
            at = ("sites", name, "power_budget_w")
            yield from _limit(deployment, site, at, site.power_budget_w)
    for name, server in deployment.grid.openadr.items():
        if server.lost_limit_w is not None:
            site, where = deployment.sites[server.site], ("grid", "openadr", name, "lost_limit_w")
            yield from _limit(deployment, site, where, server.lost_limit_w)


def _limit(
    deployment: Deployment, site: Site, at: tuple[str, ...], limit_w: float
) -> Iterator[Finding]:
    if 0 < limit_w < _LEAST_W:
        yield at, f"{limit_w:g} watts; if kilowatts are meant, write {1e3 * limit_w:g}"
        return
    lowest_w, most_w = _range_w(deployment, site)
    if limit_w < lowest_w:
        text = f"{limit_w:g} W is below the {lowest_w:.0f} W that its nodes draw without work: "
        yield at, f"{text}nothing would be served there"
    elif most_w is not None and limit_w >= most_w:
        yield at, f"{limit_w:g} W is never reached: its nodes draw at most {most_w:.0f} W"


def _range_w(deployment: Deployment, site: Site) -> tuple[float, float | None]:
    """Return the power at the wall of a site's nodes without work, and the most.

    Of a node whose GPUs are not known here only the host counts, and the most is None.
    """
    lowest_w, most_w, known = 0.0, 0.0, True
    for name, node in deployment.nodes.items():
        if not site.has(name):
            continue
        types = [gpu_types.load(each) for each in node.simulated or () if each in gpu_types.names()]
        known = known and bool(types)
        lowest_w += node.pue * (site.host_power_w + sum(each.idle_power_w for each in types))
        most_w += node.pue * (site.host_power_w + sum(each.max_power_w for each in types))
    return lowest_w, most_w if known and deployment.join is None else None


def money_doubts(deployment: Deployment) -> Iterator[Finding]:
    """Yield prices of another unit, and costs that decide nothing."""
    for zone, source in deployment.grid.prices.items():
        if source.kind == "static" and source.eur_per_kwh > _DEAR_EUR_PER_KWH:
            text = f"{source.eur_per_kwh:g} euros; if cents are meant, write "
            yield (
                ("grid", "prices", zone, "eur_per_kwh"),
                f"{text}{source.eur_per_kwh / 100:g}",
            )
    planner = deployment.planner
    objective, at = planner.objective, ("planner", "objective")
    if objective.kind != "cost":
        return
    if objective.carbon_price_eur_per_t > _DEAR_EUR_PER_T:
        text = f"{objective.carbon_price_eur_per_t:g} euros a tonne"
        yield (*at, "carbon_price_eur_per_t"), text
    unpriced = sorted(deployment.node_zones - deployment.grid.prices.keys())
    if unpriced and not objective.carbon_price_eur_per_t:
        text = f"neither energy nor carbon has a price in {', '.join(unpriced)}: give grid.prices"
        yield (*at, "kind"), text
    if planner.strategy in _RULES:
        text = f"strategy {planner.strategy} follows a rule, not costs; use exact"
        yield (*at, "kind"), text
