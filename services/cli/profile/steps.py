"""Fits the steps of a language model to measured rounds of texts. Pure."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.kit.config import MeasuredSteps
from services.kit.profiles.core.measurement import Measurement

_LEAST_S: Final = 1e-6
_DIGITS: Final = 4


def fitted(rows: Iterable[Measurement], gpus: int = 1) -> tuple[MeasuredSteps, ...]:
    """Return the steps of each slice: least squares of relative errors, nothing below zero.

    Args:
        rows: Of one variant; those that did not run, at lower clocks and of several processes
            count for nothing.
        gpus: GPUs that held the model together.
    """
    by_place: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        if row.ran and row.step_s > 0 and row.clock_ratio == 1 and row.processes == 1:
            by_place.setdefault((row.gpu, row.profile), []).append(row)
    return tuple(_of_slice(*place, gpus, found) for place, found in by_place.items())


def _of_slice(gpu: str, name: str, gpus: int, rows: Sequence[Measurement]) -> MeasuredSteps:
    fixed_s, sequence_s, context_s = _fit(rows, [each.step_s for each in rows])
    fixed_j, sequence_j, context_j = _fit(rows, [each.step_j for each in rows])
    return MeasuredSteps(
        gpu=gpu,
        slice=name,
        gpus=gpus,
        fixed_s=max(fixed_s, _LEAST_S),
        sequence_s=sequence_s,
        context_token_s=context_s,
        prompt_token_s=_rounded(median(each.prompt_token_s for each in rows)),
        fixed_j=fixed_j,
        sequence_j=sequence_j,
        context_token_j=context_j,
        prompt_token_j=_rounded(median(each.prompt_token_j for each in rows)),
    )


def _fit(rows: Sequence[Measurement], values: Sequence[float]) -> list[float]:
    """Return the terms' factors, >= 0; a term that would be negative is left out.

    Columns are of one size, so that too few rows divide a step among the terms.
    """
    if not all(values):
        return [0.0, 0.0, 0.0]
    terms = np.array([_terms(row) for row in rows])
    sizes = terms.max(axis=0)
    matrix = terms / sizes / np.array(values)[:, None]
    kept = [0, 1, 2]
    while True:
        found = np.linalg.lstsq(matrix[:, kept], np.ones(len(rows)), rcond=None)[0]
        if len(kept) == 1 or found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    factors = dict(zip(kept, (found / sizes[kept]).tolist(), strict=True))
    return [_rounded(max(factors.get(term, 0.0), 0.0)) for term in range(3)]


def _terms(row: Measurement) -> NDArray[np.float64]:
    return np.array([1.0, row.batch_size, row.batch_size * row.context_tokens])


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
