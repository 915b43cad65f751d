"""Collaborators of all exchanges with a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.request_cost import Cost, Usage
from services.router.adapters.server_port import ServerPorts
from services.router.core.accounting.receipts import Answer, Intensity
from services.router.core.model import Instance
from services.router.core.server_pools import ServerPools
from services.router.runtime.engine import Engine


@dataclass(eq=False)
class PickerParts:
    """Collaborators of all exchanges.

    Attributes:
        engine: Chooses.
        pools: The servers.
        ports: Their ports.
        clock: Time.
        max_request_bytes: Largest body.
        bodies_left: Bytes of bodies that may be held at a time, all requests together.
        cost: Returns the cost of an answer, from its server, tokens, the requests that the server
            holds, and its time, s.
        expected: Returns the cost of a usual answer, from its server and those requests.
        intensity: Carbon intensity of a zone, gCO2e/kWh; None: not known.
        spawn: Runs a request in the background.
        numbers: Names of requests that no client can guess.
        stated: Headers of answers, by all that they depend on.
    """

    engine: Engine
    pools: ServerPools
    ports: ServerPorts
    clock: Clock
    max_request_bytes: int
    bodies_left: int
    cost: Callable[[Instance, Usage, int, float], Cost | None]
    expected: Callable[[Instance, int], Cost | None]
    intensity: Intensity
    spawn: Callable[[Any], asyncio.Task[Answer | None]]
    numbers: Iterator[str]
    stated: dict[Hashable, bytes] = field(default_factory=dict)


class NoParts:
    """Takes the end of a request whose answer passes elsewhere: `ResponseReceiver`."""

    def receive_part(self, instance: Instance | None, response: bytes) -> None:  # noqa: ARG002 - the port's
        """Refuse a part: the gateway passes them."""
        raise FailedPrecondition("servers behind a gateway answer it, not the router")

    def complete(self, response: bytes) -> bytes:
        """Return the empty answer that there is."""
        return response
