"""The proxy model's features of a prompt: hashed n-grams and a few plain counts.

All in numpy on the prompt's bytes, without a vocabulary: a prompt takes about a tenth of a
millisecond, and nothing of the training prompts ships with the model.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HEAD_CHARACTERS, TAIL_CHARACTERS = 1500, 500
"""Characters read of a prompt: questions are at its start or at its end."""

BUCKETS = 1 << 16
"""Columns per kind of n-gram."""

RUN_BYTES = (3, 4, 5)

SHALLOW = (
    "log_characters", "log_words", "log_lines", "mean_word", "digit_share", "upper_share",
    "symbol_share", "other_script_share", "question_marks", "quotes", "braces", "backticks",
    "colons", "numbers", "longest_number",
)  # fmt: skip
"""Names of the plain counts, in their order."""

_OPENING_WORDS = 4

_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - 16)
_EMPTY = np.zeros(0, np.uint64)

_POWERS = np.cumprod(np.full(4 * (HEAD_CHARACTERS + TAIL_CHARACTERS) + 8, _PRIME), dtype=np.uint64)
"""Powers of the prime, modulo 2^64: room for text of four bytes a character."""


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of one kind in a prompt.

    Attributes:
        columns: Distinct columns in [0, BUCKETS), ascending, int64, shape (n,).
        counts: Occurrences of each, 1 + log(count), shape (n,).
    """

    columns: NDArray[np.int64]
    counts: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Features:
    """Input of the proxy model.

    Attributes:
        words: Words, pairs of words, and the first words.
        runs: Runs of 3, 4 and 5 bytes.
        shallow: The plain counts of `SHALLOW`, shape (len(SHALLOW),).
    """

    words: Grams
    runs: Grams
    shallow: NDArray[np.float32]


def features(prompt: str) -> Features:
    """Return the features of a prompt, from its first and last characters."""
    read = bounded(prompt)
    text = np.frombuffer(read.lower().encode("utf-8", "replace"), np.uint8)
    words = _words(text)
    runs = np.concatenate([_runs(text, size) for size in RUN_BYTES])
    return Features(
        words=_grams(np.concatenate((words, _pairs(words), _openings(words)))),
        runs=_grams(runs),
        shallow=_shallow(read, len(prompt), len(words)),
    )


def bounded(prompt: str) -> str:
    """Return the head and the tail of a prompt."""
    if len(prompt) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return prompt
    return prompt[:HEAD_CHARACTERS] + prompt[-TAIL_CHARACTERS:]


def _shallow(read: str, character_count: int, word_count: int) -> NDArray[np.float32]:
    """Return the plain counts of `SHALLOW`.

    Args:
        read: Head and tail of the prompt.
        character_count: Length of the whole prompt.
        word_count: Number of words in `read`.
    """
    codes = np.frombuffer(read.encode("utf-32-le", "replace"), np.uint32)
    size = max(len(codes), 1)
    digits = (codes >= 48) & (codes <= 57)
    lower = ((codes | 32) >= 97) & ((codes | 32) <= 122) & (codes < 128)
    upper = lower & (codes < 97)
    spaces = codes <= 32
    starts = np.flatnonzero(np.diff(np.concatenate(([False], digits, [False]))))
    lengths = starts[1::2] - starts[::2]
    other = codes >= 128
    return np.array(
        [
            np.log1p(character_count),
            np.log1p(word_count),
            np.log1p(read.count("\n")),
            (size - np.count_nonzero(spaces)) / max(word_count, 1),
            np.count_nonzero(digits) / size,
            np.count_nonzero(upper) / size,
            np.count_nonzero(~(digits | lower | spaces | other)) / size,
            np.count_nonzero(other) / size,
            read.count("?"),
            read.count('"') + read.count("'"),
            read.count("{") + read.count("(") + read.count("["),
            read.count("`"),
            read.count(":"),
            len(lengths),
            min(lengths.max(initial=0), 20),
        ],
        np.float32,
    )


def _words(text: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a hash per word; every punctuation mark is a word."""
    letters = ((text >= 97) & (text <= 122)) | ((text >= 48) & (text <= 57)) | (text >= 128)
    signs = ~letters & (text > 32)
    if not (letters | signs).any():
        return _EMPTY
    before = np.concatenate(([False], letters[:-1]))
    starts = np.flatnonzero((letters & ~before) | signs)
    text, letters, signs = text[starts[0] :], letters[starts[0] :], signs[starts[0] :]
    starts = starts - starts[0]
    kept = np.where(letters | signs, text, 0).astype(np.uint64)
    # A letter counts by its place in its word.
    within = np.arange(len(text)) - np.repeat(starts, np.diff(starts, append=len(text)))
    return np.add.reduceat(kept * _POWERS[within], starts)


def _pairs(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash per pair of neighbours."""
    return words[:-1] * _MIX + words[1:] + _PRIME


def _openings(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash for the first word, the first two, ... and for each of them in its place.

    "List ten ..." and "What is ..." predict a length; the same words further on do not.
    """
    first = words[:_OPENING_WORDS]
    places = np.arange(1, len(first) + 1, dtype=np.uint64)
    placed = (first + places) * _MIX
    return np.concatenate((placed, np.cumsum(placed * _PRIME, dtype=np.uint64)))


def _runs(text: NDArray[np.uint8], size: int) -> NDArray[np.uint64]:
    """Return a hash per run of `size` bytes."""
    if len(text) < size:
        return _EMPTY
    windows = np.lib.stride_tricks.sliding_window_view(text.astype(np.uint64) + np.uint64(1), size)
    return windows @ _POWERS[:size] + np.uint64(size)


def _grams(hashes: NDArray[np.uint64]) -> Grams:
    """Return the n-grams of some hashes with their counts."""
    columns, counts = np.unique((hashes * _MIX) >> _SHIFT, return_counts=True)
    return Grams(columns.astype(np.int64), (1 + np.log(counts)).astype(np.float32))
