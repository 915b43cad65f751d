"""Sessions of the console end, and wrong tokens are counted."""

import pytest

from services.cli.web_console.identity import SESSION_S, Tokens
from services.kit.errors import ResourceExhausted

TOKEN = "t" * 32


def test_a_session_ends_by_itself_and_none_can_be_made_without_the_token() -> None:
    now_s = 1_000_000.0
    tokens = Tokens({"ada": TOKEN}, clock=lambda: now_s)
    session = tokens.session(TOKEN)
    until, _, signature = session.partition(".")
    forged = [f"{int(until) + 1}.{signature}", f"{until}.{'0' * 64}", signature, "9" * 5000, ""]

    assert tokens.of_session(session) == "ada"
    assert [tokens.of_session(each) for each in forged] == [None] * len(forged)
    now_s += SESSION_S
    assert tokens.of_session(session) is None


def test_hosts_of_wrong_tokens_are_bounded_and_forgotten_after_a_minute() -> None:
    now_s = 0.0
    tokens = Tokens({"ada": TOKEN}, clock=lambda: now_s)
    for number in range(20_000):
        assert tokens.owner("wrong", f"host-{number}") is None
    for _ in range(10):
        tokens.owner("wrong", "one")
    with pytest.raises(ResourceExhausted):
        tokens.owner(TOKEN, "one")
    now_s = 61.0

    assert tokens.owner(TOKEN, "one") == "ada"
    assert len(tokens._wrong_s) <= 1024
