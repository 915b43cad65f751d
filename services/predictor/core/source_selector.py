"""Chooses between similar prompts and the proxy model by which has been right more often.

mu-Serve uses a similar prompt's length whenever there is one. On GPTeacher that is right less often
than our proxy model (docs/prompt-cache.md); for a model that the proxy was not trained on it may be
the other way round. Both are evaluated on every true length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_WINDOW_ANSWERS: Final = 64
"""Number of answers that the means are effectively of."""


@dataclass(frozen=True, slots=True)
class SourceSelector:
    """Mean errors, in classes, of both sources.

    Attributes:
        judged: Number of answers.
        cache_error: Mean error of similar prompts' lengths.
        model_error: Mean error of the proxy model.
    """

    judged: int = 0
    cache_error: float = 0.0
    model_error: float = 0.0

    @property
    def prefers_cache(self) -> bool:
        """True if similar prompts are no worse, and before the first answer."""
        return self.cache_error <= self.model_error

    def updated(self, *, cache_class: int, model_class: int, true_class: int) -> SourceSelector:
        """Return the selector after one more answer; older answers weigh less."""
        weight = 1 / min(self.judged + 1, _WINDOW_ANSWERS)
        cache_error, model_error = abs(cache_class - true_class), abs(model_class - true_class)
        return SourceSelector(
            self.judged + 1,
            self.cache_error + weight * (cache_error - self.cache_error),
            self.model_error + weight * (model_error - self.model_error),
        )
