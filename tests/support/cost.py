"""Costs of reading: processor time and memory of a parser, as shares of what they may be.

A byte from another costs at most 40 ns and 8 bytes, beside 20 ms and 4 MiB for the whole: a border
that keeps to it holds the event loop for at most 50 ms with 700 KiB. (The densest honest document,
`1,` in JSON as FP32, takes 24 ns a byte.) Files of the operator's own cost more, by the factor that
their border says; no request brings one.
"""

from __future__ import annotations

import gc
import json
import math
import time
import tracemalloc
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

from hypothesis import strategies as st

from tests.support.borders import Border

_CPU_S: Final = 0.020
_MEMORY_BYTES: Final = 4 * 2**20
_REFERENCE_S: Final = 0.012
_TRIES: Final = 3
_PATIENCE_S: Final = 15.0
"""Longer than other processes hold a core; only what costs too much is tried as long."""
_PAUSE_S: Final = 0.2
_OPENS: Final = b"[{,"
_OURS: Final = 30


class Cost(NamedTuple):
    """Shares of what an input may cost; above 1: too much. Attributes: cpu, memory."""

    cpu: float
    memory: float


def cost(border: Border, data: bytes) -> Cost:
    """Return what a border takes to read some bytes.

    Processor time is the least of many tries, with pauses between them, and relative to what this
    machine takes for a document of numbers: other processes make both longer, for a while.
    """
    usual_s = _CPU_S + border.cpu_s_per_byte * len(data)
    may_s = usual_s * _at_first()
    cpu_s = math.inf
    give_up_s = time.monotonic() + _PATIENCE_S
    while True:
        gc.collect()
        started_s = time.process_time()
        border(data)
        cpu_s = min(cpu_s, time.process_time() - started_s)
        if cpu_s <= may_s or time.monotonic() > give_up_s:
            break
        may_s = max(may_s, usual_s * slowness())  # the machine may have become busier
        time.sleep(_PAUSE_S)
    tracemalloc.start()
    try:
        border(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Cost(cpu_s / may_s, peak / (_MEMORY_BYTES + border.memory_per_byte * len(data)))


@cache
def _at_first() -> float:
    return slowness()


def slowness() -> float:
    """Return how many times longer than it is meant to this machine takes, at least 1."""
    document = json.dumps([0.25] * 200_000)
    took_s = []
    for _ in range(_TRIES):
        started_s = time.process_time()
        json.loads(document)
        took_s.append(time.process_time() - started_s)
    return max(1.0, min(took_s) / _REFERENCE_S)


def repeated(border: Border) -> st.SearchStrategy[tuple[bytes, bytes, bytes]]:
    """Draw a valid input cut in two, and what may come any number of times between.

    The piece is one that the border names, or one of the input; it may take the place of another.
    """
    drawn = []
    for seed in border.seeds:
        cuts = sorted({0, len(seed), *(at + 1 for at, byte in enumerate(seed) if byte in _OPENS)})
        ours = [seed[first:last] for first, last in pairwise(cuts)]
        for unit in (*border.units, *ours[:_OURS]):
            drawn += [(seed[:cut], unit, seed[cut:]) for cut in cuts[-_OURS:]]
            drawn += [(seed[:cut], unit, seed[end:]) for cut, end in pairwise(cuts)][:_OURS]
    return st.sampled_from(drawn)


def filled(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    """Return an input of about a size; "####" in the piece becomes its number."""
    count = max(1, size // max(len(unit), 1))
    return (
        head + b"".join(unit.replace(b"####", b"%04x" % (at % 2**16)) for at in range(count)) + tail
    )
