"""Answers of a server of the OpenAI API, or of what stands before it: events, and errors as ours.

Source: OpenAI, "API reference", streaming and "Error codes"; vLLM, `ErrorResponse`; WHATWG, "HTML",
section 9.2 (server-sent events); RFC 9110, section 10.2.3 (Retry-After).
"""

import math
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeGuard
from urllib.parse import urlsplit

from services.gpuagent.worker.generative.decode_step import DecodeStep
from services.gpuagent.worker.model_port import ModelFailed
from services.kit.errors import (
    MAX_RETRY_AFTER_S,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceError,
    Unavailable,
    Unimplemented,
)
from services.kit.json_bounds import parsed_answer

MOST_EVENT_BYTES: Final = 16 * 2**20
_MOST_VALUES: Final = 65_536
"""Values of an event, or of an error."""
ENDS: Final = frozenset({"response.completed", "response.incomplete"})
"""Types of the events of /v1/responses that state usage."""

_REASONS: Final = {"completed": "stop", "incomplete": "length"}
_GENERATED: Final = (
    "content",
    "text",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "refusal",
    "function_call",
    "audio",
)
"""Members of a choice that are made of tokens."""

_MAX_TOKENS: Final = 2**31
_MAX_MESSAGE: Final = 2000
_MAX_WORD: Final = 200
_BYTES_PER_TOKEN: Final = 4
"""Of usual prompts, where a server states their tokens only at the end."""

_REFUSED: Final = frozenset({400, 413, 422})
_AWAY: Final = frozenset({408, 425, 502, 503, 504})
_KEYS: Final = frozenset({401, 403, 407})
_LACKS: Final[Mapping[int, type[ServiceError]]] = {
    404: NotFound,
    405: Unimplemented,
    501: Unimplemented,
}
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


_TITLE: Final = re.compile(r"<title>([^<]*+)</title>", re.IGNORECASE)


class Event(NamedTuple):
    """An event of a stream. Attributes: raw (as it came), chunk (what it says; None: "[DONE]")."""

    raw: bytes
    chunk: Any


class Said(NamedTuple):
    """New parts of an answer, of one chunk.

    Attributes:
        generated: Whether there is a token in it.
        text, reasoning: New text of the answer, and of the reasoning before it.
    """

    generated: bool
    text: str
    reasoning: str


class ServerAnswers:
    """Reads answers of one server. Args: name (for errors)."""

    def __init__(self, name: str) -> None:
        self._name = name

    def refusal(
        self, status: int, headers: Mapping[str, str], body: bytes, *, passes: bool = False
    ) -> ServiceError:
        """Return the error for an answer other than the one that was requested.

        Args:
            status: HTTP status.
            headers: Headers of the answer.
            body: Its beginning.
            passes: The client itself named the path and the model.
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
        retry_s = retry_after_s(headers)
        return self._error(status, document, _message(document, body), retry_s, passes=passes)

    def stated_error(self, document: Mapping[str, Any]) -> ServiceError:
        """Return the error that a document states, whose status is a number or a word in it."""
        return self._error(_status(document), document, _message(document, b""), None)

    def _error(
        self,
        status: int,
        document: Mapping[str, Any] | None,
        message: str,
        retry_s: float | None,
        *,
        passes: bool = False,
    ) -> ServiceError:
        if status in _REFUSED:
            return InvalidArgument(message, field=_field(document), reason=_reason(document))
        if passes and status in _LACKS:
            return _LACKS[status](message, field=_field(document), reason=_reason(document))
        said = f"{self._name} answered {_phrase(status)}: {message}"
        if status == _FULL:
            return ResourceExhausted(said, retry_after_s=retry_s)
        if status in _AWAY:
            return Unavailable(said, retry_after_s=retry_s)
        if status in _KEYS:
            said += " (its key is of `api_key_file`)"
        return ModelFailed(said)

    async def events(self, lines: AsyncIterable[bytes]) -> AsyncIterator[Event]:
        """Yield the events of a stream, up to "[DONE]"; comments are part of the next one.

        Raises:
            ModelFailed: It is none.
        """
        raw, data = bytearray(), b""
        try:
            async for line in lines:
                said = line.strip()
                name, _, value = said.partition(b":")
                if data and (not said or name == b"data"):  # its end, or a server leaves that out
                    whole = bytes(raw + (b"" if said else line))
                    yield Event(whole, parsed_answer(data, _MOST_VALUES))
                    raw, data = bytearray(), b""
                    if not said:
                        continue
                raw += line
                if len(raw) > MOST_EVENT_BYTES:
                    raise ValueError(f"more than {MOST_EVENT_BYTES} bytes")  # noqa: TRY301
                if name == b"error":
                    data = b'{"error":%b}' % value
                elif name == b"data":
                    data = value.strip()
                if data == b"[DONE]":
                    yield Event(bytes(raw) + b"\n", None)
                    return
            if data:
                yield Event(bytes(raw), parsed_answer(data, _MOST_VALUES))
        except ValueError as error:  # no JSON, or a line beyond the buffer
            raise ModelFailed(f"{self._name} sent what is not an event: {error}") from error


class Progress:
    """Counts what a server says of one answer.

    Attributes:
        reason: Why the text ended; "": it has not.
        counted: The server has stated how many tokens there were.
    """

    def __init__(self, answers: ServerAnswers, name: str, prompt_bytes: int) -> None:
        self.reason = ""
        self.counted = False
        self._answers = answers
        self._name = name
        self._likely = max(-(-prompt_bytes // _BYTES_PER_TOKEN), 1)  # until the server states it
        self._input = self._output = self._cached = 0

    def take(self, chunk: Any) -> Said:
        """Take a chunk; return the new parts of the answer.

        Raises:
            ServiceError: It states an error, or is none.
        """
        try:
            return self._take(chunk)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ModelFailed(f"{self._name} sent a chunk of another form") from error

    def whole(self, document: Any, size: int) -> None:
        """Take an answer that came at once.

        Args:
            document: What it says, if it is JSON.
            size: Its size, bytes.
        """
        found = document if isinstance(document, dict) else {}
        for choice in _objects(found.get("choices")):
            self.reason = _word(choice.get("finish_reason")) or self.reason
        self._end(found)
        self._count(found.get("usage"), prompt_only=True)
        if not self.counted and found.get("choices"):
            self._output = max(-(-size // _BYTES_PER_TOKEN), 1)

    def step(self, piece: bytes, reasoning: bytes = b"") -> DecodeStep:
        """Return how far the answer is, with what is new of it."""
        read = self._input or (self._likely if self._output else 0)
        return DecodeStep(piece, read, max(read - self._cached, 0), self._output, reasoning)

    def _take(self, chunk: Any) -> Said:
        if chunk.get("error") is not None or chunk.get("object") == "error":
            raise self._answers.stated_error(chunk)
        generated, text, reasoning = str(chunk.get("type", "")).endswith(".delta"), "", ""
        for choice in chunk.get("choices") or ():
            said = choice.get("delta") or choice
            generated |= any(said.get(name) for name in _GENERATED)
            text += said.get("content") or said.get("text") or ""
            reasoning += said.get("reasoning_content") or said.get("reasoning") or ""
            self.reason = _word(choice.get("finish_reason")) or self.reason
        self._output += generated
        self._end(chunk.get("response"))
        if isinstance(read := chunk.get("prompt_progress"), dict):  # llama.cpp's
            processed, cached = read["processed"], read.get("cache") or 0
            if _is_count(processed) and _is_count(cached):
                self._input, self._cached = processed, min(cached, processed)
        self._count(chunk.get("usage"))
        return Said(generated, text, reasoning)

    def _end(self, response: Any) -> None:
        """Take what /v1/responses says of its end."""
        if isinstance(response, dict) and _word(response.get("status")) in _REASONS:
            self.reason = _REASONS[response["status"]]
            self._count(response.get("usage"))

    def _count(self, usage: Any, *, prompt_only: bool = False) -> None:
        """Take what a server states of tokens, unless it cannot be."""
        if not isinstance(usage, dict):
            return
        for read, made in (("prompt", "completion"), ("input", "output")):
            stated = usage.get(f"{read}_tokens")
            generated = usage.get(f"{made}_tokens", 0 if prompt_only else None)
            if _is_count(stated) and _is_count(generated):
                self._input, self._output, self.counted = stated, generated, True
                details = usage.get(f"{read}_tokens_details")
                cached = details.get("cached_tokens") if isinstance(details, dict) else None
                self._cached = min(cached, stated) if _is_count(cached) else 0


def _objects(given: Any) -> Iterator[dict[str, Any]]:
    listed = given if isinstance(given, list) else ()
    return (each for each in listed if isinstance(each, dict))


def _word(given: Any) -> str:
    """Return a word of a server's; "": it is none."""
    return given[:_MAX_WORD] if isinstance(given, str) and given.isprintable() else ""


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
        found = parsed_answer(body, _MOST_VALUES)
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


def _stated(document: Mapping[str, Any] | None, name: str) -> str:
    """Return a word of an error; "": it has none."""
    error = (document or {}).get("error", document)
    value = error.get(name) if isinstance(error, dict) else None
    return value[:_MAX_WORD] if isinstance(value, str) else ""


def _field(document: Mapping[str, Any] | None) -> str:
    """Return the parameter that an error names."""
    return _stated(document, "param")


def _reason(document: Mapping[str, Any] | None) -> str:
    """Return an error's `code` as a reason, or its `type` where that is written like one."""
    kind = _stated(document, "type")
    word = _stated(document, "code") or (kind if "_" in kind else "")
    return re.sub(r"\W", "_", word).upper()


def _message(document: Mapping[str, Any] | None, body: bytes) -> str:
    """Return what a server says of an error: OpenAI's form, others', a page's title, or text."""
    if document is not None:
        error = document.get("error", document)
        stated = error if isinstance(error, dict) else {"message": error}
        for name in ("message", "detail", "error"):
            if stated.get(name):
                return str(stated[name])[:_MAX_MESSAGE]
    text = body.decode(errors="replace")
    if title := _TITLE.search(text):
        return f"a page, {title[1].strip()[:_MAX_MESSAGE]!r}: a proxy's, perhaps"
    return text[:_MAX_MESSAGE].strip() or "no details"
