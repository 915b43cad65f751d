"""Power of sites at the wall, from the meters of their GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cinquefoil.planner.v1.records import SiteHistory
from services.kit.config import Site
from services.kit.config.sites import site_of
from services.planner.core.fleet import Fleet


@dataclass(frozen=True, slots=True)
class SiteNode:
    """A node as part of its site.

    Attributes:
        site: Name of the site.
        pue: Wall power per power of devices and host, >= 1.
        host_power_w: Power beside its devices, W.
    """

    site: str
    pue: float
    host_power_w: float


@dataclass(frozen=True, slots=True)
class SiteNodes:
    """Nodes of sites, and the GPUs on them.

    Attributes:
        nodes: Nodes of a site, by name.
        owners: Node of each GPU, by UUID.
    """

    nodes: Mapping[str, SiteNode] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet, sites: Mapping[str, Site]) -> SiteNodes:
        """Return the nodes of a fleet that are of a site."""
        found = {}
        for name in fleet.settings if sites else ():
            if site := site_of(sites, name):
                found[name] = SiteNode(site, fleet.pue(name), sites[site].host_power_w)
        return cls(found, fleet.owners)

    def power_w(self, devices_w: Mapping[str, float]) -> dict[str, float]:
        """Return the power at the wall by site, W.

        Args:
            devices_w: Power of the devices of connected nodes by node, W.
        """
        found: dict[str, float] = {}
        for name, each_w in devices_w.items():
            if node := self.nodes.get(name):
                wall_w = node.pue * (each_w + node.host_power_w)
                found[node.site] = found.get(node.site, 0.0) + wall_w
        return found

    def history(
        self, gpus: Mapping[str, Iterable[float]], limits: Mapping[str, tuple[float, float]]
    ) -> dict[str, SiteHistory]:
        """Return what is known of each site in a stretch of time.

        Args:
            gpus: Time metered, s, and energy, J, by GPU UUID.
            limits: Time with a limit, s, and the limit summed over it, J, by site.
        """
        by_node: dict[str, tuple[float, float]] = {}
        for uuid, (covered_s, energy_j) in gpus.items():
            name = self.owners.get(uuid, "")
            if name in self.nodes:
                longest_s, sum_j = by_node.get(name, (0.0, 0.0))
                by_node[name] = max(longest_s, covered_s), sum_j + energy_j
        sums: dict[str, tuple[float, float]] = {}
        for name, (covered_s, energy_j) in by_node.items():
            node = self.nodes[name]
            longest_s, sum_j = sums.get(node.site, (0.0, 0.0))
            wall_j = node.pue * (energy_j + node.host_power_w * covered_s)
            sums[node.site] = max(longest_s, covered_s), sum_j + wall_j
        return {
            site: SiteHistory(*sums.get(site, (0.0, 0.0)), *limits.get(site, (0.0, 0.0)))
            for site in sorted(sums.keys() | limits.keys())
        }
