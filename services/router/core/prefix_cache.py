"""Estimate of the prompt prefixes that an instance's server has cached.

A prompt is cut into blocks of bytes, each named by a hash of itself and of the block before it, so
that a name stands for all the text up to there. Names are kept, no text; bytes are hashed with a
key of the process (SipHash), so that no client can make names collide. The first blocks are small,
for short prompts; later ones are larger, so that few names remember long prompts.

Source: vLLM, "Automatic Prefix Caching" (hash chains of blocks); llm-d, "precise" and "approximate"
prefix-cache scorers, of which this is the approximate kind: no server is queried.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

BLOCK_BYTES: Final = 256
"""Of text in a small block, about 64 tokens."""

SMALL_BLOCKS: Final = 16
LARGE_BYTES: Final = 1024
MAX_PROMPT_BYTES: Final = 512 * 1024
"""Of one prompt that count."""

MAX_BLOCKS: Final = 16_384
"""Names kept of one instance, about 2 MB: of long prompts 16 MiB, four million tokens."""

_SMALL_BYTES: Final = SMALL_BLOCKS * BLOCK_BYTES


def chain(text: bytes) -> tuple[int, ...]:
    """Return the names of a text's whole blocks, in order; at most those of `MAX_PROMPT_BYTES`."""
    names = []
    name, start, end_bytes = 0, 0, min(len(text), MAX_PROMPT_BYTES)
    while (end := start + (BLOCK_BYTES if start < _SMALL_BYTES else LARGE_BYTES)) <= end_bytes:
        name = hash((name, text[start:end]))
        names.append(name)
        start = end
    return tuple(names)


def length_of(blocks: int) -> int:
    """Return how many bytes a prompt's first blocks have."""
    small = min(blocks, SMALL_BLOCKS)
    return small * BLOCK_BYTES + (blocks - small) * LARGE_BYTES


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
        """Add the blocks of a prompt sent to the instance."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Remove all blocks, as after a restart of the server."""
        self._blocks.clear()
