"""Upper bounds of the gain from separate phases: by memory, link and objective, and a schedule."""

import pytest

from benchmarks.llm import disaggregation
from benchmarks.llm.disaggregation import HIGH_END, Site, Type, Work, row, ways
from benchmarks.llm.engine import PROFILE, Limits, Request, least_requests
from benchmarks.llm.policies import GPUS, Setup, always, fixed, run

LIMITS = Limits(2.0, 0.05)
TRACE = tuple(Request(0.05 * number, 100 + number % 7 * 300, 50) for number in range(60))
WORK = Work.of(TRACE, LIMITS)
SITE = Site(300.0, 1.0)


def test_no_schedule_is_below_the_bound() -> None:
    """Replicas that serve the trace take more energy per token than both phases together."""
    found = ways(WORK, PROFILE, SITE)["together", HIGH_END, HIGH_END]
    served = run(TRACE, LIMITS, Setup(GPUS, 512, fixed(0.6), always(least_requests)))

    assert found.energy_j < served["j_per_token"]


def test_weights_that_do_not_fit_leave_no_way() -> None:
    """Eight billion parameters of 16 bits need more memory than a T4 has; of 4 bits they do not."""
    small = PROFILE.changed(bytes_per_parameter=0.5)

    assert not list(Type("t4", PROFILE).answers(WORK))
    assert list(Type("t4", small).answers(WORK))


def test_keys_and_values_are_sent_within_the_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that takes longer for a prompt than its first token may leaves no way for prompts."""
    assert list(Type(HIGH_END, PROFILE).prompts(WORK))
    monkeypatch.setattr(disaggregation, "LINK_BYTES_PER_S", 1e6)
    assert not list(Type(HIGH_END, PROFILE).prompts(WORK))


def test_without_a_grid_only_making_counts() -> None:
    """At 0 gCO2e/kWh a type without embodied carbon saves all."""
    assert row(ways(WORK, PROFILE, Site(0.0, 1.0)))["both_elsewhere_save"] == pytest.approx(1.0)
