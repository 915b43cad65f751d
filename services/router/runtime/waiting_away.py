"""Requests that can wait, between this region's queue and what peer regions take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from services.kit.clock import Clock
from services.kit.errors import Unavailable
from services.router.core.accounting.receipts import Answer
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.dispatch.filler import LEAST_AWAY_S
from services.router.core.forwarding import Outgoing
from services.router.core.model import ResponseReceiver
from services.router.core.model_registry import ModelRegistry
from services.router.core.pending_request import PendingRequest
from services.router.core.wire import Head
from services.router.runtime.forward_port import ForwardPort

LEAVES: Final = Unavailable("the request may run in a peer region")
"""End of a request that waited in this region's queue, and is sent away."""

_LOOK_S: Final = 0.25
"""Time between two looks at what may leave, s: less than that of a rate's burst."""


class Leaves(Exception):
    """A request has left the queue, and may run in a peer region."""


class WaitingCall(NamedTuple):
    """A call that can wait; attributes as the arguments of `Engine.infer`."""

    head: Head
    body: bytes
    remaining_s: float | None
    receiver: ResponseReceiver | None
    client: Callable[[], str] | None


class WaitingAway:
    """Sends requests that can wait to peer regions, and takes back those that they do not answer.

    Args:
        registry: The models.
        clock: Time.
        infer: Returns the answer of this region; a request that leaves meanwhile raises `Leaves`.
        leave: Takes a request out of its queue.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        clock: Clock,
        infer: Callable[..., Awaitable[Answer]],
        leave: Callable[[Dispatcher, PendingRequest], None],
    ) -> None:
        self._registry, self._clock = registry, clock
        self._infer, self._leave = infer, leave

    async def infer(self, forwards: ForwardPort, call: WaitingCall, limit_s: float) -> Answer:
        """Return the answer to a call, of this region or of a peer.

        Args:
            forwards: Leads to the peers.
            call: The call.
            limit_s: Its time limit.
        """
        head, began_s = call.head, self._clock.monotonic()
        self._registry.model(head.model_name, head.model_version)
        if head.wait_until_s is None:  # the limit counts from now on, wherever it waits
            head = replace(head, wait_until_s=self._clock.now().timestamp() + limit_s)
        while True:
            spent_s = self._clock.monotonic() - began_s
            left_s = limit_s - spent_s
            if left_s > LEAST_AWAY_S:
                answer = await forwards.forward(
                    Outgoing(
                        head, call.body, left_s, call.receiver, call.client, None, can_wait=True
                    )
                )
                if answer is not None:
                    return answer
            spent_s = self._clock.monotonic() - began_s
            remaining_s = None if call.remaining_s is None else call.remaining_s - spent_s
            with suppress(Leaves):
                return await self._infer(head, call.body, remaining_s, call.receiver, call.client)

    async def keep(self, forwards: ForwardPort) -> None:
        """Take requests out of the queue as peers take them, for ever."""
        while True:
            for model, count in forwards.may_leave().items():
                left = count
                for dispatcher in self._registry.dispatchers(model) if left > 0 else ():
                    leaving = dispatcher.filler.may_leave(left, self._clock.monotonic())
                    for pending in leaving:
                        self._leave(dispatcher, pending)
                    left -= len(leaving)
            await asyncio.sleep(_LOOK_S)
