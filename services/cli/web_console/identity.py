"""Console authentication: tokens and their owners."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.console.documents import Document
from services.kit.errors import InvalidArgument

_MIN_CHARACTERS: Final = 32
_PARTS: Final = 2


class Tokens:
    """Tokens by owner. A browser keeps a session that follows from its token, not the token."""

    def __init__(self, by_owner: Mapping[str, str]) -> None:
        """Take the tokens, by owner."""
        self._owners = {session_of(token): owner for owner, token in by_owner.items()}

    def owner(self, token: str) -> str | None:
        """Return the owner of a token; None: there is none."""
        return self.of_session(session_of(token))

    def of_session(self, session: str) -> str | None:
        """Return the owner of a session; None: there is none."""
        given = session.encode()
        return next(
            (
                owner
                for known, owner in self._owners.items()
                if hmac.compare_digest(known.encode(), given)
            ),
            None,
        )


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


def session_of(token: str) -> str:
    """Return the session of a token."""
    return hashlib.sha256(b"cinquefoil console session:" + token.encode()).hexdigest()
