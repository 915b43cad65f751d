"""A server of the OpenAI API that computes nothing, so that what is before it is measured.

python -m benchmarks.picker.server PORT [TOKEN_MS]

A bare asyncio protocol: other servers would take more of the processor than Envoy. Text answers
come at once, or as events, each a chunk.
"""

import asyncio
import json
import sys
from typing import Final, cast

import uvloop

_EVENT: Final = (
    b'data: {"id":"c","object":"text_completion","model":"m","choices":'
    b'[{"index":0,"text":" token","finish_reason":null}]}\n\n'
)
_CHUNK: Final = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_LIST: Final = b'{"object":"list","data":[{"id":"m","object":"model","max_model_len":131072}]}'


class Server(asyncio.Protocol):
    """One connection."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Stop the answer."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are there."""
        self._data += data
        while self._timer is None and (end := self._data.find(b"\r\n\r\n")) >= 0:
            head, rest = self._data[:end].lower(), self._data[end + 4 :]
            read = _body(head, rest)
            if read is None:
                return
            body, self._data = read
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if not body:
            self._send(_LIST if path.startswith(b"/v1/models") else b"{}")
            return
        wanted = json.loads(body)
        tokens = wanted.get("max_tokens", 16)
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": tokens, "total_tokens": 0}
        if not wanted.get("stream"):
            choice = {"index": 0, "text": " token" * tokens, "finish_reason": "length"}
            self._send(json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode())
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        self._step(tokens, json.dumps({"id": "c", "choices": [], "usage": usage}).encode())

    def _step(self, left: int, usage: bytes) -> None:
        if left:
            self._transport.write(_CHUNK)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._token_s, self._step, left - 1, usage)
            return
        last = b"data: %b\n\ndata: [DONE]\n\n" % usage
        self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
        self._timer = None
        self.data_received(b"")

    def _send(self, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )


def _body(head: bytes, rest: bytes) -> tuple[bytes, bytes] | None:
    """Return the body and what follows it; None: it is not all there."""
    if b"transfer-encoding: chunked" not in head:
        _, _, size = head.partition(b"content-length: ")
        length = int(size.split(b"\r")[0] or 0)
        return (rest[:length], rest[length:]) if len(rest) >= length else None
    parts, at = list[bytes](), 0
    while (end := rest.find(b"\r\n", at)) >= 0:
        size_of = int(rest[at:end], 16)
        at = end + 4 + size_of
        if len(rest) < at:
            return None
        if not size_of:
            return b"".join(parts), rest[at:]
        parts.append(rest[end + 2 : end + 2 + size_of])
    return None


async def serve(port: int, token_s: float) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(token_s), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 1e3 if len(sys.argv) > 2 else 0.0))
