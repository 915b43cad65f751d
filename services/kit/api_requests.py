"""Requests of the OpenAI API on their way to a model's server: what is read of them, and no more.

The body travels as it is, as the only element of the tensor `text_input`; the parameter
`openai_path` says for which path it is. Anything else in it is the server's.
Source: OpenAI, "API reference"; vLLM, "OpenAI-compatible server".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic_core import from_json

from services.kit.errors import InvalidArgument
from services.kit.json_bounds import check_size, check_values

PATH_PARAMETER: Final = "openai_path"
TYPE_PARAMETER: Final = "content_type"

GENERATING: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
"""Paths whose answers are texts, and may stream."""
PATHS: Final = GENERATING | {
    "/v1/chat/completions/batch",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
}
"""Paths that reach servers."""

MAX_VALUES: Final = 262_144
"""Lists, objects and their elements in a body: a prompt may be the numbers of its tokens."""

_MEDIA_BYTES: Final = 4096
"""Text that takes as long to read as a picture, or another part without text."""


def document(body: bytes | bytearray | memoryview, most_bytes: int) -> dict[str, Any]:
    """Return a body as it is read.

    Args:
        body: As it came.
        most_bytes: Its largest size.

    Raises:
        InvalidArgument: It is not a JSON object, or has more in it than is read.
    """
    whole = bytes(body)
    check_size(whole, most_bytes)
    check_values(whole, MAX_VALUES, "values")
    try:
        found = from_json(whole)
    except ValueError as error:
        raise InvalidArgument(f"the body is not JSON: {error}", reason="INVALID_JSON") from None
    if not isinstance(found, dict):
        raise InvalidArgument("the body must be a JSON object", reason="INVALID_JSON")
    return found


def max_tokens(found: Mapping[str, Any]) -> int:
    """Return the tokens that an answer may have; 0: not stated, or not as a positive integer."""
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = found.get(name)
        if type(value) is int and 0 < value < 2**31:
            return value
    return 0


def texts(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts that a model reads: a prompt's, or those of each message, in order."""
    for name in ("prompt", "input", "instructions"):
        yield from _texts(found.get(name))
    yield from _texts(found.get("messages"))


def text(found: Mapping[str, Any]) -> str:
    """Return what a model reads as one text, in which parts are lines of their own, as in vLLM."""
    return "\n".join(texts(found))


def last_text(found: Mapping[str, Any]) -> str:
    """Return the text of the last message, or the prompt."""
    messages = found.get("messages") or found.get("input") or found.get("prompt")
    return "\n".join(_texts(messages[-1:] if isinstance(messages, list) else messages))


def prompt_bytes(found: Mapping[str, Any], size: int) -> int:
    """Return how long a body's prompt is: that of a text of so many bytes.

    Tools and schemas are read by the model as well; pictures take their place, not their encoding.

    Args:
        found: The body.
        size: Its size, bytes.
    """
    media = [
        sum(len(each) for each in _strings(part))
        for name in ("messages", "input")
        for message in _objects(found.get(name))
        for part in _objects(message.get("content"))
        if not isinstance(part.get("text"), str)
    ]
    return max(size - sum(media), 0) + _MEDIA_BYTES * len(media)


def _texts(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    elif isinstance(given, dict):
        yield from _texts(given.get("content", given.get("text")))
    elif isinstance(given, list):
        if given and all(type(each) is int for each in given):
            yield " ".join(map(str, given))  # tokens
            return
        for each in given:
            yield from _texts(each)


def _objects(given: Any) -> Iterator[dict[str, Any]]:
    if isinstance(given, list):
        yield from (each for each in given if isinstance(each, dict))


def _strings(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    elif isinstance(given, dict):
        for each in given.values():
            yield from _strings(each)
