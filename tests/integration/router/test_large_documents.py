"""Large JSON documents are read beside the event loop, in pieces."""

import asyncio
from functools import partial

import pytest

from services.kit.json_bounds import MAX_JSON_BYTES
from services.kit.off_loop import off_loop
from services.router.edge import tensor_json


def converted(body: bytes) -> bytes:
    """Return the message that a request over HTTP becomes."""
    request, tensors = tensor_json.read(body, None)
    return tensor_json.message(request, "digits", "", tensors)


async def test_the_loop_has_its_turn_while_a_large_document_is_read() -> None:
    """The parser holds the interpreter for a piece at a time: 128 of 64 KiB here."""
    count = MAX_JSON_BYTES // 10 - 20
    data = b",".join([b"0.1234567"] * count)
    body = b'{"inputs":[{"name":"x","shape":[%d],"datatype":"FP32","data":[%b]}]}' % (count, data)
    turns = 0
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(off_loop(len(body), partial(converted, body)))
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)

    assert turns > 5
    assert len(reading.result()) > 4 * count


def test_small_documents_are_read_at_once() -> None:
    """They wait for no thread, nor for large documents in it."""
    reading = off_loop(100, partial(int, "7"))
    with pytest.raises(StopIteration) as ended:
        reading.send(None)
    assert ended.value.value == 7
