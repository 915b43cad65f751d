"""What rounds of texts say of a language model's two phases. Pure.

A round is as many requests as there are slots, sent at once, all with prompts and answers of the
same lengths. Rounds with answers of one token are prompts. Two rounds whose answers differ by
`STEPS` tokens, and in each of which all requests answer at the same time for a while, differ by so
many steps of all slots: what is before and after is the same in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, quantiles, stdev
from typing import Final

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
        energy_j: Active energy of all, J.
        together: All of them were answering before the first had ended.
    """

    answer_tokens: int
    input_tokens: int
    time_s: float
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
    step_s, step_j = (
        max(median(values(longer)) - median(values(shorter)), 0.0) / STEPS
        for values in (_times_s, _energies_j)
    )
    tokens = fmean(each.input_tokens for each in prompts)
    times_s = _times_s(longer)
    answered = (shorter[0].answer_tokens + longer[0].answer_tokens) / 2
    return replace(
        point,
        latency_s=fmean(times_s),
        latency_p50_s=median(times_s),
        latency_p95_s=quantiles(times_s, n=20, method="inclusive")[-1],
        latency_std_s=stdev(times_s),
        throughput_rps=point.batch_size / fmean(times_s),
        energy_j=fmean(_energies_j(longer)),
        batches=len(times_s),
        context_tokens=tokens / point.batch_size + answered,
        step_s=step_s,
        step_j=step_j,
        prompt_token_s=median(_times_s(prompts)) / tokens,
        prompt_token_j=median(_energies_j(prompts)) / tokens,
    )


def _times_s(rounds: Sequence[Round]) -> list[float]:
    return [each.time_s for each in rounds]


def _energies_j(rounds: Sequence[Round]) -> list[float]:
    return [each.energy_j for each in rounds]
