"""The nodes as the account sees them: zone, PUE, intensity, and who holds which part of a GPU."""

from typing import Final

from services.kit import config
from services.kit.grouping import grouped
from services.planner.core.accounting.site import INTENSITY, EmbodiedCarbon, Site, embodied_carbon
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.model import GpuType

_PACKAGES_W: Final = 2000.0
"""The meter of CPU cores may be that of all packages of the machine, whichever are offered."""


class FleetSites:
    """Looks nodes up as they are now.

    Args:
        state: The cluster's.
        embodied: How embodied carbon is counted; None: it is not.
    """

    def __init__(self, state: ClusterState, embodied: config.Embodied | None = None) -> None:
        self._state = state
        self._embodied = embodied

    def __call__(self, node: str) -> Site | None:
        """Return a node as it is now; None: unknown node, or unknown intensity of its zone."""
        state, fleet = self._state, self._state.fleet
        settings = fleet.settings.get(node)
        intensity = None if settings is None else state.intensity_gco2e_per_kwh.get(settings.zone)
        if settings is None or intensity is None:
            return None
        return Site(
            node,
            settings.zone,
            fleet.pue(node),
            intensity,
            self._boards(node),
            INTENSITY.get(state.provenance.get(settings.zone, "measured"), 0.0),
            self._max_power_w(node),
        )

    def _max_power_w(self, name: str) -> dict[str, float]:
        node = self._state.fleet.node(name)
        return {} if node is None else {gpu.uuid: _max_power_w(gpu.type) for gpu in node.gpus}

    def _boards(self, name: str) -> dict[str, EmbodiedCarbon]:
        node = self._state.fleet.node(name)
        if self._embodied is None or node is None:
            return {}
        specs = (run.spec for run in node.segments)
        held = grouped((spec.gpu_uuid, (spec.model, spec.placement)) for spec in specs)
        return {
            gpu.uuid: embodied_carbon(self._embodied, gpu.type, held.get(gpu.uuid, ()))
            for gpu in node.gpus
        }


def _max_power_w(kind: GpuType) -> float:
    return max(kind.max_power_w, _PACKAGES_W) if kind.core_gmacs_per_s else kind.max_power_w
