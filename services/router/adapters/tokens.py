"""Bearer tokens of inference clients: JSON Web Tokens, signed by a key of a JWKS file."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from services.kit.errors import FailedPrecondition, Unauthenticated
from services.kit.json_bounds import parsed_answer
from services.kit.rpc.access import Token
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from services.kit.config import Tokens

_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures by a private key; a shared secret (HS256) would let the router issue tokens."""

_LEAST_RSA_BITS: Final = 2048
_CURVES: Final = frozenset({"secp256r1", "secp384r1", "secp521r1"})

_MOST_BYTES: Final = 2**18
_MOST_VALUES: Final = 2**13
_MOST_KEYS: Final = 256
"""An issuer has a few; each takes up to .1 ms to be made."""

_LONGEST_TOKEN: Final = 8192
_LONGEST_SUBJECT: Final = 256
_MOST_KNOWN: Final = 4096
_LOOK_INTERVAL_S: Final = 1.0

_log = logs.get("tokens")


class TokenVerifier:
    """Checks tokens against a file of public keys, which is read again when it changes."""

    def __init__(self, settings: Tokens) -> None:
        """Read the keys.

        Raises:
            FailedPrecondition: The file cannot be read or holds no key that counts.
        """
        self._settings = settings
        self._looked_s = time.monotonic()
        self._read_ns = 0
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._known: dict[bytes, Token] = {}
        self._read()

    def __call__(self, token: str) -> Token:
        """Return what a token says.

        Raises:
            Unauthenticated: It is not valid now; the message says why.
        """
        self._follow()
        if len(token) > _LONGEST_TOKEN:
            raise Unauthenticated(f"token: at most {_LONGEST_TOKEN} characters, got {len(token)}")
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and time.time() < known.until_s:
            return known
        found = self._verified(token)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[digest] = found
        return found

    def _verified(self, token: str) -> Token:
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(key_id)
            if key is None:
                raise Unauthenticated(f"token: signed by the key {key_id!r}, which the JWKS lacks")
            claims: dict[str, Any] = jwt.decode(
                token,
                key=key,
                algorithms=[key.algorithm_name],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                options={"require": ["exp", "sub", "iss", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(f"token: {error}") from error
        subject = str(claims["sub"])
        if not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise Unauthenticated(f"token: sub must have 1..{_LONGEST_SUBJECT} characters")
        return Token(subject, float(claims["exp"]))

    def _follow(self) -> None:
        """Read the file again if it was replaced; a file that cannot be used changes nothing."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        try:
            if self._settings.jwks_file.stat().st_mtime_ns != self._read_ns:
                self._read()
        except (OSError, FailedPrecondition) as error:
            _log.warning("cannot use the JWKS: the keys before stay", error=str(error))

    def _read(self) -> None:
        path = self._settings.jwks_file
        try:
            self._read_ns = path.stat().st_mtime_ns
            with path.open("rb") as file:
                document = file.read(_MOST_BYTES + 1)
            if len(document) > _MOST_BYTES:
                raise FailedPrecondition(
                    f"access.tokens.jwks_file: {path}: at most {_MOST_BYTES} bytes are read"
                )
            entries = parsed_answer(document, _MOST_VALUES)["keys"]
            if len(entries) > _MOST_KEYS:
                raise FailedPrecondition(
                    f"access.tokens.jwks_file: {path}: at most {_MOST_KEYS} keys are read, got "
                    f"{len(entries)}"
                )
            read = [_key_of(entry) for entry in entries]
        except OSError as error:
            raise FailedPrecondition(
                f"access.tokens.jwks_file: {path}: {error.strerror}"
            ) from error
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise FailedPrecondition(
                f"access.tokens.jwks_file: {path}: must be a JSON object with keys (RFC 7517): "
                f"{type(error).__name__}"
            ) from None  # the error may have a key's text
        refused = [f"{key_id!r}: {problem}" for key_id, _, problem in read if problem]
        usable = {key_id: key for key_id, key, _ in read if key is not None}
        if not usable:
            why = "; ".join(refused) or "there is none"
            raise FailedPrecondition(f"access.tokens.jwks_file: {path}: no key counts: {why}")
        if refused:
            _log.warning("keys of the JWKS do not count", keys=refused)
        self._keys = usable
        self._known.clear()


def _key_of(entry: Any) -> tuple[str | None, jwt.PyJWK | None, str]:
    """Return the id of a key, the key, and why it does not count; "": it does."""
    key_id = entry.get("kid")
    if not isinstance(key_id, str | None):
        return None, None, "kid must be a string"
    try:
        key = jwt.PyJWK(entry)
        problem = _problem(key)
    except (jwt.PyJWTError, NotImplementedError, ValueError, TypeError):
        return key_id, None, f"cannot be read as a key of {entry.get('alg') or entry.get('kty')}"
    return (key_id, None, problem) if problem else (key_id, key, "")


def _problem(key: jwt.PyJWK) -> str:
    """Return why tokens that a key has signed are refused; "": they are not."""
    if key.algorithm_name not in _ALGORITHMS:
        allowed = ", ".join(sorted(_ALGORITHMS))
        return f"must be of {allowed}, is of {key.algorithm_name}"
    public = key.key
    if isinstance(public, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        public = public.public_key()
    if isinstance(public, rsa.RSAPublicKey) and public.key_size < _LEAST_RSA_BITS:
        return f"RSA needs {_LEAST_RSA_BITS} bits or more, has {public.key_size}"
    if isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name not in _CURVES:
        return f"must be of {', '.join(sorted(_CURVES))}, is of {public.curve.name}"
    return ""
