"""Steps of servers from their metrics, and the law that fits them."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.observation.core.server_account import window_of
from services.gpuagent.observation.core.steps import StepSums, Sums, Window, fit
from services.kit.server_metrics.figures import Histogram, ServerFigures, figures

COEFFICIENTS = st.floats(0.0, 1.0)


@given(COEFFICIENTS, COEFFICIENTS, COEFFICIENTS)
def test_a_law_is_found_again(fixed: float, item: float, prompt: float) -> None:
    """Without noise the fit is exact, also where a coefficient is 0."""
    random, sums = Random(0), Sums()
    for _ in range(40):
        items, prompts = random.uniform(1, 30), random.uniform(0, 50)
        sums.add((1.0, items, prompts), fixed + item * items + prompt * prompts)
    found = fit(sums)
    assert found is not None
    assert (found.fixed, found.item, found.prompt_token) == pytest.approx(
        (fixed, item, prompt), abs=1e-3
    )


def test_what_the_load_did_not_vary_is_the_prior() -> None:
    """At one load only the sum is known: the split is the prior's, and the sum is what was seen."""
    sums = Sums()
    for _ in range(100):
        sums.add((1.0, 4.0, 0.0), 0.05)
    found = fit(sums, (0.01, 0.01, 1e-5))
    assert found is not None
    assert found.fixed + 4 * found.item == pytest.approx(0.05, rel=0.01)
    assert found.item > 0
    assert fit(Sums()) is None


@given(st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 4), max_size=40))
def test_pages_of_nonsense_leave_sums_that_are_numbers(rows: list[tuple[float, ...]]) -> None:
    """A server's figures are bounded before they are summed."""
    sums = StepSums()
    for row in rows:
        sums.add(Window(*row))
    assert StepSums.of(sums.flat).flat == sums.flat


def test_sums_of_two_days_are_those_of_both() -> None:
    one, other, both = StepSums(), StepSums(), StepSums()
    for number in range(20):
        window = Window(0.01 + 0.001 * number, 1.0 + number, 2.0, 0.5 * number)
        (one if number % 2 else other).add(window)
        both.add(window)
    assert one.plus(other).flat == pytest.approx(both.flat)
    assert both.plus(one, -1.0).flat == pytest.approx(other.flat)


def test_answers_in_progress_follow_from_rate_and_time_of_tokens() -> None:
    """Little's law: 1,000 tokens in 10 s at 20 ms each are two answers at a time, 500 steps."""
    token = Histogram(100, 2.0, {0.1: 100, math.inf: 100})
    more = Histogram(1100, 22.0, {0.1: 1100, math.inf: 1100})
    last = ServerFigures("vLLM", "m", 1, 100, 100, running=2, token=token)
    seen = ServerFigures("vLLM", "m", 11, 1100, 1100, running=2, token=more)
    found = window_of(10.0, last, seen, 50.0)
    assert found == Window(pytest.approx(0.02), pytest.approx(2.0), pytest.approx(2.0), 0.1)  # type: ignore[arg-type]
    idle = ServerFigures("vLLM", "m", 11, 1100, 1100, running=0, token=more)
    assert window_of(10.0, last, idle, 50.0) is None


def test_batches_of_triton_are_steps() -> None:
    """Items a batch, its time (counted once for each request), and its energy."""

    def page(scale: int) -> ServerFigures:
        rows = {
            "nv_inference_request_success": 80 * scale,
            "nv_inference_count": 160 * scale,
            "nv_inference_exec_count": 20 * scale,
            "nv_inference_compute_infer_duration_us": 80 * 5000 * scale,
        }
        text = "".join(f'{name}{{model="net",version="1"}} {n}\n' for name, n in rows.items())
        (found,) = figures(text.encode())
        return found

    assert window_of(10.0, page(1), page(2), 40.0) == Window(0.005, 8.0, 0.0, 2.0)
