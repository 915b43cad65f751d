"""One request and its answer on their way through Envoy: the pick, and what the answer brings.

Two modes, which Envoy's filter chooses (docs/beside.md):

- pick: the request's body comes BUFFERED, of the answer come head and trailers. Envoy's stream ends
  with the answer; the picker does not learn what is in it.
- account: bodies come FULL_DUPLEX_STREAMED, and each piece goes back. Tokens are counted, and the
  usage gets the receipt.

Envoy ends every stream by a reset, so that being cancelled is the usual end here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from envoy_ext_proc import ext_proc_pb2 as pb
from inference import grpc_service_pb2 as inference
from services.kit.api_requests import PATHS, document, max_tokens, prompt_bytes
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from services.kit.http.statuses import TOO_LARGE
from services.kit.off_loop import off_loop
from services.kit.request_cost import Cost, Usage
from services.kit.rpc.client_identity import CLIENT_ID
from services.router.adapters.server_port import Pick
from services.router.core.accounting.receipts import Answer, priced
from services.router.core.answer_reader import AnswerReader
from services.router.core.model import Instance
from services.router.core.wire import Head
from services.router.core.worker_port import Result
from services.router.edge import openai_messages
from services.router.picker import messages
from services.router.picker.parts import NoParts, PickerParts

FALLBACKS: Final = 4
"""Servers that are named beside the chosen one."""

_WHOLE: Final = "/v1/chat/completions"
_SERVER_ERROR: Final = 500
_STATUS_DIGITS: Final = 3
_DEFAULT_RETRY_S: Final = 1.0
_MOST_STATED: Final = 4096
"""Headers of answers that are kept, each some 200 bytes."""

Write = Callable[[bytes], Awaitable[None]]


class Exchange:
    """One stream of Envoy's.

    Args:
        parts: What all exchanges share.
        write: Sends a serialized message.
    """

    def __init__(self, parts: PickerParts, write: Write) -> None:
        self._parts = parts
        self._write = write
        self._arrived_s = parts.clock.monotonic()
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()
        self._reserved = 0
        self._subset: frozenset[str] | None = None
        self._modes = pb.ProtocolConfiguration()
        self._pick: Pick | None = None
        self._request_id = ""
        self._task: asyncio.Task[Answer | None] | None = None
        self._answer: AnswerReader | None = None
        self._status = 0
        self._settled = self._whole = self._begun = False
        self._quota = ExitStack()

    async def take(self, message: pb.ProcessingRequest) -> None:
        """Answer a message of Envoy's.

        Raises:
            ServiceError: The client is to be answered with it.
        """
        kind = message.WhichOneof("request")
        if kind is not None and kind == ("request_headers" if self._begun else "request_body"):
            raise InvalidArgument.at(kind, "a stream has the head of one request, then its body")
        if kind == "request_body" and self._pick is not None:
            raise InvalidArgument.at(kind, "must end with the piece that has end_of_stream")
        match kind:
            case "request_headers":
                await self._take_head(message)
            case "request_body":
                await self._take_body(message.request_body)
            case "request_trailers":
                if self._begun and self._pick is None:  # such a body has no end of its own
                    await self._choose(ended=False)
                await self._write(messages.CONTINUE["request_trailers"])
            case "response_headers":
                await self._take_answer_head(message)
            case "response_body":
                await self._take_answer(message.response_body)
            case "response_trailers":
                await self._take_trailers()
            case _:
                raise InvalidArgument.at("request", "required: one of ext_proc's kinds")

    def close(self) -> bool:
        """Give the credit back: Envoy needs nothing more, or its client has gone.

        Returns:
            Whether an answer was seen to its end, as far as Envoy shows it.
        """
        pick, self._pick = self._pick, None
        self._quota.close()
        self._parts.bodies_left += self._reserved
        self._reserved = 0
        if pick is None:
            return False
        self._parts.ports.picks.pop(self._request_id, None)
        if pick.port is None:
            if self._task is not None:
                self._task.cancel()
            return False
        return self._settled or self._settle_at_end(pick)

    # ---- the request ---------------------------------------------------------------------------

    async def _take_head(self, message: pb.ProcessingRequest) -> None:
        self._begun = True
        self._modes = message.protocol_config
        self._headers = messages.headers_of(message.request_headers)
        self._subset = messages.subset_of(message)
        mode = self._modes.request_body_mode
        if mode not in (pb.NONE, pb.BUFFERED, pb.FULL_DUPLEX_STREAMED):
            raise FailedPrecondition(
                f"the filter's request_body_mode is {pb.BodySendMode.Name(mode)}: a picker needs"
                " BUFFERED (pick) or FULL_DUPLEX_STREAMED (account); see docs/beside.md",
                reason="MODE",
            )
        if message.request_headers.end_of_stream or mode == pb.NONE:
            await self._choose(ended=True)
        elif mode == pb.BUFFERED:  # Envoy waits for this before it reads the body
            await self._write(messages.CONTINUE["request_headers"])

    async def _take_body(self, piece: pb.HttpBody) -> None:
        size, parts = len(piece.body), self._parts
        if len(self._body) + size > parts.max_request_bytes:
            raise ResourceExhausted(
                f"the request has more than {parts.max_request_bytes} bytes:"
                " router.max_request_bytes",
                reason=TOO_LARGE,
            )
        if size > parts.bodies_left:
            raise ResourceExhausted(
                "requests that wait take all of router.max_queue_mib",
                reason="QUEUE_BYTES",
                retry_after_s=_DEFAULT_RETRY_S,
            )
        parts.bodies_left -= size
        self._reserved += size
        self._body += piece.body
        if piece.end_of_stream:
            await self._choose(ended=True)

    async def _choose(self, *, ended: bool) -> None:
        """Wait for a server and name it; then the body follows, where it passes here."""
        parts = self._parts
        head, body = await self._request()
        client = self._client()
        self._request_id = head.id
        self._pick = pick = parts.ports.picks[head.id] = Pick(self._subset)
        self._quota.enter_context(parts.engine.charged(client))
        self._task = parts.spawn(self._infer(head, body, client, pick))
        chosen = await pick.chosen
        servers = ",".join((chosen.endpoint, *self._others(head.model_name, chosen)))
        held = bytes(self._body)
        self._body.clear()
        duplex = self._modes.request_body_mode == pb.FULL_DUPLEX_STREAMED
        buffered = bool(held) and not duplex
        kind = "request_body" if buffered else "request_headers"
        await self._write(messages.destination(servers, kind))
        if held and duplex:
            for piece in messages.pieces("request_body", held, ended=ended):
                await self._write(piece)
        parts.bodies_left += self._reserved
        self._reserved = 0

    async def _request(self) -> tuple[Head, bytes]:
        """Return what routing reads of the request, and the request as the core takes it."""
        path = self._headers.get(":path", "").partition("?")[0]
        body, found, length = bytes(self._body), dict[str, Any](), 0
        if body and path in PATHS:
            read = partial(document, body, self._parts.max_request_bytes)
            found = await off_loop(len(body), read)
            length = prompt_bytes(found, len(body))
        model = self._model(found.get("model"))
        made = openai_messages.passed(found, body, model, path or _WHOLE)
        head = Head(
            model,
            id=next(self._parts.numbers),
            max_tokens=max_tokens(found),
            text_bytes=length,
            only=self._refused(model),
        )
        return head, made

    def _model(self, name: object) -> str:
        """Return the model that a request names; the only one, where it names none."""
        pools = self._parts.pools
        known = ", ".join(sorted(pools.models))
        if isinstance(name, str) and name:
            found = pools.named(name)
            if found is None:
                raise NotFound(
                    f"no model {name!r} has servers; models.*.servers has {known}",
                    reason="MODEL_NOT_FOUND",
                    field="model",
                )
            return found
        if len(pools.models) != 1:
            raise InvalidArgument.at("model", f"required; there are: {known}")
        return next(iter(pools.models))

    def _refused(self, model: str) -> frozenset[str] | None:
        """Return the servers that may take the request; None: all.

        Raises:
            Unavailable: None can, and no wait will change that.
        """
        dispatcher = self._parts.engine.registry.model(model)
        allowed, pick = self._subset, Pick(self._subset)
        states = [
            each for each in dispatcher.states.values() if pick.allows(each.instance.endpoint)
        ]
        served = self._parts.pools.models.get(model)  # None: removed a moment ago
        pools = () if served is None else served.servers.values()
        starts = not dispatcher.states and any(pool.replicas_min == 0 for pool in pools)
        if not starts and not any(each.takes_requests for each in states):
            which = "that the gateway allows " if allowed is not None else ""
            raise Unavailable(
                f"no server {which}of model {model!r} takes requests: {len(states)} are known",
                reason="NO_INSTANCE",
                retry_after_s=_DEFAULT_RETRY_S,
            )
        if allowed is None:
            return None
        return frozenset(each.instance.endpoint for each in states)

    def _client(self) -> Callable[[], str]:
        headers = self._headers
        name = headers.get(messages.FAIRNESS) or headers.get(CLIENT_ID) or ""
        return lambda: f"id:{name[:256]}"

    async def _infer(
        self, head: Head, body: bytes, client: Callable[[], str], pick: Pick
    ) -> Answer | None:
        """Return the answer with its receipt; None: there is none, and the client knows why."""
        try:
            return await self._parts.engine.infer(head, body, None, NoParts(), client)
        except ServiceError as error:
            if not pick.chosen.done():
                pick.chosen.set_exception(error)
            return None

    def _others(self, model: str, chosen: Instance) -> Iterator[str]:
        """Yield further servers to try, those with the fewest requests first."""
        states = self._parts.engine.registry.model(model).states.values()
        pick = self._pick
        others = [
            (len(each.in_flight), each.instance.endpoint)
            for each in states
            if each.takes_requests and each.instance.endpoint != chosen.endpoint
        ]
        allowed = (each for _, each in sorted(others) if pick is None or pick.allows(each))
        for _, endpoint in zip(range(FALLBACKS), allowed, strict=False):
            yield endpoint

    # ---- the answer ----------------------------------------------------------------------------

    async def _take_answer_head(self, message: pb.ProcessingRequest) -> None:
        headers = messages.headers_of(message.response_headers)
        status = headers.get(":status", "")
        self._status = int(status) if len(status) == _STATUS_DIGITS and status.isdecimal() else 0
        kind = headers.get("content-type", "")
        self._whole = message.response_headers.end_of_stream
        if not headers.get("content-encoding") and kind.startswith(
            ("text/event-stream", "application/json")
        ):
            events = kind.startswith("text/event-stream")
            self._answer = AnswerReader(events=events, arrived_s=self._arrived_s)
        chosen = self._chosen()
        if chosen is None:
            await self._write(messages.CONTINUE["response_headers"])
            return
        served = messages.served_by(message)
        if served and served != chosen.endpoint:
            self._parts.ports.suspect(chosen.endpoint)
        await self._write(self._stated(chosen))

    async def _take_answer(self, piece: pb.HttpBody) -> None:
        self._whole |= piece.end_of_stream
        duplex = self._modes.response_body_mode == pb.FULL_DUPLEX_STREAMED
        passed, last = piece.body, b""
        if self._answer is not None and not self._settled:
            now_s = self._parts.clock.monotonic()
            passed, last = self._answer.take(piece.body, now_s, last=piece.end_of_stream)
            if self._answer.ended:
                last = await self._receipted(last)
        if not duplex:
            await self._write(messages.CONTINUE["response_body"])
            return
        for each in messages.pieces("response_body", passed + last, ended=piece.end_of_stream):
            await self._write(each)

    async def _take_trailers(self) -> None:
        self._whole = True
        answer = self._task.result() if self._task is not None and self._task.done() else None
        stated = dict(answer.trailers) if answer is not None else {}
        await self._write(
            messages.with_headers("response_trailers", stated)
            if stated
            else messages.CONTINUE["response_trailers"]
        )

    async def _receipted(self, last: bytes) -> bytes:
        """Settle the request, whose answer is there; return its last part with the receipt."""
        pick, reader = self._pick, self._answer
        if pick is None or pick.port is None or reader is None or self._task is None:
            return last
        self._settle(pick, self._cost(pick.port.instance, reader.usage()))
        answer = await self._task
        if answer is None or not last or self._status >= _SERVER_ERROR:
            return last
        response = inference.ModelInferResponse.FromString(answer.body)
        plan = self._parts.engine.registry.table.plan_version
        receipt = openai_messages.receipt(response, plan)
        add = openai_messages.with_receipt if last.startswith(b"{") else openai_messages.ending
        return add(last, receipt)

    def _cost(self, instance: Instance, usage: Usage) -> Cost | None:
        if not usage.output_tokens and not usage.input_tokens:
            return None
        took_s = self._parts.clock.monotonic() - self._arrived_s
        return self._parts.cost(instance, usage, self._held(instance), took_s)

    def _settle(self, pick: Pick, cost: Cost | None, status: str = "", why: str = "") -> None:
        self._settled = True
        if pick.port is not None:
            pick.port.finish(Result(pick.number, status, why, cost=cost))

    def _settle_at_end(self, pick: Pick) -> bool:
        """Settle a request whose stream has ended; return whether its answer was complete."""
        if self._status >= _SERVER_ERROR:
            self._settle(pick, None, "INTERNAL", f"the server answered HTTP {self._status}")
            return True
        passes = self._modes.response_body_mode != pb.NONE
        if self._status and (self._whole or not passes):
            self._settle(pick, None)
            return True
        why = "CANCELLED", "the client has gone"
        if self._task is None or self._task.done():
            self._settle(pick, None, *why)
            return False
        # Once the core knows, so that it learns no latency from the answer that was not wanted.
        self._task.add_done_callback(lambda _: self._settle(pick, None, *why))
        self._task.cancel()
        return False

    def _chosen(self) -> Instance | None:
        pick = self._pick
        return None if pick is None or pick.port is None else pick.port.instance

    def _stated(self, chosen: Instance) -> bytes:
        """Return the headers that the answer gets; those of equal answers are made once."""
        parts = self._parts
        plan, intensity = parts.engine.registry.table.plan_version, parts.intensity(chosen.zone)
        cost = parts.expected(chosen, self._held(chosen))
        energy_j = None if cost is None else cost.energy_j
        key = chosen.variant, chosen.pue, plan, intensity, energy_j
        found = parts.stated.get(key)
        if found is None:
            if len(parts.stated) >= _MOST_STATED:
                parts.stated.clear()
            stated = {"cinquefoil-variant": chosen.variant, "cinquefoil-plan": str(plan)}
            if cost is not None:
                stated["cinquefoil-expected-energy-j"] = f"{cost.energy_j:.4g}"
                if (carbon := priced(chosen, cost, parts.intensity)) is not None:
                    stated["cinquefoil-expected-carbon-gco2e"] = f"{carbon.active:.4g}"
            found = parts.stated[key] = messages.with_headers("response_headers", stated)
        return found

    def _held(self, instance: Instance) -> int:
        state = self._parts.engine.registry.model(instance.model).states.get(instance.id)
        return len(state.in_flight) if state is not None else 1
