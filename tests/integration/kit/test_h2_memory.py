"""Memory of a process that a peer's words alone can take."""

import psutil

from services.kit.h2.messages import PREFIX, MessageReader

_MIB = 2**20


def test_a_message_that_is_announced_takes_no_memory_before_it_comes() -> None:
    """A few bytes on each of some streams must not take all memory of the machine."""
    reader = MessageReader(lambda _: None, 2**30)
    process = psutil.Process()
    before_bytes = process.memory_info().rss

    announced = PREFIX.pack(0, 2**30) + bytes(100)
    reader.feed(memoryview(announced), 0, len(announced))

    assert reader.partial is not None
    assert reader.partial.size == 2**30
    assert process.memory_info().rss - before_bytes < 64 * _MIB
