"""Shares of a site's power budget: the power that each node's devices may draw.

Each share is idle power and a part of the rest: most of that by what nodes draw now, so that a
burst finds its power within seconds, and a reserve by what they could draw, so that idle nodes may
begin. The shares of a site add up to its budget, or to idle power where that is more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

RESERVE: Final = 0.15
"""Part of the power above idle that is shared out by what nodes could draw."""


@dataclass(frozen=True, slots=True)
class NodeDraw:
    """A node as its site's budget sees it; devices without hosts and PUE.

    Attributes:
        name: Name of the node.
        pue: Wall power per power of the node.
        host_w: Power beside the devices, W.
        idle_w: Power of the devices without work, W.
        most_w: Most power of the devices, W.
        power_w: Metered power of the devices, W.
        fixed: Whether it cannot be limited: its agent is away, or may only read.
    """

    name: str
    pue: float
    host_w: float
    idle_w: float
    most_w: float
    power_w: float
    fixed: bool = False

    @property
    def wall_w(self) -> float:
        """Power at the wall, W."""
        return self.pue * (self.host_w + self.power_w)


def site_wall_w(nodes: Sequence[NodeDraw]) -> float:
    """Return the metered power of a site at the wall, W."""
    return sum(node.wall_w for node in nodes)


def shares_w(limit_w: float, nodes: Sequence[NodeDraw]) -> Mapping[str, float]:
    """Return the most power of the devices of each node that can be limited, W.

    Args:
        limit_w: Budget of the site at the wall, W.
        nodes: All of its nodes.
    """
    free = [node for node in nodes if not node.fixed]
    taken_w = sum(node.wall_w for node in nodes if node.fixed)
    idle_w = sum(node.pue * (node.host_w + node.idle_w) for node in free)
    room_w = max(0.0, limit_w - taken_w - idle_w)
    drawn_w = {node.name: max(0.0, node.power_w - node.idle_w) for node in free}
    could_w = {node.name: max(0.0, node.most_w - node.idle_w) for node in free}
    by_draw, by_size = _parts(free, drawn_w), _parts(free, could_w)
    reserve = RESERVE if by_draw else 1.0
    return {
        node.name: node.idle_w
        + room_w
        / node.pue
        * (reserve * by_size.get(node.name, 0.0) + (1 - reserve) * by_draw.get(node.name, 0.0))
        for node in free
    }


def _parts(nodes: Sequence[NodeDraw], weights_w: Mapping[str, float]) -> dict[str, float]:
    """Return each node's part of the sum at the wall; {}: the sum is 0."""
    total_w = sum(node.pue * weights_w[node.name] for node in nodes)
    if total_w <= 0:
        return {}
    return {node.name: node.pue * weights_w[node.name] / total_w for node in nodes}
