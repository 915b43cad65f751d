"""Sites: nodes behind one electricity feed, and the power that they may draw together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from pydantic import Field

from services.kit.config.access import Principal
from services.kit.config.section import NonNegative, Section
from services.kit.net import matches

_MOST_BUDGET_W = 1e9


class Site(Section):
    """Nodes behind one electricity feed: a rack, a hall, a contract with a utility.

    Attributes:
        nodes: Names of its nodes, exact or with "*" at the end for a prefix. Each node is of at
            most one site.
        power_budget_w: Most power that they may draw together at the wall, W: the devices of a
            node and `host_power_w`, times its PUE. None: only grid events limit it.
        host_power_w: Power of each node beside its devices (processors, memory, fans), W.
    """

    nodes: Annotated[tuple[Principal, ...], Field(min_length=1)]
    power_budget_w: Annotated[float, Field(gt=0, le=_MOST_BUDGET_W)] | None = None
    host_power_w: NonNegative = 0.0

    def has(self, node: str) -> bool:
        """Return whether a node is of this site."""
        return any(matches(pattern, node) for pattern in self.nodes)


def site_of(sites: Mapping[str, Site], node: str) -> str:
    """Return the name of the site that a node is of; "": of none."""
    return next((name for name, site in sites.items() if site.has(node)), "")


def site_problems(
    sites: Mapping[str, Site], nodes: Iterable[str], *, others_join: bool
) -> Iterator[str]:
    """Yield contradictions between sites and nodes, as "key: sentence".

    Args:
        sites: Sites by name.
        nodes: Names of the nodes of the deployment.
        others_join: Whether nodes of other names may join.
    """
    nodes = tuple(nodes)
    for name, site in sites.items():
        for pattern in site.nodes:
            fits = any(matches(pattern, node) for node in nodes)
            if not fits and not others_join:
                yield f"sites.{name}.nodes: no node {pattern!r}; nodes has {', '.join(nodes)}"
    for node in nodes:
        of = [name for name, site in sites.items() if site.has(node)]
        if len(of) > 1:
            yield f"sites.{of[1]}.nodes: {node} is of sites.{of[0]} already: one site per node"
