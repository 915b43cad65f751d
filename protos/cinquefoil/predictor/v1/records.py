"""Messages of `cinquefoil.predictor.v1` as frozen values; written by `make protos`."""

from dataclasses import dataclass
from enum import IntEnum


class Source(IntEnum):
    """The source of a prediction."""

    UNSPECIFIED = 0
    # The cache: the same prompt was answered before.
    EXACT = 1
    # The cache: a prompt of similar meaning was answered before.
    SEMANTIC = 2
    # The proxy model.
    MODEL = 3
    # The distribution of the model's answers, for any prompt.
    PRIOR = 4

    @classmethod
    def _missing_(cls, value: object) -> "Source":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Observation:
    """The actual length of an answer.

    Attributes:
        model: Required. The model that answered.
        prompt_key: prompt_key of the PredictResponse.
        prompt: The prompt itself.
        output_tokens: Length of the answer, at most the model's context. Unit: tokens.
        truncated: Whether the answer was cut off there (finish_reason "length").
        tenant: With prompt: whose it is, as in PredictRequest. A prompt_key says so itself.
    """

    model: str = ""
    prompt_key: bytes | None = None
    prompt: bytes | None = None
    output_tokens: int = 0
    truncated: bool = False
    tenant: str = ""


@dataclass(frozen=True, slots=True, order=True)
class SourceStatistics:
    """Predictions of one source.

    Attributes:
        source: The source.
        predictions: Predictions.
        total_s: Time they took in all, from the request's arrival. Unit: s.
        judged: Predictions whose true length is known: the answer was not truncated.
        right: Of those, the ones whose class was right.
    """

    source: Source = Source.UNSPECIFIED
    predictions: int = 0
    total_s: float = 0.0
    judged: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Predictions for one model.

    Attributes:
        model: The model.
        sources: By source, those with predictions.
        observed: Lengths reported, those of truncated answers included.
        cache_entries: Prompts in the cache.
        cache_bytes: Memory that they take. Unit: bytes.
        class_edges_tokens: Upper edges of the classes 0..3. Unit: tokens. Empty: too few answers
            are known.
    """

    model: str = ""
    sources: tuple[SourceStatistics, ...] = ()
    observed: int = 0
    cache_entries: int = 0
    cache_bytes: int = 0
    class_edges_tokens: tuple[float, ...] = ()
