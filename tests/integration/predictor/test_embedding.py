"""Prompts to vectors, with the real model."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import services.predictor.embedding as package
from services.kit.package_data import package_file
from services.predictor.core.wordpiece import WordPiece
from services.predictor.embedding.minilm import INPUT, RESOURCE, SHA256, SIZE, MiniLm, network
from tests.support.examples import examples

FILE = package_file(RESOURCE, SHA256)
FROM_ZERO = np.zeros(SIZE, np.float32)

VOCABULARY = (Path(package.__path__[0]) / "vocab.txt").read_text(encoding="utf-8").splitlines()


def _session(model: Path | bytes) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


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
    """Pieces are those of the reference tokenizer of bert-base-uncased."""
    assert [VOCABULARY[number] for number in pieces.encode(text)] == expected


@given(st.text(st.characters(), max_size=300))
@examples(1)
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
    embedded = minilm.embed("How do I bake a chocolate cake?")
    same = minilm.embed("What is the way to bake a cake with chocolate?")
    other = minilm.embed("Write a SQL query that joins two tables.")

    assert embedded @ same > 0.8
    assert embedded @ other < 0.4


def test_eight_bits_say_what_the_package_s_own_network_of_floats_says(pieces: WordPiece) -> None:
    """Our vectors have a cosine above 0.98 to the mean of its states after three layers."""
    model = onnx.load(FILE)
    third = "inner.encoder.layer.2.output.LayerNorm.weight"
    (states,) = (node.output[0] for node in model.graph.node if third in node.input)
    model.graph.output.append(onnx.ValueInfoProto(name=states))
    ours, theirs = _session(network(FROM_ZERO)), _session(model.SerializeToString())
    for prompt in ("a", "Why is the sky blue?", "Write a SQL query that joins two tables."):
        inner = pieces.encode(prompt)
        ids = np.array([[pieces.number("[CLS]"), *inner, pieces.number("[SEP]")]], np.int64)
        masks = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        mean = theirs.run([states], {"input_ids": ids, **masks})[0][0].mean(axis=0)
        assert ours.run(None, {INPUT: ids})[0][0] @ mean / np.linalg.norm(mean) > 0.98


def test_every_matrix_is_multiplied_in_bytes_that_any_cpu_adds_without_overflow(
    tmp_path: Path,
) -> None:
    """CPUs without VNNI add two products in 16 bits: of 255 and 64 at most."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "folded.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxruntime.InferenceSession(network(FROM_ZERO), options, providers=["CPUExecutionProvider"])
    graph = onnx.load(tmp_path / "folded.onnx").graph
    made = Counter(node.op_type for node in graph.node)
    assert (made["QAttention"], made["DynamicQuantizeMatMul"], made["MatMul"]) == (3, 9, 0)
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    for node in graph.node:
        if node.op_type in {"QAttention", "DynamicQuantizeMatMul"}:
            bytes_ = values[node.input[1]]
            assert bytes_.dtype == np.int8
            assert np.abs(bytes_).max() <= 64


def test_seen_from_the_centre_different_prompts_point_different_ways(minilm: MiniLm) -> None:
    """The vectors' common part is subtracted, so that a threshold separates them."""
    prompts = ("Name three colours.", "Who wrote Faust?", "Fix this bug: x = [1", "Make up a joke.")
    centred, plain = (
        np.array([each.embed(prompt) for prompt in prompts]) for each in (minilm, MiniLm(FROM_ZERO))
    )
    pairs = np.triu_indices(len(prompts), 1)
    assert (centred @ centred.T)[pairs].mean() < (plain @ plain.T)[pairs].mean() - 0.1


def test_the_end_of_a_long_prompt_counts(minilm: MiniLm) -> None:
    """A long text with two different questions behind it makes two different vectors."""
    text = "The committee met on Tuesday and talked about roads. " * 50
    one = minilm.embed(text + "Summarise this in one sentence.")
    two = minilm.embed(text + "Translate all of it to French, word by word.")

    assert one @ two < 0.98
