"""Usual text lengths of language models, from the routers' token counts.

A profile states a usual request: tokens of its prompt and of its answer. Load in requests means
little if requests grow, so that plans use the observed lengths once they differ. If no batch of
those is in time, plans scale the objectives of each request by its excess over the last length that
was in time: its tokens count, and an objective that cannot be kept does not stop plans from
growing. If no batch is in time even then, plans use that last length.

A router may report anything. Hence no prompt or answer counts as longer than its model's context,
nor, where it is not in time, as more than `MOST_LONGER` times the last that was. Whatever is
reported, there are lengths with which capacity follows the requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.kit.profiles.core.language import (
    PROMPT_TOKENS_PER_STEP,
    LanguageProfile,
    long_prompt_tokens,
)
from services.planner.core.model import Model, Variant

LEAST_ANSWERS: Final = 100
"""Answers before lengths count: with the scatter of conversations (a standard deviation as large
as the mean) their mean is then within 20 % 19 times in 20."""

REMEMBERED_ANSWERS: Final = 1000.0
CONTEXT_TOKENS: Final = 131_072
"""Longest text, tokens, where the deployment states no `context_tokens`: that of common models in
August 2026."""

MOST_LONGER: Final = 16.0
"""Limit of lengths that are not in time, relative to the last that were. Still longer texts would
demand one request at a time on a replica, which is bad for usual ones."""

CHANGE: Final = 1.25
"""Factor by which prompts or answers must become longer or shorter to count as changed."""


LONG_CHANGE: Final = 1.5
"""The same of the longest prompts, of which few are seen."""


@dataclass(frozen=True, slots=True)
class TextLength:
    """A usual request.

    Attributes:
        prompt_tokens, answer_tokens: Means, >= 1.
        long_prompt_tokens: A prompt longer than 99 in 100; 0: not known.
    """

    prompt_tokens: float
    answer_tokens: float
    long_prompt_tokens: float = 0.0

    @property
    def answer_tokens_worth(self) -> float:
        """The request's work in tokens of answers: tokens of prompts take far less time."""
        return self.prompt_tokens / PROMPT_TOKENS_PER_STEP + self.answer_tokens

    def __str__(self) -> str:
        return f"{self.prompt_tokens:.0f} + {self.answer_tokens:.0f} tokens"

    def at_most(self, times: float, other: TextLength) -> TextLength:
        """Return the length, limited to a multiple of the other."""
        return TextLength(
            min(self.prompt_tokens, times * other.prompt_tokens),
            min(self.answer_tokens, times * other.answer_tokens),
            min(self.long_prompt_tokens, times * other.prompt_tokens),
        )

    def differs(self, other: TextLength) -> bool:
        """Return whether plans for the other length would be wrong for this one.

        Where the longest prompts are not known they are no difference.
        """
        pairs = (
            (self.prompt_tokens, other.prompt_tokens, CHANGE),
            (self.answer_tokens, other.answer_tokens, CHANGE),
            (self.long_prompt_tokens, other.long_prompt_tokens or 1.0, LONG_CHANGE),
        )
        return any(mine and not 1 / most < mine / its < most for mine, its, most in pairs)


@dataclass(slots=True)
class _Seen:
    answers: float = 0.0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    prompt_squares: float = 0.0

    def add(
        self, answers: int, prompt_tokens: float, answer_tokens: float, prompt_squares: float
    ) -> None:
        kept = max(1.0 - answers / REMEMBERED_ANSWERS, 0.0)
        self.answers = kept * self.answers + answers
        self.prompt_tokens = kept * self.prompt_tokens + prompt_tokens
        self.answer_tokens = kept * self.answer_tokens + answer_tokens
        self.prompt_squares = kept * self.prompt_squares + prompt_squares

    @property
    def mean(self) -> TextLength | None:
        if self.answers < LEAST_ANSWERS:
            return None
        prompt, answer = (
            max(each / self.answers, 1.0) for each in (self.prompt_tokens, self.answer_tokens)
        )
        square = self.prompt_squares / self.answers
        return TextLength(prompt, answer, square and long_prompt_tokens(prompt, square))


class TextLengths:
    """Usual lengths by model.

    Attributes:
        usual: Lengths to plan for, by model; missing: those of the profiles.
        promised: Lengths that the objectives apply to, by model, where no batch serves usual texts
            in time: the last that one served; missing: all.
        endless: Models whose usual texts no batch serves with any more time; planned for the
            promised lengths.
    """

    def __init__(self) -> None:
        self.usual: Mapping[str, TextLength] = {}
        self.promised: Mapping[str, TextLength] = {}
        self.endless: frozenset[str] = frozenset()
        self._served: Mapping[str, TextLength] = {}
        self._seen: dict[str, _Seen] = {}
        self._counted: dict[tuple[str, str], tuple[int, int, float]] = {}

    @property
    def planned(self) -> Mapping[str, TextLength]:
        """Lengths that plans are made for, by model; missing: those of the profiles."""
        cut = eased(self.usual, self.promised)
        return {**self.usual, **cut, **{name: self.promised[name] for name in self.endless}}

    def observe(
        self,
        router_id: str,
        tokens: Mapping[str, tuple[int, int]],
        answers: Mapping[str, int],
        models: Iterable[Model],
        squares: Mapping[str, float] | None = None,
    ) -> bool:
        """Add a router's report; return whether usual lengths have changed.

        Args:
            router_id: Id of the router.
            tokens: Tokens of prompts and answers since the router started, by model.
            answers: Number of answers in the window, by model.
            models: The deployment's models, with their profiles.
            squares: Sum of the squares of the prompts' lengths since the router started, by model.
        """
        deployed = {model.name: model for model in models}
        for model, both in tokens.items():
            counted = (*both, (squares or {}).get(model, 0.0))
            before = self._counted.get((router_id, model), counted)
            self._counted[router_id, model] = counted
            new = [now - then for now, then in zip(counted, before, strict=True)]
            if model in deployed and answers.get(model) and max(new) > 0 <= min(new):
                most = longest(deployed[model])
                prompts, texts = (min(each, answers[model] * most) for each in new[:2])
                seen = self._seen.setdefault(model, _Seen())
                seen.add(answers[model], prompts, texts, min(new[2], prompts * most))
        changed = {
            model.name: mean
            for model in deployed.values()
            if model.name in tokens
            and (known := self.usual.get(model.name) or stated(model))
            and (mean := self._seen.get(model.name, _Seen()).mean)
            and mean.differs(known)
        }
        self.usual = {**self.usual, **changed}
        return bool(changed)

    def last_served(self, models: Iterable[Model]) -> Mapping[str, TextLength]:
        """Return the last lengths served in time; before any, those of the profiles.

        Args:
            models: The deployment's models, with their profiles.
        """
        known = {model.name: self._served.get(model.name) or stated(model) for model in models}
        return {name: length for name, length in known.items() if length and name in self.usual}

    def settle(
        self,
        usual: Mapping[str, TextLength],
        promised: Mapping[str, TextLength],
        in_time: Collection[str],
        endless: Collection[str] = (),
    ) -> bool:
        """Record the models whose usual texts are served in time; return whether they changed.

        Args:
            usual: Usual lengths that were checked.
            promised: Lengths that the objectives apply to from now on, of models without such a
                batch.
            in_time: Models with a batch in time.
            endless: Models among those promised without such a batch even with more time.
        """
        before = self.promised, self.endless
        self.promised, self.endless = promised, frozenset(endless)
        self._served = {**self._served, **{name: usual[name] for name in in_time if name in usual}}
        return before != (self.promised, self.endless)

    def forget(self, router_id: str) -> None:
        """Drop the counts of a router that has disconnected; usual lengths stay."""
        self._counted = {key: each for key, each in self._counted.items() if key[0] != router_id}


def stated(model: Model) -> TextLength | None:
    """Return the usual request that a model's profiles state; None: they state none."""
    profiles = (variant.profile for variant in model.variants)
    found = next((each for each in profiles if isinstance(each, LanguageProfile)), None)
    if found is None:
        return None
    its = found.settings
    return TextLength(its.prompt_tokens, its.answer_tokens, its.long_prompt_tokens or 0.0)


def eased(
    usual: Mapping[str, TextLength], promised: Mapping[str, TextLength]
) -> Mapping[str, TextLength]:
    """Return the usual lengths of texts that get more time than those promised, by model."""
    return {name: usual[name].at_most(MOST_LONGER, its) for name, its in promised.items()}


def longest(model: Model) -> float:
    """Return the most tokens of a prompt and its answer that any variant of a model takes."""
    return max(variant.context_tokens or CONTEXT_TOKENS for variant in model.variants)


def with_lengths(
    models: Iterable[Model],
    usual: Mapping[str, TextLength],
    promised: Mapping[str, TextLength] | None = None,
) -> tuple[Model, ...]:
    """Return models whose profiles are for texts of the usual lengths.

    Args:
        models: Models with their original profiles.
        usual: Usual lengths by model; other models stay.
        promised: Lengths that objectives apply to, by model; longer usual texts have proportionally
            more time. Missing: objectives stay.
    """
    promised = promised or {}

    def of(variant: Variant, length: TextLength) -> Variant:
        profile = variant.profile
        if not isinstance(profile, LanguageProfile):
            return variant
        longest = length.long_prompt_tokens or profile.settings.long_prompt_tokens
        profile = profile.changed(
            prompt_tokens=length.prompt_tokens,
            answer_tokens=length.answer_tokens,
            long_prompt_tokens=longest and max(longest, length.prompt_tokens),
        )
        return replace(variant, profile=profile)

    def right(model: Model) -> Model:
        length = usual.get(model.name)
        if length is None:
            return model
        model = replace(model, variants=tuple(of(each, length) for each in model.variants))
        return _eased(model, length, promised.get(model.name, length))

    return tuple(right(model) for model in models)


def _eased(model: Model, length: TextLength, promised: TextLength) -> Model:
    longer = length.answer_tokens_worth / promised.answer_tokens_worth
    prompts = length.prompt_tokens / promised.prompt_tokens
    answers = length.answer_tokens / promised.answer_tokens
    return replace(
        model,
        slo_latency_s=model.slo_latency_s * max(longer, 1.0),
        slo_first_token_s=model.slo_first_token_s * max(prompts, 1.0),
        slo_token_s=model.slo_token_s * max(longer / answers, 1.0),
    )
