"""Tokens of a streamed text, and their times."""

from services.gpuagent.worker.core.tokens import TextTokens
from services.kit.request_cost import Usage


def test_the_first_response_counts_for_the_first_token_and_the_others_for_the_rest() -> None:
    """The first brings 3 tokens at 2.5 s; 4 more until 4.5 s: 0.5 s each."""
    tokens = TextTokens()
    tokens.add(0, 2.0, input_tokens=7)
    tokens.add(3, 2.5)
    tokens.add(2, 3.0)
    tokens.add(2, 4.5)
    tokens.add(0, 9.0)

    assert tokens.usage(came_s=1.0) == Usage(7, 7, 1.5, 0.5)


def test_an_answer_in_one_response_has_no_time_between_tokens() -> None:
    tokens = TextTokens()
    tokens.add(40, 3.0)

    assert tokens.usage(came_s=1.0) == Usage(0, 40, 2.0, 0.0)


def test_what_is_no_text_has_no_usage() -> None:
    tokens = TextTokens()
    tokens.add(0, 3.0)

    assert tokens.usage(came_s=1.0) is None


def test_tokens_that_were_counted_too_high_are_taken_back_and_come_at_no_time() -> None:
    """A server's chunks are counted until it states at the end how many tokens there were."""
    tokens = TextTokens()
    tokens.add(1, 2.0)
    tokens.add(5, 4.0)
    tokens.add(-2, 9.0)

    assert tokens.usage(came_s=1.0) == Usage(0, 4, 1.0, 2 / 3)
