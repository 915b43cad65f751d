"""Bodies of the OpenAI API: what the router reads of them."""

from typing import Any

import pytest

from services.kit import api_requests
from services.router.adapters.predictor_client import prompt_of as last_prompt
from services.router.core.wire import prompt_of
from services.router.edge.openai_messages import passed

PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}


@pytest.mark.parametrize(
    ("body", "text", "last"),
    [
        ({"prompt": "one"}, "one", "one"),
        ({"prompt": ["one", "two"]}, "one\ntwo", "two"),
        ({"prompt": [5, 6]}, "5 6", "6"),
        ({"input": "one", "instructions": "two"}, "one\ntwo", "one"),
        ({"messages": [{"role": "user", "content": PARTS}]}, "one\ntwo", "one\ntwo"),
        (
            {
                "messages": [
                    {"content": "a"},
                    {"content": None, "tool_calls": [1]},
                    {"content": "b"},
                ]
            },
            "a\nb",
            "b",
        ),
        ({"messages": [{"role": "user", "content": [PICTURE, PARTS[0]]}]}, "one", "one"),
        ({"messages": 5, "prompt": None}, "", ""),
    ],
)
def test_texts_are_joined_by_lines_and_none_is_made_up(
    body: dict[str, Any], text: str, last: str
) -> None:
    """Parts are lines of their own, as in vLLM: glued together they are other words."""
    assert api_requests.text(body) == text
    if "5 6" not in text:
        assert api_requests.last_text(body) == last


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 3}, 3),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": "5"}, 0),
        ({"max_tokens": -1}, 0),
        ({"max_tokens": True}, 0),
        ({}, 0),
    ],
)
def test_a_limit_that_cannot_be_is_the_server_s_to_refuse(
    body: dict[str, Any], tokens: int
) -> None:
    assert api_requests.max_tokens(body) == tokens


def test_a_picture_takes_its_place_and_not_its_encoding() -> None:
    body = {"messages": [{"role": "user", "content": [PICTURE, PARTS[0]]}]}

    assert 4096 < api_requests.prompt_bytes(body, 100_500) < 6000
    assert api_requests.prompt_bytes({"prompt": "a"}, 15) == 15


def test_routing_and_predictor_read_the_text_of_a_body() -> None:
    """Prefixes are compared by all of it (a large one: its bytes), lengths by the last message."""
    content = b'{"messages": [{"content": "a"}, {"content": "b"}], "model": "m", "x": "y"}'
    body = api_requests.document(content, 1000)
    message = passed(body, content, "m", "/v1/chat/completions")

    assert prompt_of(message, 1000) == b"a\nb"
    assert prompt_of(message, 2) == content[:2]
    assert last_prompt(message) == b"b"
