"""Answers of a server of the OpenAI API, or of what stands before it: events, and errors as ours.

Source: OpenAI, "API reference", streaming and "Error codes"; vLLM, `ErrorResponse`; WHATWG, "HTML",
section 9.2 (server-sent events); RFC 9110, section 10.2.3 (Retry-After).
"""

import math
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, TypeGuard
from urllib.parse import urlsplit

from pydantic_core import from_json

from services.gpuagent.worker.generative.generation import DecodeStep
from services.gpuagent.worker.generative.prompts import Prompt
from services.gpuagent.worker.model_port import ModelFailed
from services.kit.errors import (
    MAX_RETRY_AFTER_S,
    InvalidArgument,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)

_MAX_TOKENS: Final = 2**31
_MAX_MESSAGE: Final = 500
_BYTES_PER_TOKEN: Final = 4
"""Of usual prompts, where a server states their tokens only at the end."""

_REFUSED: Final = frozenset({400, 413, 422})
_AWAY: Final = frozenset({408, 425, 502, 503, 504})
_KEYS: Final = frozenset({401, 403, 407})
_FULL: Final = 429
_BY_WORD: Final = {
    "ratelimitexceeded": 429,
    "ratelimiterror": 429,
    "toomanyrequests": 429,
    "insufficientquota": 429,
    "tokens": 429,
    "requests": 429,
    "contextlengthexceeded": 400,
    "exceedcontextsizeerror": 400,
    "invalidrequest": 400,
    "invalidrequesterror": 400,
    "invalidprompt": 400,
    "stringabovemaxlength": 400,
    "contentpolicyviolation": 400,
    "badrequest": 400,
    "badrequesterror": 400,
    "validationerror": 422,
    "unprocessableentityerror": 422,
    "authenticationerror": 401,
    "invalidapikey": 401,
    "unauthorized": 401,
    "permissionerror": 403,
    "permissiondenied": 403,
    "modelnotfound": 404,
    "notfounderror": 404,
    "timeout": 504,
    "timeouterror": 504,
    "overloaded": 503,
    "overloadederror": 503,
    "engineoverloaded": 503,
    "serviceunavailable": 503,
    "serviceunavailableerror": 503,
    "unavailableerror": 503,
}
"""HTTP status by an error's `code` or `type` where that is a word: letters only; any other: 500."""


class ServerAnswers:
    """Reads answers of one server. Args: name (for errors)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> ServiceError:
        """Return the error for an answer other than a stream of events.

        Args:
            status: HTTP status.
            headers: Headers of the answer.
            body: Its beginning.
        """
        if 300 <= status < 400:
            to = urlsplit(headers.get("Location", "")[:_MAX_MESSAGE])._replace(
                query="", fragment=""
            )
            what = f"{_phrase(status)}, a redirect to {to.geturl() or 'nowhere'}"
            return ModelFailed(f"{self._name} answered {what}: `address` must be the server's own")
        document = _document(body)
        stated = document if status < 400 else None
        if status < 300 and (stated is None or "error" not in stated):
            kind = headers.get("Content-Type", "").partition(";")[0] or "nothing"
            what = f"{_phrase(status)} and {kind}"
            return ModelFailed(f"{self._name} answered {what} instead of a stream of events")
        if status < 300 and stated is not None:
            return self.stated_error(stated)
        return self._error(status, _message(document, body), retry_after_s(headers))

    def stated_error(self, document: Mapping[str, Any]) -> ServiceError:
        """Return the error that a document states, whose status is a number or a word in it."""
        return self._error(_status(document), _message(document, b""), None)

    def _error(self, status: int, message: str, retry_s: float | None) -> ServiceError:
        if status in _REFUSED:
            return InvalidArgument(f"the model's server: {message}")
        said = f"{self._name} answered {_phrase(status)}: {message}"
        if status == _FULL:
            return ResourceExhausted(said, retry_after_s=retry_s)
        if status in _AWAY:
            return Unavailable(said, retry_after_s=retry_s)
        if status in _KEYS:
            said += " (its key is of `api_key_file`)"
        return ModelFailed(said)

    async def events(self, lines: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
        """Yield the documents of an event stream up to "[DONE]".

        Raises:
            ModelFailed: It is not one.
        """
        try:
            async for line in lines:
                name, _, value = line.strip().partition(b":")
                value = value.strip()
                if name not in (b"data", b"error") or not value:
                    continue
                if value == b"[DONE]":
                    return
                document = from_json(value)
                yield document if name == b"data" else {"error": document}
        except ValueError as error:  # no JSON, or a line beyond the buffer
            raise ModelFailed(f"{self._name} sent what is not an event: {error}") from error


class Heard:
    """Makes steps of a server's chunks.

    Attributes:
        reason: Why the text ended; "": it has not.
        counted: The server has stated how many tokens there were.
    """

    def __init__(self, answers: ServerAnswers, name: str, prompt: Prompt) -> None:
        self.reason = ""
        self.counted = False
        self._answers = answers
        self._name = name
        said = len(prompt.text) + sum(len(each["content"]) for each in prompt.history)
        self._computed = -(-said // _BYTES_PER_TOKEN)  # until the server states it
        self._input = self._output = 0

    def step(self, chunk: Mapping[str, Any]) -> DecodeStep:
        """Take a chunk.

        Raises:
            ServiceError: It states an error, or is none.
        """
        try:
            return self._step(chunk)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ModelFailed(f"{self._name} sent a chunk of another form") from error

    def _step(self, chunk: Mapping[str, Any]) -> DecodeStep:
        if "error" in chunk or chunk.get("object") == "error":
            raise self._answers.stated_error(chunk)
        text, generated = "", False
        for choice in chunk.get("choices") or ():
            said = choice.get("delta", choice)
            own = said.get("content") or choice.get("text") or ""
            # Thoughts take time and energy like text, and are no part of the answer.
            thought = said.get("reasoning_content") or said.get("reasoning")
            generated |= bool(own or thought)
            text += own
            self.reason = choice.get("finish_reason") or self.reason
        self._output += generated
        self._count(chunk.get("usage"))
        return DecodeStep(text, self._input, self._computed if self._output else 0, self._output)

    def _count(self, usage: Any) -> None:
        """Take what a server states of tokens, unless it cannot be."""
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        read, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if _is_count(read) and _is_count(made):
            self._input, self._output, self.counted = read, made, True
            self._computed = read - (min(cached, read) if _is_count(cached) else 0)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the time after which a server takes requests again, s; None: it does not say.

    At most `MAX_RETRY_AFTER_S`.
    """
    for name, unit_s in (("retry-after-ms", 1e-3), ("Retry-After", 1.0)):
        value = headers.get(name, "").strip()
        try:
            wait_s = float(value) * unit_s
        except ValueError:
            wait_s = _until_s(value)
        if wait_s >= 0:
            return min(wait_s, MAX_RETRY_AFTER_S)
    return None


def _until_s(value: str) -> float:
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return math.nan


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_TOKENS


def _phrase(status: int) -> str:
    """Return a status with its phrase, where it has one."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        found = from_json(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _status(document: Mapping[str, Any]) -> int:
    """Return the HTTP status that an error states in `code`, `status` or `type`; 500: none."""
    error = document.get("error", document)
    stated = error if isinstance(error, dict) else document
    for value in map(stated.get, ("code", "status", "status_code", "type")):
        try:
            status = int(str(value))
        except ValueError:
            status = _BY_WORD.get(re.sub("[^a-z]", "", str(value).lower()), 0)
        if 400 <= status < 600:
            return status
    return 500


def _message(document: Mapping[str, Any] | None, body: bytes) -> str:
    """Return what a server says of an error: OpenAI's form, others', a page's title, or text."""
    if document is not None:
        error = document.get("error", document)
        stated = error if isinstance(error, dict) else {"message": error}
        for name in ("message", "detail", "error"):
            if stated.get(name):
                return str(stated[name])[:_MAX_MESSAGE]
    text = body.decode(errors="replace")
    if title := re.search(r"<title>\s*(.*?)\s*</title>", text, re.IGNORECASE | re.DOTALL):
        return f"a page, {title[1][:_MAX_MESSAGE]!r}: a proxy's, perhaps"
    return text[:_MAX_MESSAGE].strip() or "no details"
