"""Reading of an answer of the OpenAI API on its way past: tokens, times, and its last part.

The last part is where a receipt can go: of events the one that states the usage, or the end; of one
JSON document all of it. Nothing else is held back, and never more than `MOST_HELD_BYTES`.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import from_json

from services.kit.request_cost import Usage

MOST_HELD_BYTES: Final = 2**20
"""Largest JSON answer that gets a receipt."""

MOST_EVENT_BYTES: Final = 2**16
"""Largest event that is read; it may come a byte at a time."""

MOST_TOKENS: Final = 2**24
"""Tokens that an answer may state."""

_DATA, _DONE, _END = b"data: {", b"data: [DONE]", b"\n\n"


class AnswerReader:
    """Reads one answer.

    Args:
        events: Whether it comes as server-sent events.
        arrived_s: When its request arrived, s.

    Attributes:
        ended: Whether its last part was seen.
    """

    def __init__(self, *, events: bool, arrived_s: float) -> None:
        self.ended = False
        self._events = events
        self._arrived_s = arrived_s
        self._held = b""
        self._pieces: list[bytes] = []  # of one document
        self._size = 0
        self._read = True
        self._count = 0
        self._first_s = self._last_s = 0.0
        self._usage: Mapping[str, Any] = {}

    def take(self, piece: bytes, now_s: float, *, last: bool) -> tuple[bytes, bytes]:
        """Take a piece; return what goes on at once, and the last part, once it is there.

        Args:
            piece: Of the body.
            now_s: The time.
            last: Whether the body ends with it.
        """
        if self.ended or not self._read:
            self.ended |= last
            return piece, b""
        if not self._events:
            return self._take_document(piece, now_s, last=last)
        held, self._held = self._held + piece, b""
        end = len(held) if last else held.rfind(_END) + len(_END)
        if end < len(_END) and not last:
            end = 0
        whole, self._held = held[:end], held[end:]
        if len(self._held) > MOST_EVENT_BYTES:
            whole, self._held = held, b""
        passed, ending = self._take_events(whole, now_s, last=last)
        if self.ended and self._held:
            ending, self._held = ending + self._held, b""
        return passed, ending

    def usage(self) -> Usage:
        """Return the tokens: as the server stated them, else its events."""
        stated = self._usage
        output = _whole(stated, "completion_tokens", "output_tokens")
        output = self._count if output is None else output
        details = stated.get("prompt_tokens_details") or stated.get("input_tokens_details")
        cached = _whole(details, "cached_tokens") if isinstance(details, dict) else None
        first_s = max(self._first_s - self._arrived_s, 0.0) if self._first_s else 0.0
        token_s = (self._last_s - self._first_s) / (output - 1) if output > 1 else 0.0
        prompt = _whole(stated, "prompt_tokens", "input_tokens") or 0
        return Usage(prompt, output, first_s if self._events else 0.0, token_s, cached or 0)

    def _take_document(self, piece: bytes, now_s: float, *, last: bool) -> tuple[bytes, bytes]:
        self._pieces.append(piece)
        self._size += len(piece)
        if not last and self._size <= MOST_HELD_BYTES:
            return b"", b""
        held, self._pieces = b"".join(self._pieces), []
        if self._size > MOST_HELD_BYTES:
            self._read, self.ended = False, last
            return held, b""
        self.ended, self._last_s, self._first_s = True, now_s, self._arrived_s
        self._learn(held)
        return b"", held

    def _take_events(self, whole: bytes, now_s: float, *, last: bool) -> tuple[bytes, bytes]:
        tokens = whole.count(_DATA)
        if tokens:
            self._count += tokens
            self._first_s = self._first_s or now_s
            self._last_s = now_s
        start = self._start_of_end(whole) if b'"usage"' in whole or _DONE in whole else -1
        if start < 0 and not last:
            return whole, b""
        self.ended = True
        return (whole, b"") if start < 0 else (whole[:start], whole[start:])

    def _start_of_end(self, whole: bytes) -> int:
        """Return where the event that states the usage begins, else the end; -1: neither is."""
        at = 0
        while at < len(whole):
            end = whole.find(_END, at)
            end = len(whole) if end < 0 else end + len(_END)
            event = whole[at:end]
            if event.lstrip(b"\r\n").startswith(_DONE):
                return at
            if b'"usage"' in event and self._learn(event[event.find(b"{") :]):
                self._count -= 1
                return at
            at = end
        return -1

    def _learn(self, document: bytes) -> bool:
        """Read the usage of a document; return whether it is an answer's last."""
        try:
            found = from_json(document)
        except ValueError:
            return False
        if not isinstance(found, dict):
            return False
        inner = found.get("response")
        usage = found.get("usage") or (isinstance(inner, dict) and inner.get("usage"))
        if isinstance(usage, dict):
            self._usage = usage
            return not found.get("choices")
        return False


def _whole(found: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = found.get(name)
        if type(value) is int and value >= 0:
            return min(value, MOST_TOKENS)
    return None
