"""Who is right more often about prompts that both know: like prompts, or the proxy model.

mu-Serve takes a like prompt's length whenever there is one. On GPTeacher that is right less often
than our proxy model (docs/prompt-cache.md); for a model that the proxy was never trained on it may
be the other way round. Both tell, so what turns out decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MEMORY: Final = 64
"""Answers that the means are of, about."""


@dataclass(frozen=True, slots=True)
class Rivals:
    """Mean distances, in classes, between what was told and what turned out.

    Attributes:
        judged: Answers.
        cache_off: Of like prompts' lengths.
        model_off: Of the proxy model's.
    """

    judged: int = 0
    cache_off: float = 0.0
    model_off: float = 0.0

    @property
    def cache_leads(self) -> bool:
        """Whether like prompts tell no worse; so it is taken to be before anything turned out."""
        return self.cache_off <= self.model_off

    def then(self, *, cache_class: int, model_class: int, true_class: int) -> Rivals:
        """Return these with one more answer; old ones fade."""
        weight = 1 / min(self.judged + 1, _MEMORY)
        cache_off, model_off = abs(cache_class - true_class), abs(model_class - true_class)
        return Rivals(
            self.judged + 1,
            self.cache_off + weight * (cache_off - self.cache_off),
            self.model_off + weight * (model_off - self.model_off),
        )
