"""Console authentication: tokens and their owners."""

import hashlib
import hmac
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.console.documents import Document
from services.kit.errors import InvalidArgument, ResourceExhausted
from services.kit.segment import whole_number

SESSION_S: Final = 12 * 3600
"""Time after which a reader logs in again, s."""
_MOST_WRONG: Final = 10
"""Wrong tokens from one host within a window; further tokens from there are not read."""
_WRONG_WINDOW_S: Final = 60.0
_MOST_HOSTS: Final = 1024
_LATEST_S: Final = 10**12
_MIN_CHARACTERS: Final = 32
_PARTS: Final = 2


class Tokens:
    """Tokens by owner. A browser keeps a session that follows from its token, not the token."""

    def __init__(
        self,
        by_owner: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the tokens, by owner.

        Args:
            by_owner: The tokens.
            clock: Time of day, s since 1970.
        """
        self._keys = {_key(token): owner for owner, token in by_owner.items()}
        self._clock = clock
        self._wrong_s: dict[str, deque[float]] = {}

    def owner(self, token: str, host: str = "") -> str | None:
        """Return the owner of a token; None: there is none.

        Args:
            token: The token.
            host: Where it comes from.

        Raises:
            ResourceExhausted: Too many wrong ones have come from there.
        """
        now_s, wrong_s = self._clock(), self._wrong_s.get(host)
        if wrong_s and len(wrong_s) == _MOST_WRONG and now_s - wrong_s[0] < _WRONG_WINDOW_S:
            raise ResourceExhausted(
                f"{_MOST_WRONG} wrong tokens came from here within {_WRONG_WINDOW_S:g} s; try again"
                " later",
                retry_after_s=_WRONG_WINDOW_S - (now_s - wrong_s[0]),
            )
        given = _key(token)
        for known, owner in self._keys.items():
            if hmac.compare_digest(known, given):
                return owner
        if len(self._wrong_s) >= _MOST_HOSTS:
            del self._wrong_s[next(iter(self._wrong_s))]
        self._wrong_s.setdefault(host, deque(maxlen=_MOST_WRONG)).append(now_s)
        return None

    def session(self, token: str) -> str:
        """Return a session of a token, which ends after SESSION_S."""
        until = str(int(self._clock() + SESSION_S))
        return f"{until}.{_signed(_key(token), until)}"

    def of_session(self, session: str) -> str | None:
        """Return the owner of a session; None: there is none, or it has ended."""
        until, _, signature = session.partition(".")
        until_s = whole_number(until, _LATEST_S)
        if until_s is None or until_s <= self._clock():
            return None
        given = signature.encode(errors="replace")
        for key, owner in self._keys.items():
            if hmac.compare_digest(_signed(key, until).encode(), given):
                return owner
        return None


@dataclass(frozen=True, slots=True)
class Rights:
    """Permissions of the console's readers.

    Attributes:
        tokens: Tokens that may see it; None: every caller may.
        carry_out: Carries out an order, by its name, arguments and owner; None: read-only.
    """

    tokens: Tokens | None = None
    carry_out: Callable[[str, Document, str], Awaitable[Document]] | None = None

    @property
    def can_change(self) -> bool:
        """True if an owner of a token can change the deployment."""
        return self.tokens is not None and self.carry_out is not None


READ_ONLY: Final = Rights()


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file; make it, with one line for "operator", where it does not exist.

    Raises:
        InvalidArgument: A line is not "NAME TOKEN", or a token is short.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as new:
            new.write(f"operator {secrets.token_urlsafe(32)}\n")
    except FileExistsError:
        pass
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        parts = line.split()
        if not parts or line.startswith("#"):
            continue
        if len(parts) != _PARTS or len(parts[1]) < _MIN_CHARACTERS:
            raise InvalidArgument(
                f"console.token_file: line {number} of {path} must be NAME TOKEN, the token of "
                f"{_MIN_CHARACTERS} characters or more"
            )
        found[parts[0]] = parts[1]
    return Tokens(found)


def _key(token: str) -> bytes:
    return hashlib.sha256(b"cinquefoil console session:" + token.encode(errors="replace")).digest()


def _signed(key: bytes, until: str) -> str:
    return hmac.new(key, until.encode(), hashlib.sha256).hexdigest()
