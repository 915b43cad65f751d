"""Estimates a language model's two phases from rounds of texts. Pure.

A round is as many requests as there are slots, sent at once, all with prompts and answers of the
same lengths. Rounds with answers of one token are prompts. Two rounds whose answers differ by
`STEPS` tokens, and in each of which all requests answer at the same time for a while, differ by so
many steps of all slots: what is before and after is the same in both. Time is compared from the
last first token on, so that prompts, which may take far longer, do not blur it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final

from services.gpuagent.profiling.core.samples import timed
from services.kit.profiles.core.measurement import Measurement

STEPS: Final = 32
"""Tokens by which the longer answers are longer."""


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that were sent at once.

    Attributes:
        answer_tokens: Of each answer.
        input_tokens: Of all prompts together.
        time_s: From the first to the last of them, s.
        answer_s: From the first token to the end, of the request whose first token came last, s.
        energy_j: Active energy of all, J.
        together: All of them were answering before the first had ended.
    """

    answer_tokens: int
    input_tokens: int
    time_s: float
    answer_s: float
    energy_j: float
    together: bool


def of_phases(
    point: Measurement, prompts: Sequence[Round], shorter: Sequence[Round], longer: Sequence[Round]
) -> Measurement:
    """Return the measurement of a point: medians, for a busy machine makes single rounds late.

    Args:
        point: Its `batch_size` requests are in each round.
        prompts: Rounds with answers of one token; two or more, as of the others.
        shorter: Rounds of which all are `together`.
        longer: Those with `STEPS` tokens more.
    """
    step_s = _more([each.answer_s for each in longer], [each.answer_s for each in shorter]) / STEPS
    tokens = fmean(each.input_tokens for each in prompts)
    times_s = _times_s(longer)
    answered = (shorter[0].answer_tokens + longer[0].answer_tokens) / 2
    return replace(
        timed(point, times_s),
        throughput_rps=point.batch_size / fmean(times_s),
        energy_j=fmean(_energies_j(longer)),
        context_tokens=tokens / point.batch_size + answered,
        step_s=step_s,
        step_j=step_s * _step_w(shorter, longer),
        prompt_token_s=median(_times_s(prompts)) / tokens,
        prompt_token_j=median(_energies_j(prompts)) / tokens,
    )


def _step_w(shorter: Sequence[Round], longer: Sequence[Round]) -> float:
    """Return the power of steps, W; where the times of rounds hide them, of prompts and steps."""
    more_s = _more(_times_s(longer), _times_s(shorter))
    more_j = _more(_energies_j(longer), _energies_j(shorter))
    if more_s > 0 and more_j > 0:
        return more_j / more_s
    return sum(_energies_j(longer)) / sum(_times_s(longer))


def _more(one: Sequence[float], other: Sequence[float]) -> float:
    return max(median(one) - median(other), 0.0)


def _times_s(rounds: Sequence[Round]) -> list[float]:
    return [each.time_s for each in rounds]


def _energies_j(rounds: Sequence[Round]) -> list[float]:
    return [each.energy_j for each in rounds]
