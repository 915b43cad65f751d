"""The proxy model: an ONNX file that predicts a prompt's length class."""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from services.kit.errors import FailedPrecondition
from services.predictor.core.features import features
from services.predictor.core.length_histogram import TOKENS

DEFAULT: Final = Path(__file__).parents[1] / "default" / "predictor.onnx"
METADATA: Final = "cinquefoil.predictor"
FORMAT: Final = 3


@dataclass(frozen=True, slots=True)
class Known:
    """Length statistics of the training data.

    Attributes:
        prior: Weights of lengths, every model weighing the same, shape (TOKENS.count,).
        classes: By served model, as `LengthClasses.to_bytes` wrote them.
    """

    prior: NDArray[np.float64]
    classes: Mapping[str, bytes]


class ProxyModel:
    """Predicts the probability of each length class. Thread-safe.

    Args:
        file: File that `cinquefoil predictor train` wrote.

    Attributes:
        known: Length statistics of the training data.

    Raises:
        FailedPrecondition: The file cannot be read, or is not a predictor.
    """

    def __init__(self, file: Path = DEFAULT) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            session = ort.InferenceSession(
                file.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
            self.known = _known(session.get_modelmeta().custom_metadata_map)
        except OSError as error:
            raise FailedPrecondition(f"{file}: {error.strerror}") from error
        except KeyError as error:
            raise FailedPrecondition(
                f"{file}: not a predictor: `cinquefoil predictor train` did not write it"
            ) from error
        except Exception as error:  # onnxruntime's own errors have no common class
            raise FailedPrecondition(f"{file}: not a predictor: {error}") from error
        self._session = session

    def probabilities(
        self, prompt: str, vector: NDArray[np.float32], edges_tokens: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Return the probability of each class, shape (5,), sum 1.

        Args:
            prompt: Text of the prompt.
            vector: Embedding of the prompt by `MiniLm`.
            edges_tokens: Edges of the served model's classes, which stand for it in the network.
        """
        seen = features(prompt)
        inputs: dict[str, Any] = {
            "word_columns": seen.words.columns,
            "word_counts": seen.words.counts,
            "run_columns": seen.runs.columns,
            "run_counts": seen.runs.counts,
            "shallow": seen.shallow,
            "vector": vector,
            "edges": np.log1p(np.array(edges_tokens, np.float32)),
        }
        (likely,) = self._session.run(None, inputs)
        return tuple(likely.tolist())


def _known(metadata: Mapping[str, str]) -> Known:
    document = json.loads(metadata[METADATA])
    prior = np.frombuffer(b64decode(document["prior"]), "<f4").astype(np.float64)
    if document["format"] != FORMAT or prior.shape != (TOKENS.count,):
        raise ValueError(f"format {FORMAT} expected: train it again")
    return Known(prior, {name: b64decode(each) for name, each in document["classes"].items()})
