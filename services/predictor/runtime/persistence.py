"""What was learned, kept on disk."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Final

from services.kit.clock import Clock
from services.kit.errors import Unavailable
from services.kit.telemetry import logs
from services.predictor.adapters.cache_store import Store
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.length_model import Knowledge

_log = logs.get("keeper")

SAVE_EVERY_S: Final = 5.0
"""What was learned in this time is lost where the process is killed; what was forgotten is not."""


class Keeper:
    """Writes what changed, now and then and on demand.

    Args:
        cache: What is remembered of prompts.
        knowledge: What is known of lengths beside it.
        store: Where to; None: nothing outlives the process.
        clock: Tells the time.
    """

    def __init__(
        self, cache: SemanticCache, knowledge: Knowledge, store: Store | None, clock: Clock
    ) -> None:
        self._cache = cache
        self._knowledge = knowledge
        self._store = store
        self._clock = clock
        self._saving = asyncio.Lock()
        self._histories: dict[str, bytes] = {}  # as they were saved

    async def run(self) -> None:
        """Drop what is too old and save, again and again. A disk that fails is tried again."""
        while True:
            await self._clock.sleep(SAVE_EVERY_S)
            self._cache.expire(self._clock.now().timestamp())
            try:
                await self.save()
            except Unavailable as error:
                _log.warning("not saved", cause=error.message)

    async def save(self) -> None:
        """Write what changed.

        Raises:
            Unavailable: The disk did not take it; it will be tried again.
        """
        async with self._saving:
            written = self._cache.take_changes()
            if self._store is None:
                return
            histories = self._knowledge.saved()
            if not written and histories == self._histories:
                return
            try:
                await asyncio.to_thread(self._store.save, written, histories)
            except sqlite3.Error as error:
                for model, (changes, _) in written.items():
                    self._cache.give_back(model, changes)
                raise Unavailable(f"cannot write what is remembered: {error}") from error
            self._histories = histories
