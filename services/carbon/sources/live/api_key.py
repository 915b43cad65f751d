"""API keys, from a file or a variable."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import SecretStr

from services.kit.config import KeyedSource
from services.kit.config.loader import ConfigError, Mistake


def read_api_key(source: KeyedSource) -> SecretStr | None:
    """Return the key of a source; None: the source needs none.

    Raises:
        ConfigError: The file or the variable is missing or empty.
    """
    if source.key_file is not None:
        return _from_file(source.key_file)
    if source.key_env is None:
        return None
    found = os.environ.get(source.key_env, "").strip()
    if not found:
        raise ConfigError(
            Path(source.key_env), [Mistake("key_env", 0, "the variable is not set, or empty")]
        )
    return SecretStr(found)


def _from_file(path: Path) -> SecretStr:
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise ConfigError(path, [Mistake("key_file", 0, f"cannot be read: {why}")]) from None
    if not found or len(found.splitlines()) > 1:
        raise ConfigError(path, [Mistake("key_file", 0, "must hold one key and nothing else")])
    return SecretStr(found)
