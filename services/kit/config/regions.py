"""A service in several regions: this one and its peers."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from services.kit.config.section import Address, Name, Section


class PeerRegion(Section):
    """Another region, with a suite of its own.

    Attributes:
        planner: Its planner.
        router: Its router, as other regions reach it.
        max_rps: Most that is sent there, of each model, req/s. None: what it grants.
    """

    planner: Address
    router: Address
    max_rps: Annotated[float, Field(gt=0, le=1e9)] | None = None


class Regions(Section):
    """This region, and the peers that it exchanges requests with.

    Attributes:
        name: This region.
        peers: Peers by name; each has this region among its own.
        exchange_s: Time between two exchanges with a peer, s.
        min_saving: Least carbon that a moved request saves, of its carbon at home, 0..1.
    """

    name: Name
    peers: Annotated[dict[Name, PeerRegion], Field(min_length=1, max_length=32)]
    exchange_s: Annotated[float, Field(ge=0.1, le=10)] = 5.0
    min_saving: Annotated[float, Field(ge=0, lt=1)] = 0.05

    def _problems(self) -> Iterator[str]:
        if self.name in self.peers:
            yield f"peers.{self.name}: is this region itself"
