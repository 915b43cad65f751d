"""Second instances: for what one could not answer, and for what takes one long."""

from __future__ import annotations

from collections.abc import Iterable

from services.router.core.dispatch.admission import WaitingRoom
from services.router.core.dispatch.decisions import Decision, Fail, Reply, Send, Withdraw
from services.router.core.dispatch.instance_pool import Roster
from services.router.core.dispatch.retry_budget import Retries
from services.router.core.instance_state import Lane
from services.router.core.model import Limits, Request


class SecondChances:
    """Retries and hedges of one model, within one budget.

    Args:
        room: Where what is retried waits.
        roster: Who may be given it.
        limits: The budget.
    """

    def __init__(self, room: WaitingRoom, roster: Roster, limits: Limits) -> None:
        self._room = room
        self._roster = roster
        self._retries = Retries(limits)

    def hedge(self, request: Request, offered: int) -> list[Decision]:
        """Give a request that takes long to a second instance as well.

        Only where one has a free credit that nobody waits for, and within the budget.

        Args:
            request: It.
            offered: Requests so far.
        """
        if request.over or request.begun or request.holder is None or request.hedge is not None:
            return []
        if self._room.queue or self._room.suspects or request.deaths:
            return []
        lane = self._roster.free(besides=request.holder)
        if lane is None or not self._retries.take(offered):
            return []
        request.hedge = lane.instance.id
        self._roster.give(lane, request)
        return [Send(lane.instance, request)]

    def settle(self, request: Request, lane: Lane) -> Iterable[Decision]:
        """End a request that a lane answered; a second worker's answer is not wanted any more."""
        reply = Reply(lane.instance, request)
        if request.hedge is None:
            return (reply,)
        loser = request.hedge if request.holder == lane.instance.id else request.holder
        if loser is None:
            return (reply,)
        return (reply, Withdraw(self._roster.lanes[loser].instance, request))

    def retry(
        self, request: Request, lane: Lane, offered: int, retry_after_s: float
    ) -> Iterable[Decision]:
        """Put a request back in its place, or end it where it has met too many instances.

        Where a second instance has it, too, that one goes on.

        Args:
            request: It.
            lane: Who did not answer it.
            offered: Requests so far.
            retry_after_s: When its caller may try again, if it ends here.
        """
        answering = request.holder == lane.instance.id
        if request.hedge is not None:
            request.holder = request.hedge if answering else request.holder
            request.hedge = None
            if not (request.begun and answering):
                return ()
        request.holder = None
        if request.over:
            return ()
        error = self._retries.refusal(
            request,
            blameless=lane.draining or not request.sent,
            requests=offered,
            retry_after_s=retry_after_s,
        )
        if error is None:
            (self._room.suspects if request.deaths else self._room.queue).push(request)
            return ()
        request.over = True
        return (Fail(request, error),)
