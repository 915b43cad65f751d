"""Rounds of texts separate the two phases of a language model, and its steps' terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.profile.steps import fitted
from services.gpuagent.profiling.core.text_rounds import STEPS, Round, of_phases
from services.kit.config import MeasuredSteps
from services.kit.profiles.core.measurement import Measurement
from tests.support.gpuagent.step_errors import errors

TRUE = MeasuredSteps(
    gpu="h100-80gb", slice="whole",
    fixed_s=0.006, sequence_s=1e-4, context_token_s=4e-8, prompt_token_s=3e-5,
    fixed_j=2.0, sequence_j=0.05, context_token_j=1e-5, prompt_token_j=0.01,
)  # fmt: skip


def measured(batch: int, prompt: int, answer: int, *, late: int = 0) -> Measurement:
    """Return the measurement of a server with these exact times; some rounds are late."""

    def round_of(tokens: int, late_s: float) -> Round:
        time_s, energy_j = (
            batch * prompt * TRUE.prompt_token_s,
            batch * prompt * TRUE.prompt_token_j,
        )
        for step in range(1, tokens):
            context = batch * (prompt + step)
            time_s += TRUE.fixed_s + batch * TRUE.sequence_s + context * TRUE.context_token_s
            energy_j += TRUE.fixed_j + batch * TRUE.sequence_j + context * TRUE.context_token_j
        prompts_s = batch * prompt * TRUE.prompt_token_s
        return Round(tokens, batch * prompt, time_s + late_s, time_s - prompts_s, energy_j, True)

    point = Measurement("h100-80gb", "whole", batch, 1, prompt_tokens=prompt)
    rounds = [
        [round_of(tokens, 5.0 * (number < late)) for number in range(5)]
        for tokens in (1, answer, answer + STEPS)
    ]
    return of_phases(point, *rounds)


@given(batch=st.integers(1, 64), prompt=st.integers(16, 4096), answer=st.integers(4, 64))
def test_phases_are_separated_whatever_the_lengths(batch: int, prompt: int, answer: int) -> None:
    """Late rounds, up to two of five, change nothing."""
    row = measured(batch, prompt, answer, late=2)
    context = batch * row.context_tokens
    step_s = TRUE.fixed_s + batch * TRUE.sequence_s + context * TRUE.context_token_s

    assert row.step_s == pytest.approx(step_s, rel=0.01)
    assert row.prompt_token_s == pytest.approx(TRUE.prompt_token_s)
    assert row.prompt_token_j == pytest.approx(TRUE.prompt_token_j)


def test_the_fit_finds_the_terms_and_what_did_not_run_says_nothing() -> None:
    rows = [measured(batch, prompt, 8) for batch in (1, 8, 64) for prompt in (64, 2048)]
    lost = Measurement("h100-80gb", "whole", 128, 1, prompt_tokens=64, reason="too large")
    (found,) = fitted([*rows, lost])

    assert found.model_dump(exclude={"gpu", "slice"}) == pytest.approx(
        TRUE.model_dump(exclude={"gpu", "slice"}), rel=0.02
    )
    assert max(errors(rows, found)) < 0.001
    assert [each.gpus for each in fitted(rows, 4)] == [4]


def test_one_row_is_met_and_no_term_is_negative() -> None:
    row = measured(4, 512, 8)
    (found,) = fitted([row])

    assert max(errors([row], found)) < 0.001
    assert min(found.fixed_s, found.sequence_s, found.context_token_s) >= 0
