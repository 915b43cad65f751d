"""Nodes as sites of the account: zone, PUE, intensity, and the models' shares of each GPU."""

from collections.abc import Mapping

from services.kit import config
from services.kit.grouping import grouped
from services.kit.segment import gpus_of
from services.kit.units import S_PER_H
from services.planner.core.accounting.site import INTENSITY, Site, embodied_carbon
from services.planner.core.cycle.cluster_state import ClusterState


def site_of(state: ClusterState, embodied: config.Embodied | None, name: str) -> Site | None:
    """Return a node's current site; None: unknown node, or unknown intensity of its zone.

    Args:
        state: State of the cluster.
        embodied: Settings of embodied carbon; None: it is not counted.
        name: Name of the node.
    """
    settings, node = state.fleet.settings.get(name), state.fleet.node(name)
    intensity = None if settings is None else state.intensity_gco2e_per_kwh.get(settings.zone)
    if settings is None or intensity is None:
        return None
    gpus = node.gpus if node else ()
    specs = (run.spec for run in node.segments) if node else ()
    held = grouped((uuid, (spec.model, spec.placement)) for spec in specs for uuid in gpus_of(spec))
    return Site(
        name,
        settings.zone,
        state.fleet.pue(name),
        intensity,
        {
            gpu.uuid: embodied_carbon(embodied, gpu.type, held.get(gpu.uuid, ()))
            for gpu in gpus
            if embodied is not None
        },
        INTENSITY.get(state.provenance.get(settings.zone, "measured"), 0.0),
        {gpu.uuid: gpu.type.metered_limit_w for gpu in gpus},
        _eur_per_kwh(state, settings.zone, intensity),
    )


def cost_eur_per_h(state: ClusterState, devices_w: Mapping[str, float]) -> float | None:
    """Return the cost of the power that is metered now, EUR/h; None: no price is known.

    Args:
        state: State of the cluster.
        devices_w: Metered power of the devices of each connected node, W.
    """
    sites = (site_of(state, None, name) for name in devices_w)
    priced = [site for site in sites if site and site.eur_per_kwh]
    costs = (site.cost_eur(devices_w[site.node] * S_PER_H) for site in priced)
    return sum(costs) if priced else None


def _eur_per_kwh(state: ClusterState, zone: str, intensity_gco2e_per_kwh: float) -> float:
    """Return the price of a kWh, with that of its carbon where plans count it, EUR."""
    price = state.prices.at(zone, state.clock.now().timestamp())
    objective = state.objective
    carbon_eur_per_t = objective.carbon_price_eur_per_t if objective.kind == "cost" else 0.0
    carbon_eur = 1e-6 * carbon_eur_per_t * intensity_gco2e_per_kwh
    return carbon_eur + (price.eur_per_kwh if price else 0.0)
