"""The nodes as the account sees them: zone, PUE, intensity, and who holds which part of a GPU."""

from collections.abc import Mapping
from typing import Final

from services.kit import config
from services.planner.core.accounting.embodied import ManufacturingCarbon
from services.planner.core.accounting.site import EmbodiedCarbon, Site
from services.planner.core.accounting.uncertainty import INTENSITY
from services.planner.core.fleet import Fleet
from services.planner.core.model import GpuType

_PACKAGES_W: Final = 2000.0
"""The meter of CPU cores may be that of all packages of the machine, whichever are offered."""


class FleetSites:
    """Looks nodes up as they are now.

    Args:
        nodes: Of the deployment file.
        fleet: What their agents report.
        intensity_gco2e_per_kwh: By zone; grows, and changes.
        embodied: How embodied carbon is counted; None: it is not.
        provenance: How each zone's intensity is known; left out: measured.
    """

    def __init__(
        self,
        nodes: Mapping[str, config.Node],
        fleet: Fleet,
        intensity_gco2e_per_kwh: Mapping[str, float],
        embodied: config.Embodied | None = None,
        provenance: Mapping[str, str] | None = None,
    ) -> None:
        self._nodes = nodes
        self._fleet = fleet
        self._intensity = intensity_gco2e_per_kwh
        self._provenance = {} if provenance is None else provenance
        self._making = (
            embodied
            if embodied is None
            else ManufacturingCarbon(embodied.lifetime_y, embodied.kgco2e)
        )

    def __call__(self, node: str) -> Site | None:
        """Return a node as it is now; None: unknown node, or unknown intensity of its zone."""
        settings = self._nodes.get(node)
        intensity = None if settings is None else self._intensity.get(settings.zone)
        if settings is None or intensity is None:
            return None
        return Site(
            node,
            settings.zone,
            self._fleet.pue(node),
            intensity,
            self._boards(node),
            INTENSITY.get(self._provenance.get(settings.zone, "measured"), 0.0),
            self._max_power_w(node),
        )

    def _max_power_w(self, name: str) -> dict[str, float]:
        node = self._fleet.node(name)
        return {} if node is None else {gpu.uuid: _max_power_w(gpu.type) for gpu in node.gpus}

    def _boards(self, name: str) -> dict[str, EmbodiedCarbon]:
        node = self._fleet.node(name)
        if self._making is None or node is None:
            return {}
        return {
            gpu.uuid: self._making.board(
                gpu.type,
                (
                    (run.spec.model, run.spec.placement)
                    for run in node.segments
                    if run.spec.gpu_uuid == gpu.uuid
                ),
            )
            for gpu in node.gpus
        }


def _max_power_w(kind: GpuType) -> float:
    return max(kind.max_power_w, _PACKAGES_W) if kind.core_gmacs_per_s else kind.max_power_w
