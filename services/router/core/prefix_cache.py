"""Which beginnings of prompts an instance's server has probably cached.

A prompt is cut into blocks of bytes, each named by a hash of itself and of the block before it, so
that a name stands for all the text up to there. Names are kept, no text; bytes are hashed with a
key of the process (SipHash), so that no client can make names collide.

Source: vLLM, "Automatic Prefix Caching" (hash chains of blocks); llm-d, "precise" and "approximate"
prefix-cache scorers, of which this is the approximate kind: no server is queried.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

BLOCK_BYTES: Final = 256
"""Of text, about 64 tokens."""

MAX_PROMPT_BYTES: Final = 2048 * BLOCK_BYTES
"""Of one prompt that count: its first 512 KiB."""

MAX_BLOCKS: Final = 16_384
"""Names kept of one instance, about 2 MB: 4 MiB of text."""


def chain(text: bytes) -> tuple[int, ...]:
    """Return the names of a text's whole blocks, in order; at most those of `MAX_PROMPT_BYTES`."""
    names = []
    name = 0
    whole_bytes = min(len(text) // BLOCK_BYTES * BLOCK_BYTES, MAX_PROMPT_BYTES)
    for start in range(0, whole_bytes, BLOCK_BYTES):
        name = hash((name, text[start : start + BLOCK_BYTES]))
        names.append(name)
    return tuple(names)


class PrefixCache:
    """The blocks of one instance, those used least recently forgotten first.

    A block is never known without all those before it: of one prompt, the last is forgotten first.

    Args:
        most: Blocks that are kept.
    """

    __slots__ = ("_blocks", "_most")

    def __init__(self, most: int = MAX_BLOCKS) -> None:
        self._most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of names kept."""
        return len(self._blocks)

    def matched(self, blocks: Sequence[int]) -> int:
        """Return how many of a prompt's first blocks are known; O(log n)."""
        return bisect_right(blocks, 0, key=lambda block: block not in self._blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """Note that the instance takes a prompt."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget all: the server starts again."""
        self._blocks.clear()
