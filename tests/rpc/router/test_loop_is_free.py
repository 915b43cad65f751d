"""The costliest documents that the HTTP address takes leave the event loop free for others.

Processor time is measured, of two threads: of each callback of the loop, and of each call of C code
in the thread that reads large documents, since such a call keeps the interpreter to itself.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx
import pytest

from services.kit import off_loop
from services.kit.net import free_port
from tests.rpc.router.test_openai import texts
from tests.support.batch_service import deployment_of, ended, serving_batches, settings
from tests.support.cost import slowness
from tests.support.router.router_service import World, refusal, running

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

HELD_S: Final = 0.050
_run_handle = asyncio.Handle._run


class Holds:
    """Longest time for which the interpreter was kept from the event loop, s of processor.

    Attributes:
        longest_s: It.
        where: The callback, or the function of C.
    """

    def __init__(self) -> None:
        self.longest_s, self.where = 0.0, ""
        self._since_s, self._in_c = 0.0, False

    async def least(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do something up to three times, and keep the least hold: other processes lengthen it."""
        least = (math.inf, "")
        for _ in range(3):
            self.longest_s, self.where = 0.0, ""
            result = await action()
            least = min(least, (self.longest_s, self.where))
            if least[0] <= HELD_S:
                break
        self.longest_s, self.where = least
        return result

    def run(self, handle: Any) -> None:
        """Run a callback, as `Handle._run`."""
        began_s = time.thread_time()
        _run_handle(handle)
        self._note(time.thread_time() - began_s, _named(handle))

    def profile(self, frame: Any, event: str, called: Any) -> None:
        """Take an event of `sys.setprofile`: between two of them no other thread has a turn."""
        now_s = time.thread_time()
        if self._in_c:
            name = getattr(called, "__qualname__", frame.f_code.co_qualname)
            self._note(now_s - self._since_s, f"{event} {name}")
        self._in_c, self._since_s = event == "c_call", time.thread_time()

    def _note(self, took_s: float, where: str) -> None:
        if took_s > self.longest_s:
            self.longest_s, self.where = took_s, where


def _named(handle: Any) -> str:
    """Return the coroutine that a callback steps, or else the callback."""
    task = getattr(handle._callback, "__self__", None)
    called = task.get_coro() if isinstance(task, asyncio.Task) else handle._callback
    return getattr(called, "__qualname__", type(called).__name__)


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holds]:
    """Holds of the loop of this test."""
    found = Holds()
    monkeypatch.setattr(asyncio.Handle, "_run", lambda handle: found.run(handle))  # noqa: PLW0108 - a function, which becomes a method
    off_loop._reader.submit(sys.setprofile, found.profile).result()
    yield found
    off_loop._reader.submit(sys.setprofile, None).result()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A router whose only worker refuses whatever it is sent."""
    port, batches = free_port(), free_port()
    sections = {"batch": {"listen": "127.0.0.1:0", "http_listen": f"127.0.0.1:{batches}"}}
    async with running(http_listen=f"127.0.0.1:{port}", sections=sections) as world:
        worker = await world.worker("a", lambda work: refusal(work, "no"))
        worker.metadata, worker.decoupled = texts("openai"), True
        await world.route(worker)
        yield world


MIB: Final = 2**20
INFER: Final = "/v2/models/digits/infer"
GENERATE: Final = "/v2/models/digits/generate"
CHAT: Final = "/v1/chat/completions"


def repeated(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def tensor(values: bytes, count: int, datatype: bytes = b"FP32") -> bytes:
    head = b'{"inputs":[{"name":"text_input","shape":[%d],"datatype":"%b","data":['
    return head % (count, datatype) + values + b"]}]}"


COUNT: Final = 4 * MIB - 64
CHAT_HEAD: Final = b'{"model":"digits","messages":['
DOCUMENTS: Final[dict[str, tuple[str, Callable[[], bytes]]]] = {
    "8 MiB of short numbers": (INFER, lambda: tensor(b"1," * (COUNT - 1) + b"1", COUNT)),
    "8 MiB of lists as numbers": (
        INFER,
        lambda: repeated(tensor(b"", 1)[:-4], b"[],", b"1]}]}", 8 * MIB),
    ),
    "65,000 strings": (INFER, lambda: tensor(b'"",' * 64_999 + b'""', 65_000, b"BYTES")),
    "one string of 8 MiB": (
        INFER,
        lambda: tensor(b'"%b"' % (b"\\n" * (4 * MIB - 99)), 1, b"BYTES"),
    ),
    "8 MiB of objects": (INFER, lambda: repeated(b'{"inputs":[', b"{},", b"{}]}", 8 * MIB)),
    "a text of 8 MiB": (GENERATE, lambda: repeated(b'{"text_input":"', b"\\u00e9", b'"}', 8 * MIB)),
    "8,000 members": (GENERATE, lambda: b"{%b}" % b",".join(b'"%d":1' % n for n in range(8000))),
    "a chat of 16 MiB": (
        CHAT,
        lambda: repeated(CHAT_HEAD + b'{"content":"', b"\\n", b'"}]}', 16 * MIB - 9),
    ),
    "65,000 messages": (CHAT, lambda: CHAT_HEAD + b"{}," * 65_000 + b"{}]}"),
    "21,000 messages with parts": (
        CHAT,
        lambda: CHAT_HEAD + b'{"content":[{}]},' * 21_000 + b"{}]}",
    ),
    "262,000 tokens": (
        CHAT,
        lambda: b'{"model":"digits","prompt":[' + b"12345," * 262_000 + b"1]}",
    ),
    "16 MiB of objects": (CHAT, lambda: repeated(CHAT_HEAD, b"{},", b"{}]}", 16 * MIB - 9)),
    "16 MiB of brackets in strings": (
        CHAT,
        lambda: repeated(CHAT_HEAD, b'"[[[[[[[[[[",', b"{}]}", 16 * MIB),
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_a_document_leaves_the_loop_free(world: World, holds: Holds, name: str) -> None:
    """Of the largest size, made of what costs most; taken or refused, never for 50 ms at once."""
    path, made = DOCUMENTS[name]
    body = await asyncio.to_thread(made)

    def post() -> httpx.Response:
        return httpx.post(f"http://{world.http}{path}", content=body, timeout=60)

    answer = await holds.least(lambda: asyncio.to_thread(post))

    assert 400 <= answer.status_code < 500, answer.text[:300]
    assert holds.longest_s <= HELD_S * slowness(), holds.where


LINE: Final = b'{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":%b}\n'
LINES: Final = (
    CHAT_HEAD + b"{}," * 65_000 + b"{}]}",
    CHAT_HEAD + b'{"content":[{}]},' * 21_000 + b"{}]}",
    b'{"model":"digits","prompt":[' + b"12345," * 262_000 + b"1]}",
    b'{"model":"digits","prompt":[' + b'"",' * 65_000 + b"1]}",
    repeated(CHAT_HEAD + b'{"content":"', b"\\n", b'"}]}', 8 * MIB - 300),
)


async def test_lines_of_a_batch_leave_the_loops_free(
    world: World, holds: Holds, tmp_path: Path
) -> None:
    """Uploaded, read, sent to the router and answered, in one process with the router."""
    made = deployment_of(world, settings(tmp_path))
    file = b"".join(LINE % (number, line) for number, line in enumerate(LINES))
    async with serving_batches(made) as client:

        async def batch() -> Any:
            given = await client.files.create(file=("lines.jsonl", file), purpose="batch")
            begun = await client.batches.create(
                input_file_id=given.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
            return await ended(client, begun.id)

        found = await holds.least(batch)

    assert holds.longest_s <= HELD_S * slowness(), holds.where
    assert found.request_counts.total == len(LINES)
