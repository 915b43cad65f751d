"""`cinquefoil eval --wait`: questions as lines of a batch, and their answers by variant."""

import json

import pytest

from services.batch.core.lines import parsed
from services.cli.evaluate.items import items
from services.cli.evaluate.run import SHOWN
from services.cli.evaluate.waiting import ENDPOINT, counted, lines
from services.kit.errors import InvalidArgument


def answer(line: bytes, text: str, variant: str) -> bytes:
    usage = {"completion_tokens": 2, "cinquefoil": {"model_variant": variant}}
    body = {"choices": [{"text": text}], "usage": usage}
    name = json.loads(line)["custom_id"]
    return json.dumps({"custom_id": name, "response": {"body": body}, "error": None}).encode()


def test_answers_are_counted_by_the_variant_that_gave_them() -> None:
    """The batch service takes every line; one that failed and those of others count none."""
    posed = items(8 + SHOWN, 3)[SHOWN:]
    sent = list(lines("chat", 8, 3))
    assert {parsed(line, ENDPOINT).model for line in sent} == {"chat"}
    right = [f" {each.choices[each.right]}" for each in posed]
    answers = [answer(sent[at], right[at], "big") for at in range(4)]
    answers += [answer(sent[at], " perhaps", "small") for at in range(4, 7)]
    answers += [b'{"custom_id": "eval-3-8-7", "response": null, "error": {"code": "x"}}']
    answers += [answer(b'{"custom_id": "mine"}', "", "big")]

    (big, small), seed = counted(answers)

    assert seed == 3
    assert (big.variant, big.questions, big.right, big.tokens) == ("big", 4, 4, 8)
    assert (small.variant, small.questions, small.right, small.unread) == ("small", 3, 0, 3)


def test_a_batch_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no answer to a question"):
        counted([answer(b'{"custom_id": "mine"}', "", "v")])
