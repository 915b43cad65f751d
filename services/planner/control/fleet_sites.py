"""Nodes as sites of the account: zone, PUE, intensity, and the models' shares of each GPU."""

from services.kit import config
from services.kit.grouping import grouped
from services.kit.segment import gpus_of
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
    )
