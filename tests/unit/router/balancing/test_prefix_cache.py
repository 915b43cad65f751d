"""Beginnings of prompts that an instance has probably cached."""

from hypothesis import given
from hypothesis import strategies as st

from services.router.core.prefix_cache import BLOCK_BYTES, MAX_PROMPT_BYTES, PrefixCache, chain

prompts = st.lists(
    st.lists(st.sampled_from([bytes([b]) * BLOCK_BYTES for b in b"abc"]), max_size=5).map(b"".join),
    max_size=12,
)


@given(st.binary(max_size=1000), st.binary(max_size=300), st.binary(max_size=300))
def test_texts_have_the_same_names_as_far_as_their_whole_blocks_are_the_same(
    shared: bytes, one: bytes, other: bytes
) -> None:
    found, others = chain(shared + one), chain(shared + other)
    same = len(shared) // BLOCK_BYTES

    assert found[:same] == others[:same] == chain(shared)
    for at in range(same, min(len(found), len(others))):
        end = (at + 1) * BLOCK_BYTES
        assert (found[at] == others[at]) == ((shared + one)[:end] == (shared + other)[:end])


def test_only_the_first_blocks_of_a_long_prompt_count() -> None:
    assert len(chain(bytes(MAX_PROMPT_BYTES + 9 * BLOCK_BYTES))) == MAX_PROMPT_BYTES // BLOCK_BYTES


@given(prompts, st.integers(1, 8))
def test_what_is_known_is_a_beginning_of_something_taken_and_the_memory_is_bounded(
    texts: list[bytes], most: int
) -> None:
    """And the newest prompt is known as far as it fits."""
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
