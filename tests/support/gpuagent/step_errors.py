"""Errors of a language model's measured steps against the fit to them."""

from collections.abc import Sequence
from statistics import median

from services.kit.config import MeasuredSteps
from services.kit.profiles.core.measurement import Measurement


def errors(rows: Sequence[Measurement], steps: MeasuredSteps) -> tuple[float, float]:
    """Return the relative errors of steps' times and energies on rows of their slice, medians."""
    times, energies = [], []
    for each in rows:
        size, context = each.batch_size, each.batch_size * each.context_tokens
        time_s = steps.fixed_s + size * steps.sequence_s + context * steps.context_token_s
        energy_j = steps.fixed_j + size * steps.sequence_j + context * steps.context_token_j
        times.append(abs(time_s / each.step_s - 1))
        energies.append(abs(energy_j / each.step_j - 1))
    return median(times), median(energies)
