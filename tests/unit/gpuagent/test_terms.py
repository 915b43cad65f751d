"""An agent carries out the steps of the planner that leads."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.core.terms import STALE_TERM, Terms
from services.kit.errors import FailedPrecondition


@given(st.permutations([1, 1, 1, 2, 2, 2, 3, 3, 3]))
def test_steps_by_term_never_interleave(arrivals: list[int]) -> None:
    """In any order of the steps of several planners, those carried out are in order of term."""
    terms, carried_out = Terms(), []
    for term in arrivals:
        with suppress(FailedPrecondition):
            terms.admit(term)
            carried_out.append(term)

    assert carried_out == sorted(carried_out)


def test_only_the_first_step_of_a_term_is_new() -> None:
    """The journal is written once per term."""
    terms = Terms(3)

    assert [terms.admit(term) for term in (3, 4, 4, 0)] == [False, True, False, False]


def test_an_older_term_is_refused_with_a_reason() -> None:
    terms = Terms(4)
    with pytest.raises(FailedPrecondition, match=r"of term 3.*term 4") as caught:
        terms.admit(3)

    assert caught.value.reason == STALE_TERM
    assert terms.term == 4
