"""A server's sleep: it gives its memory back while it has no text, and wakes for the next one.

Sources: vLLM, "Sleep Mode": level 1 keeps weights in the host's memory, level 2 drops them; both
forget the KV cache, keep the process with its compiled graphs, and need `--enable-sleep-mode` and
`VLLM_SERVER_DEV_MODE=1`. A GPU whose servers sleep still has a context, and draws its power; what
it has again is memory, for other models on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from services.kit.config import Sleep
from services.kit.errors import Unavailable
from services.kit.telemetry import logs

_OK: Final = 200
_CHANGE: Final = aiohttp.ClientTimeout(total=300.0)  # seventy billion parameters from a disk
_WAKING: Final[Mapping[int, tuple[tuple[str, Mapping[str, str] | None], ...]]] = {
    1: (("/wake_up", None),),
    2: (
        ("/wake_up?tags=weights", None),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/wake_up?tags=kv_cache", None),
    ),
}
"""Requests that wake a server, in order, by level."""

_log = logs.get("worker")


class ServerSleep:
    """Sleep of one server.

    Args:
        session: HTTP to the server.
        settings: When it sleeps, and how deeply; None: never.
        monotonic: The clock, s.

    Attributes:
        asleep: It sleeps, or falls asleep.
        woke_in_s: Time that it took to wake last, s; 0: it never slept.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: Sleep | None,
        monotonic: Callable[[], float],
    ) -> None:
        self.asleep = False
        self.woke_in_s = 0.0
        self._session = session
        self._settings = settings
        self._monotonic = monotonic
        self._needed_s = monotonic()
        self._changing = asyncio.Lock()

    async def rouse(self) -> None:
        """Return once the server is awake; the first of several callers wakes it.

        Raises:
            Unavailable: It does not wake.
        """
        self._needed_s = self._monotonic()
        if self._settings is None or not (self.asleep or self._changing.locked()):
            return
        async with self._changing:
            if not self.asleep:
                return
            began_s = self._monotonic()
            for path, body in _WAKING[self._settings.level]:
                await self._post(path, body)
            self.asleep, self.woke_in_s = False, self._monotonic() - began_s
            _log.info("the model's server is awake", took_s=round(self.woke_in_s, 3))

    async def doze(self, in_flight: Callable[[], int]) -> None:
        """Put the server to sleep if it had no text for long enough; it may have none.

        A request that comes while it falls asleep waits, and wakes it.

        Args:
            in_flight: Returns how many texts it generates.
        """
        settings = self._settings
        if in_flight():
            self._needed_s = self._monotonic()
        if settings is None or self.asleep or in_flight():
            return
        if self._monotonic() - self._needed_s < settings.after_s:
            return
        async with self._changing:
            if in_flight():
                return
            self.asleep = True
            try:
                await self._post(f"/sleep?level={settings.level}", None)
            except Unavailable as error:
                self.asleep, self._settings = False, None
                _log.warning("the model's server cannot sleep: it stays awake", error=error.message)
                return
        _log.info("the model's server sleeps", level=settings.level)

    async def _post(self, path: str, body: Mapping[str, str] | None) -> None:
        try:
            async with self._session.post(path, json=body, timeout=_CHANGE) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"POST {path}: {error or type(error).__name__}") from error
        if status != _OK:
            raise Unavailable(f"POST {path}: HTTP {status}")
