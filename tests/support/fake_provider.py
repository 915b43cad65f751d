"""A real HTTP server on a free port, with answers that a test sets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class HttpRequest:
    """A request. Attributes: path, query, headers (lower case)."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """A response; `delay_s` passes before it."""

    body: bytes | str = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


Route = Callable[[HttpRequest], Answer]


@dataclass
class ProviderServer:
    """Attributes: url, route (gives the answers; may be exchanged), requests (all so far)."""

    url: str
    route: Route
    requests: list[HttpRequest] = field(default_factory=list)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            line, _, rest = head.partition(b"\r\n")
            target = urlsplit(line.split()[1].decode())
            headers = {
                name.lower(): value for name, value in BytesParser().parsebytes(rest).items()
            }
            request = HttpRequest(target.path, dict(parse_qsl(target.query)), headers)
            self.requests.append(request)
            answer = self.route(request)
            await asyncio.sleep(answer.delay_s)
            body = answer.body.encode() if isinstance(answer.body, str) else answer.body
            lines = [f"HTTP/1.1 {answer.status} X", "connection: close"]
            if answer.status != 304:
                lines.append(f"content-length: {len(body)}")
            lines += [f"{name}: {value}" for name, value in answer.headers.items()]
            writer.write("\r\n".join((*lines, "", "")).encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client gave up
        finally:
            writer.close()


@asynccontextmanager
async def serving_http(route: Route) -> AsyncIterator[ProviderServer]:
    """Serve while the block runs."""
    server = ProviderServer("", route)
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
