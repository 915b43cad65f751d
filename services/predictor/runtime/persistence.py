"""Saves the learned state, periodically and on demand."""

import asyncio
import sqlite3
from typing import Final

from services.kit.clock import Clock
from services.kit.errors import Unavailable
from services.kit.telemetry import logs
from services.predictor.adapters.cache_store import CacheStore
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.runtime.length_models import LengthModels

_log = logs.get("persistence")

SAVE_EVERY_S: Final = 5.0
"""A killed process loses what it learned in this time; what was forgotten stays forgotten."""


class Persistence:
    """Writes the changes of the cache and the length models.

    Args:
        cache: The prompts and their lengths.
        lengths: The length models.
        store: Where to write; None: nothing outlives the process.
        clock: Time.
    """

    def __init__(
        self, cache: SemanticCache, lengths: LengthModels, store: CacheStore | None, clock: Clock
    ) -> None:
        self._cache = cache
        self._lengths = lengths
        self._store = store
        self._clock = clock
        self._saving = asyncio.Lock()
        self._saved_lengths: dict[str, bytes] = {}

    async def run(self) -> None:
        """Expire old entries and save, again and again; a failing disk is tried again."""
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            self._cache.expire(self._clock.now().timestamp())
            try:
                await self.save()
            except Unavailable as error:
                _log.warning("not saved", cause=error.message)

    async def save(self) -> None:
        """Write the changes.

        Raises:
            Unavailable: The disk failed; the changes are kept for the next attempt.
        """
        async with self._saving:
            changes = self._cache.take_changes()
            if self._store is None:
                return
            lengths = self._lengths.saved()
            if not changes and lengths == self._saved_lengths:
                return
            try:
                await asyncio.to_thread(self._store.save, changes, lengths)
            except sqlite3.Error as error:
                for model, each in changes.items():
                    self._cache.of[model].give_back(each)
                raise Unavailable(f"cannot write the prompt cache: {error}") from error
            self._saved_lengths = lengths
