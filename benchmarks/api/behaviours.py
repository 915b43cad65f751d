"""Behaviours of vLLM's server of the OpenAI API, each as a request and what must be in its answer.

Source: vLLM, "OpenAI-compatible server"; its own tests of the same served as the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"

CITY: Final = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}}
PERSON: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Found:
    """An answer.

    Attributes:
        status: HTTP status.
        document: What it says, where it is JSON and no stream.
        events: Of a stream, without "[DONE]".
        done: The stream ended with "[DONE]".
    """

    status: int
    document: Any = None
    events: Sequence[Any] = ()
    done: bool = False

    @property
    def choice(self) -> Any:
        """The first choice."""
        return self.document["choices"][0]

    @property
    def deltas(self) -> list[Any]:
        """Deltas of all choices of a stream of chat."""
        return [choice["delta"] for each in self.events for choice in each["choices"]]

    def joined(self, name: str) -> str:
        """Return what the deltas have under a name, joined."""
        return "".join(each.get(name) or "" for each in self.deltas)

    @property
    def arguments(self) -> Any:
        """Arguments of the calls of a stream, joined."""
        calls = [call for each in self.deltas for call in each.get("tool_calls") or ()]
        return json.loads("".join(call["function"].get("arguments") or "" for call in calls))


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A behaviour of a server.

    Attributes:
        says: The behaviour, in a few words.
        path: Of the request; it is a POST where there is a body.
        body: Of the request; an object gets the `model`. None: GET.
        holds: Returns whether an answer has it; an error counts as no.
    """

    says: str
    path: str
    body: Any = field(default=None)
    holds: Callable[[Found], object] = lambda found: found.status == 200


def user(text: Any) -> list[Any]:
    """Return a talk of one message."""
    return [{"role": "user", "content": text}]


def tool(name: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def texts(found: Found) -> list[str]:
    """Return the texts of a completion."""
    return [choice["text"] for choice in found.document["choices"]]


def refused(found: Found) -> object:
    """Return whether a request was refused, with a message."""
    return found.status in (400, 422) and found.document["error"]["message"]


def completion(says: str, holds: Callable[[Found], object], **body: Any) -> Behaviour:
    """Return a behaviour of completions: of five tokens, unless the body says otherwise."""
    usual = {"prompt": "Hello, my name is", "max_tokens": 5, "temperature": 0}
    return Behaviour(says, COMPLETIONS, usual | body, holds)


def chat(says: str, holds: Callable[[Found], object], **body: Any) -> Behaviour:
    """Return a behaviour of chat: of five tokens, unless the body says otherwise."""
    usual = {"messages": user("Say one word."), "max_tokens": 5, "temperature": 0}
    return Behaviour(says, CHAT, usual | body, holds)


COUNTED: Final = {"stream": True, "stream_options": {"include_usage": True}}
TOOLS: Final = {
    "messages": user("Weather in Rome?"),
    "tools": [tool("weather", CITY), tool("time", CITY)],
    "max_tokens": 60,
}
NAMED: Final = {"type": "function", "function": {"name": "time"}}
CALLED: Final = [
    *user("Weather in Rome?"),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c-1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c-1", "content": "Sunny"},
]
THINKING: Final = {
    "messages": user("Why is the sky blue?"),
    "chat_template_kwargs": {"enable_thinking": True},
    "max_tokens": 12,
}


def schema(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a JSON schema as the format of an answer."""
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": wanted}}


SERVER: Final = (
    Behaviour("lists its models", "/v1/models", None, lambda f: f.document["data"][0]["id"]),
    Behaviour("is healthy", "/health"),
    Behaviour("states a version", "/version", None, lambda f: f.document["version"]),
    Behaviour("has metrics", "/metrics"),
    Behaviour("has no other path", "/v1/no-such-path", {}, lambda f: f.status in (404, 405)),
    Behaviour(
        "has no other model", CHAT, {"model": "no", "messages": []}, lambda f: f.status == 404
    ),
)
TEXTS: Final = (
    completion("continues a text", lambda f: f.choice["finish_reason"] == "length"),
    completion("counts tokens", lambda f: f.document["usage"]["completion_tokens"] == 5),
    completion("takes tokens as prompt", lambda f: f.choice["text"], prompt=[1, 2, 3]),
    completion("takes several prompts", lambda f: len(texts(f)) == 2, prompt=["a", "b"]),
    completion("takes several, of tokens", lambda f: len(texts(f)) == 2, prompt=[[1, 2], [3]]),
    completion("answers n times", lambda f: len(texts(f)) == 3, n=3, temperature=1),
    completion("likeliest token", lambda f: len(f.choice["logprobs"]["tokens"]) == 5, logprobs=0),
    completion("top tokens", lambda f: len(f.choice["logprobs"]["top_logprobs"]) == 5, logprobs=5),
    completion("bounds logprobs", refused, logprobs=1000),
    completion("echoes", lambda f: f.choice["text"].startswith("Hello"), echo=True),
    completion(
        "echoes with logprobs",
        lambda f: f.choice["logprobs"]["token_logprobs"][0] is None,
        echo=True,
        logprobs=1,
    ),
    completion("logprobs of the prompt", lambda f: f.choice["prompt_logprobs"], prompt_logprobs=1),
    completion("stops at a word", lambda f: f.choice["finish_reason"] == "stop", stop=["a", "e"]),
    completion(
        "keeps the stop word",
        lambda f: f.choice["text"][-1] in "ae",
        stop=["a", "e"],
        include_stop_str_in_output=True,
    ),
    completion("stops at a token", lambda f: f.choice["text"], stop_token_ids=[28]),
    completion("biases tokens", lambda f: len(set(f.choice["text"])) <= 12, logit_bias={"99": 99}),
    completion("refuses a bias of no token", refused, logit_bias={"99999999": 1}),
    completion("generates at least", lambda f: f.status == 200, min_tokens=5, max_tokens=5),
    completion("passes over its end", lambda f: f.choice["text"], ignore_eos=True, max_tokens=40),
    completion("sampling of its own", lambda f: f.choice["text"], top_k=3, min_p=0.1, seed=1),
    completion("penalties", lambda f: f.choice["text"], repetition_penalty=1.2, temperature=1),
    completion("tokens of the answer", lambda f: f.choice["token_ids"], return_token_ids=True),
    completion("refuses a temperature", refused, temperature=-1),
    completion("refuses what is too long", refused, prompt="word " * 3000),
    completion("refuses no prompt", refused, prompt=[]),
    completion("streams", lambda f: f.done and len(f.events) >= 5, stream=True),
    completion(
        "streams several by index",
        lambda f: {c["index"] for e in f.events for c in e["choices"]} == {0, 1},
        prompt=["a", "b"],
        stream=True,
    ),
    completion("no usage unless wanted", lambda f: "usage" not in f.events[-1], stream=True),
    completion("usage at the end", lambda f: f.events[-1]["usage"] and f.done, **COUNTED),
    completion(
        "usage of each chunk",
        lambda f: all(each["usage"] for each in f.events),
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ),
    completion("stream options of no stream", refused, stream_options={"include_usage": True}),
)
TALKS: Final = (
    chat("answers", lambda f: f.choice["message"]["role"] == "assistant"),
    chat("streams, role first", lambda f: f.deltas[0]["role"] and f.joined("content"), **COUNTED),
    chat("other limit", lambda f: f.choice["finish_reason"] == "length", max_completion_tokens=2),
    chat(
        "top tokens",
        lambda f: len(f.choice["logprobs"]["content"][0]["top_logprobs"]) == 5,
        logprobs=True,
        top_logprobs=5,
    ),
    chat(
        "top tokens, none", lambda f: f.choice["logprobs"]["content"], logprobs=True, top_logprobs=0
    ),
    chat(
        "streams logprobs",
        lambda f: any(c.get("logprobs") for e in f.events for c in e["choices"]),
        stream=True,
        logprobs=True,
        top_logprobs=1,
    ),
    chat("bounds top tokens", refused, logprobs=True, top_logprobs=1000),
    chat(
        "joins parts of a text",
        lambda f: f.choice["message"],
        messages=user([{"type": "text", "text": each} for each in ("one", "two")]),
    ),
    chat(
        "continues a message",
        lambda f: f.choice["message"]["content"],
        messages=[*user("Hi"), {"role": "assistant", "content": "Hello, I"}],
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    chat("passes over unknown members", lambda f: f.status == 200, no_such_member=1),
    chat("refuses no messages", refused, messages="none"),
    chat("user, metadata, store", lambda f: f.status == 200, user="a", metadata={}, store=False),
    Behaviour(
        "writes a response",
        RESPONSES,
        {"input": "Hi", "max_output_tokens": 8},
        lambda f: f.document["output"],
    ),
    Behaviour(
        "streams a response",
        RESPONSES,
        {"input": "Hi", "max_output_tokens": 8, "stream": True},
        lambda f: f.events[-1]["type"] in ("response.completed", "response.incomplete"),
    ),
    Behaviour("counts tokens", "/tokenize", {"prompt": "Hi"}, lambda f: f.document["tokens"]),
    Behaviour(
        "counts tokens of messages",
        "/tokenize",
        {"messages": user("Hi")},
        lambda f: f.document["count"] > 1,
    ),
    Behaviour("reads tokens", "/detokenize", {"tokens": [1, 2]}, lambda f: f.document["prompt"]),
)
STRUCTURED: Final = (
    chat(
        "an object",
        lambda f: (
            (
                f.choice["finish_reason"] == "length"  # of an object that it did not end
                and f.choice["message"]["content"].lstrip().startswith("{")
            )
            or isinstance(json.loads(f.choice["message"]["content"]), dict)
        ),
        response_format={"type": "json_object"},
        max_tokens=60,
    ),
    chat(
        "a schema",
        lambda f: json.loads(f.choice["message"]["content"]).keys() == {"name", "age"},
        response_format=schema(PERSON),
        max_tokens=60,
    ),
    chat(
        "a schema, streamed",
        lambda f: json.loads(f.joined("content")).keys() == {"name", "age"},
        response_format=schema(PERSON),
        max_tokens=60,
        stream=True,
    ),
    chat(
        "a choice",
        lambda f: f.choice["message"]["content"] in ("yes", "no"),
        structured_outputs={"choice": ["yes", "no"]},
    ),
    completion(
        "a pattern",
        lambda f: f.choice["text"].strip().isdigit(),
        structured_outputs={"regex": "[0-9]{2}"},
    ),
    completion(
        "a grammar",
        lambda f: f.choice["text"] in ("a", "b"),
        structured_outputs={"grammar": 'root ::= "a" | "b"'},
    ),
    chat(
        "calls a tool",
        lambda f: (
            json.loads(f.choice["message"]["tool_calls"][0]["function"]["arguments"]) is not None
        ),
        **TOOLS,
        tool_choice="required",
    ),
    chat(
        "calls the tool that is named",
        lambda f: f.choice["message"]["tool_calls"][0]["function"]["name"] == "time",
        **TOOLS,
        tool_choice=NAMED,
    ),
    chat(
        "streams a call", lambda f: f.arguments is not None, **TOOLS, tool_choice=NAMED, stream=True
    ),
    chat(
        "calls none",
        lambda f: not f.choice["message"].get("tool_calls"),
        **{**TOOLS, "max_tokens": 5},
        tool_choice="none",
    ),
    chat("refuses a tool that is not there", refused, tools=TOOLS["tools"], tool_choice={}),
    chat("takes the result of a tool", lambda f: f.choice["message"], messages=CALLED),
    chat(
        "reasons",
        lambda f: f.choice["message"].get("reasoning") or f.choice["message"]["reasoning_content"],
        **THINKING,
    ),
    chat(
        "streams its reasoning",
        lambda f: f.joined("reasoning") or f.joined("reasoning_content"),
        **THINKING,
        stream=True,
    ),
    chat("reasons in silence", lambda f: f.status == 200, **THINKING, include_reasoning=False),
)
BEHAVIOURS: Final = (*SERVER, *TEXTS, *TALKS, *STRUCTURED)
