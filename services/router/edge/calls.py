"""Inference for the HTTP handlers: on the same engine as gRPC, with the same queue and quotas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from aiohttp import web

from services.kit.errors import InvalidArgument
from services.kit.http.context import HttpContext
from services.kit.rpc import caller
from services.kit.rpc.access import valid_until
from services.kit.rpc.client_identity import client_of
from services.router.core.accounting.receipts import Answer
from services.router.core.model import ResponseReceiver
from services.router.core.wire import Head, read_head, time_s
from services.router.runtime.engine import Engine

TIMEOUT: Final = "cinquefoil-timeout-s"
"""Header with the time after which the caller wants no answer, s."""

LINES: Final = "/v2/waiting/lines"
"""Path of calls with many requests that can wait."""

WAIT: Final = "cinquefoil-wait-until"
"""Header of a request that can wait, with the time until which."""


class Seen(NamedTuple):
    """Facts in the body of a request that its message lacks.

    Attributes:
        text_bytes, adapter: As of `Head`.
        flex: It can wait, by its service tier.
    """

    text_bytes: int = 0
    adapter: str = ""
    flex: bool = False


_NOTHING: Final = Seen()


class Calls:
    """Has requests answered.

    Args:
        engine: Answers.
        max_request_bytes: Largest serialized request.
    """

    def __init__(self, engine: Engine, max_request_bytes: int) -> None:
        self._engine = engine
        self.max_request_bytes = max_request_bytes

    async def infer(
        self,
        request: web.Request,
        body: bytes,
        receiver: ResponseReceiver | None = None,
        *,
        seen: Seen = _NOTHING,
    ) -> Answer:
        """Return the answer to a request.

        Args:
            request: The HTTP request: its deadline, and who sends it.
            body: A serialized inference.ModelInferRequest.
            receiver: Takes responses before the last; None: a single one is wanted.
            seen: What its body says that the message does not.

        Raises:
            ServiceError: As `Engine.infer`, the request is wrong, or the caller's identity expires.
        """
        head = _timed(read_head(body, self.max_request_bytes), request)
        if seen is not _NOTHING or request.path == LINES:
            head = replace(
                head,
                text_bytes=seen.text_bytes,
                adapter=seen.adapter,
                deferrable=seen.flex or head.deferrable,
                one_of_many=request.path == LINES,
            )
        context, known = HttpContext(request), caller()
        client = partial(client_of, context, known)
        async with valid_until(min(known.until_s, context.until_s())):
            return await self._engine.infer(head, body, None, receiver, client)

    def receipt(self, answer: Answer) -> Mapping[str, str]:
        """Return the headers that say what an answer cost, and by which plan it was given."""
        plan = self._engine.registry.table.plan_version
        return {**dict(answer.trailers), "cinquefoil-plan": str(plan)}


def _timed(head: Head, request: web.Request) -> Head:
    until = request.headers.get(WAIT)
    if until is not None:
        head = replace(head, deferrable=True, wait_until_s=time_s(WAIT, until))
    given = request.headers.get(TIMEOUT)
    if given is None:
        return head
    try:
        limit_s = float(given)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise InvalidArgument.at(TIMEOUT, f"must be a number of seconds above 0, got {given!r}")
    return replace(head, timeout_s=head.limit_s(limit_s, limit_s))
