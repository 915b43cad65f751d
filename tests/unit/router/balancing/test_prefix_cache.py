"""Beginnings of prompts that an instance has probably cached."""

from hypothesis import given
from hypothesis import strategies as st

from services.router.core.prefix_cache import (
    BLOCK_BYTES,
    LARGE_BYTES,
    MAX_PROMPT_BYTES,
    SMALL_BLOCKS,
    PrefixCache,
    chain,
    length_of,
)
from tests.support.examples import examples

prompts = st.lists(
    st.lists(st.sampled_from([bytes([b]) * BLOCK_BYTES for b in b"abc"]), max_size=5).map(b"".join),
    max_size=12,
)


TAILS = st.binary(max_size=300)


@given(st.binary(max_size=1000), TAILS, TAILS, st.integers(0, 3 * SMALL_BLOCKS * BLOCK_BYTES))
def test_texts_have_the_same_names_as_far_as_their_whole_blocks_are_the_same(
    shared: bytes, one: bytes, other: bytes, more: int
) -> None:
    shared += bytes(more)
    found, others = chain(shared + one), chain(shared + other)
    same = len(chain(shared))

    assert found[:same] == others[:same] == chain(shared)
    for at in range(same, min(len(found), len(others))):
        end = length_of(at + 1)
        assert (found[at] == others[at]) == ((shared + one)[:end] == (shared + other)[:end])


@given(st.integers(0, MAX_PROMPT_BYTES))
def test_a_block_more_begins_where_the_last_one_ended(text_bytes: int) -> None:
    """Small blocks for short texts, large ones after them; the rest is less than a block."""
    blocks = len(chain(bytes(text_bytes)))
    block_bytes = BLOCK_BYTES if blocks < SMALL_BLOCKS else LARGE_BYTES

    assert length_of(blocks) <= text_bytes < length_of(blocks) + block_bytes


def test_only_the_first_blocks_of_a_long_prompt_count() -> None:
    assert length_of(len(chain(bytes(MAX_PROMPT_BYTES + 9 * LARGE_BYTES)))) == MAX_PROMPT_BYTES


@examples(0.4)
@given(prompts, st.integers(1, 8))
def test_what_is_known_is_a_beginning_of_something_taken_and_the_memory_is_bounded(
    texts: list[bytes], most: int
) -> None:
    """The newest prompt is known as far as it fits."""
    cache = PrefixCache(most)
    for text in texts:
        cache.add(chain(text))
        assert len(cache) <= most
        assert cache.matched(chain(text)) == min(len(chain(text)), most)
    for text in texts:
        known = cache.matched(chain(text))
        assert all(cache.matched(chain(text)[:short]) == short for short in range(known))
    cache.clear()

    assert not any(cache.matched(chain(text)) for text in texts)
