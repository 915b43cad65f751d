"""Inference for the HTTP handlers: on the same engine as gRPC, with the same queue and quotas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from aiohttp import web

from services.kit.errors import InvalidArgument
from services.kit.http.context import HttpContext
from services.kit.rpc import caller
from services.kit.rpc.access import valid_until
from services.kit.rpc.client_identity import client_of
from services.router.core.accounting.receipts import Answer
from services.router.core.model import ResponseReceiver
from services.router.core.wire import Head
from services.router.frontend import messages
from services.router.runtime.engine import Engine

TIMEOUT: Final = "cinquefoil-timeout-s"
"""Header with the time after which the caller wants no answer, s."""


class Calls:
    """Has requests answered.

    Args:
        engine: Answers.
        max_request_bytes: Largest serialized request.
    """

    def __init__(self, engine: Engine, max_request_bytes: int) -> None:
        self._engine = engine
        self._max_request_bytes = max_request_bytes

    async def infer(
        self,
        request: web.Request,
        body: bytes,
        receiver: ResponseReceiver | None = None,
        *,
        text_bytes: int = 0,
        adapter: str = "",
    ) -> Answer:
        """Return the answer to a request.

        Args:
            request: The HTTP request: its deadline, and who sends it.
            body: A serialized inference.ModelInferRequest.
            receiver: Takes responses before the last; None: a single one is wanted.
            text_bytes: As of `Head`.
            adapter: As of `Head`.

        Raises:
            ServiceError: As `Engine.infer`, the request is wrong, or the caller's identity expires.
        """
        head = _timed(messages.read_request_head(body, self._max_request_bytes), request)
        if text_bytes or adapter:
            head = replace(head, text_bytes=text_bytes, adapter=adapter)
        context, known = HttpContext(request), caller()
        client = partial(client_of, context, known)
        async with valid_until(min(known.until_s, context.until_s())):
            return await self._engine.infer(head, body, None, receiver, client)

    def receipt(self, answer: Answer) -> Mapping[str, str]:
        """Return the headers that say what an answer cost, and by which plan it was given."""
        plan = self._engine.registry.table.plan_version
        return {**dict(answer.trailers), "cinquefoil-plan": str(plan)}


def _timed(head: Head, request: web.Request) -> Head:
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
