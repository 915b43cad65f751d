"""Requirements of vLLM's own tests of its server beyond `behaviours`, a section a file of tests.

Source: vLLM, "tests/entrypoints/openai"; restated as requests, for any model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.api.behaviours import (
    CALLED,
    CHAT,
    CITY,
    COUNTED,
    NAMED,
    PERSON,
    THINKING,
    TOOLS,
    Behaviour,
    Found,
    chat,
    completion,
    refused,
    schema,
    texts,
    tool,
    user,
)


def failed(found: Found) -> object:
    """Return whether a stream was refused, before its first event or in one."""
    return refused(found) if found.status != 200 else "error" in found.events[0]


def without(name: str) -> Callable[[Found], object]:
    """Return what holds where the first choice has nothing under a name."""
    return lambda found: found.choice.get(name) is None


def indices(found: Found) -> set[int]:
    """Return the numbers of the choices in a stream."""
    return {choice["index"] for each in found.events for choice in each["choices"]}


def ends(found: Found) -> int:
    """Return how many choices of a stream say why they end."""
    return sum(bool(c["finish_reason"]) for each in found.events for c in each["choices"])


def bodied(says: str, content: Any) -> Behaviour:
    """Return the refusal of a body other than an object."""
    return Behaviour(says, CHAT, content, refused)


def batch(says: str, holds: Callable[[Found], object], **body: Any) -> Behaviour:
    """Return a behaviour of several conversations in one request."""
    conversations = [user("Reply with the word alpha."), user("Reply with the word beta.")]
    return Behaviour(says, f"{CHAT}/batch", {"messages": conversations} | body, holds)


def structured(says: str, holds: Callable[[Found], object], how: Mapping[str, Any]) -> Behaviour:
    """Return a completion under a structure."""
    return completion(says, holds, structured_outputs=how, max_tokens=30)


_EIGHT: Final = {"prompt": [*range(8, 16)], "return_token_ids": True, "truncate_prompt_tokens": 4}
_BROKEN: Final = {"type": "object", "properties": {"foo": "bar"}, "required": ["foo"]}
_GRAMMAR: Final = 'root ::= missing\n\nother ::= "a" | "b"'
_ADDRESS: Final = r"(25|[0-9])\.(0|1)"
_TWICE: Final = [*user("Say one word."), {"role": "assistant", "content": "One"}, *user("More.")]
_SAYING: Final = "An apple a day keeps"
_CONTINUED: Final = {
    "messages": [*user("A saying"), {"role": "assistant", "content": _SAYING}],
    "continue_final_message": True,
    "add_generation_prompt": False,
}
_STREAMED: Final = {"stream": True}
_ONE_TOOL: Final = [tool("weather", CITY)]
_UNKNOWN: Final = {"type": "function", "function": {"name": "no_such_function"}}
_NO_ARGUMENTS: Final = tool("now", {"type": "object", "properties": {}, "required": []})
_CALLS: Final = {"messages": user("Weather in Rome?"), "tools": _ONE_TOOL, "max_tokens": 40}

COMPLETION: Final = (
    completion(
        "cuts a prompt at its end",
        lambda f: f.choice["prompt_token_ids"] == [8, 9, 10, 11],
        **_EIGHT,
        truncation_side="right",
    ),
    completion(
        "cuts a prompt at its begin",
        lambda f: f.choice["prompt_token_ids"] == [12, 13, 14, 15],
        **_EIGHT,
        truncation_side="left",
    ),
    completion("no logprobs unless wanted", without("logprobs"), logprobs=None),
    completion("bounds logprobs of a stream", failed, logprobs=30, stream=True),
    completion("refuses logprobs of the prompt below 0", refused, prompt_logprobs=-1),
    completion("no logprobs of the prompt unless wanted", without("prompt_logprobs")),
    completion("ends a stream once", lambda f: ends(f) == 1 and f.done, stream=True),
    completion(
        "streams n answers", lambda f: indices(f) == {0, 1, 2}, n=3, temperature=1, stream=True
    ),
    completion(
        "numbers n answers",
        lambda f: [c["index"] for c in f.document["choices"]] == [0, 1, 2],
        n=3,
        temperature=1,
        seed=42,
        logprobs=0,
    ),
    completion(
        "no usage where it is declined",
        lambda f: all(each.get("usage") is None for each in f.events),
        stream=True,
        stream_options={"include_usage": False, "continuous_usage_stats": True},
    ),
    completion(
        "usage alone in the last event",
        lambda f: f.events[-1]["choices"] == [] and not f.events[-2].get("usage"),
        **COUNTED,
    ),
    completion("empty stream options", lambda f: f.done, stream=True, stream_options={}),
    completion("null in the options of no stream", refused, stream_options={"include_usage": None}),
    completion("beams", lambda f: len(set(texts(f))) == 2, n=2, use_beam_search=True),
    structured("refuses a broken schema", refused, {"json": _BROKEN}),
    structured("refuses a broken pattern", refused, {"regex": "[.*"}),
    structured("refuses a broken grammar", refused, {"grammar": _GRAMMAR}),
    completion("refuses tokens beyond the vocabulary", refused, prompt=[999_999]),
    completion(
        "tokens by number",
        lambda f: all(each.startswith("token_id:") for each in f.choice["logprobs"]["tokens"]),
        logprobs=1,
        return_tokens_as_token_ids=True,
    ),
    completion(
        "streams numbers of tokens",
        lambda f: f.events[0]["choices"][0]["prompt_token_ids"],
        stream=True,
        return_token_ids=True,
    ),
)
CHATS: Final = (
    chat("no logprobs unless wanted", without("logprobs"), logprobs=False),
    chat("bounds top tokens of a stream", failed, logprobs=True, top_logprobs=21, stream=True),
    chat("logprobs of the prompt", lambda f: f.document["prompt_logprobs"], prompt_logprobs=0),
    chat(
        "two a token of the prompt",
        lambda f: len(f.document["prompt_logprobs"][3]) >= 2,
        prompt_logprobs=2,
    ),
    chat("refuses logprobs of the prompt below 0", refused, prompt_logprobs=-1),
    chat("several turns", lambda f: f.choice["message"], messages=_TWICE),
    chat("ends a stream once", lambda f: ends(f) == 1 and f.done, stream=True),
    chat(
        "usage grows",
        lambda f: f.events[-1]["usage"]["completion_tokens"] == 5,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        min_tokens=5,
    ),
    chat("null in the options of no stream", refused, stream_options={"include_usage": None}),
    chat(
        "a schema of vLLM's member",
        lambda f: '"name"' in f.choice["message"]["content"],
        structured_outputs={"json": PERSON},
        max_tokens=60,
    ),
    chat(
        "a pattern",
        lambda f: re.fullmatch(_ADDRESS, f.choice["message"]["content"]),
        structured_outputs={"regex": _ADDRESS},
        max_tokens=20,
    ),
    chat("refuses a pattern of another type", refused, structured_outputs={"regex": {"1": "a"}}),
    chat(
        "logprobs of a choice",
        lambda f: f.choice["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] >= -9999.0,
        structured_outputs={"choice": ["yes", "no"]},
        logprobs=True,
        top_logprobs=5,
    ),
    chat("text as format", lambda f: f.choice["message"], response_format={"type": "text"}),
    chat(
        "unknown members of a message",
        lambda f: f.choice["message"],
        messages=[{**user("Hi")[0], "extra_field": "0"}],
    ),
    chat(
        "a role of its own",
        lambda f: f.choice["message"],
        messages=[{"role": "my-custom-role", "content": "Hi"}],
    ),
    chat("refuses a seed below 64 bits", refused, seed=-(2**63) - 1),
    chat("refuses a seed above 64 bits", refused, seed=2**63),
    chat(
        "answers n times",
        lambda f: [c["index"] for c in f.document["choices"]] == [0, 1, 2],
        n=3,
        temperature=0.7,
    ),
    chat("streams n answers", lambda f: indices(f) == {0, 1}, n=2, temperature=0.7, stream=True),
    chat("n with a seed", lambda f: len(f.document["choices"]) == 2, n=2, temperature=1, seed=42),
    chat("n of one", lambda f: len(f.document["choices"]) == 1, n=1, temperature=0.7),
    chat(
        "echoes what it continues",
        lambda f: _SAYING in f.choice["message"]["content"],
        **_CONTINUED,
        echo=True,
    ),
    chat(
        "continues without an echo",
        lambda f: _SAYING not in f.choice["message"]["content"],
        **_CONTINUED,
        echo=False,
    ),
    chat("numbers of tokens", lambda f: f.document["prompt_token_ids"], return_token_ids=True),
    chat("biases a token", lambda f: f.choice["message"], logit_bias={"100": 1.0}),
    chat("refuses a bias of no token", refused, logit_bias={"99999999": 1.0}),
    chat("refuses a bias of a word", refused, logit_bias={"not_a_token_id": 50}),
    chat("refuses a bias that is no number", refused, logit_bias={"1": "not_a_number"}),
    bodied("refuses a list", ["not", "an", "object"]),
    bodied("refuses a text", "not an object"),
    bodied("refuses a number", 42),
    chat("refuses an empty salt", refused, cache_salt=""),
)
BATCHES: Final = (
    batch(
        "answers several conversations",
        lambda f: [each["index"] for each in f.document["choices"]] == [0, 1],
        max_tokens=5,
    ),
    batch(
        "several under a schema",
        lambda f: all('"name"' in c["message"]["content"] for c in f.document["choices"]),
        response_format=schema(PERSON),
        max_tokens=60,
    ),
    batch(
        "tokens of several by number",
        lambda f: f.choice["logprobs"]["content"][0]["token"].startswith("token_id:"),
        logprobs=True,
        top_logprobs=1,
        return_tokens_as_token_ids=True,
        max_tokens=3,
    ),
)
FUNCTIONS: Final = (
    chat("tools, as it likes", lambda f: f.choice["message"], **_CALLS, tool_choice="auto"),
    chat("null is as it likes", lambda f: f.choice["message"], **_CALLS, tool_choice=None),
    chat(
        "streams a call that is required",
        lambda f: f.arguments is not None,
        **{**TOOLS, "max_tokens": 80},
        tool_choice="required",
        stream=True,
    ),
    chat(
        "a tool without arguments",
        lambda f: f.choice["message"],
        messages=user("What time is it?"),
        tools=[_NO_ARGUMENTS],
        tool_choice="auto",
    ),
    chat("refuses a named tool without tools", refused, tool_choice=NAMED),
    chat("refuses a name of no tool", refused, tools=_ONE_TOOL, tool_choice=_UNKNOWN),
    chat("refuses another choice", refused, tools=_ONE_TOOL, tool_choice="bogus"),
    chat("refuses a choice without tools", refused, tool_choice="auto"),
    chat(
        "too few tokens for a call",
        lambda f: f.choice["finish_reason"] == "length",
        **{**_CALLS, "max_tokens": 1},
        tool_choice="required",
    ),
    chat("a result, with tools", lambda f: f.choice["message"], messages=CALLED, tools=_ONE_TOOL),
    chat(
        "strict tools", lambda f: f.choice["message"], tools=[tool("a", {**CITY, "strict": True})]
    ),
    chat(
        "a null choice with a schema",
        lambda f: f.status == 200,
        response_format=schema(PERSON),
        tool_choice=None,
        max_tokens=60,
    ),
    chat(
        "no reasoning where it is declined",
        lambda f: not (f.joined("reasoning") or f.joined("reasoning_content")),
        **THINKING,
        **_STREAMED,
        include_reasoning=False,
    ),
)
VLLM_TESTS: Final = (*COMPLETION, *CHATS, *BATCHES, *FUNCTIONS)
