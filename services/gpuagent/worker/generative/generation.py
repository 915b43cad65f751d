"""One request on its slot, between llama.cpp's thread and the worker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from services.gpuagent.worker.generative.llama import DecodeStep
from services.kit.request_cost import Usage


class Generation:
    """Text that is being generated.

    Args:
        since_start_s: Returns the time since the request came to its router, s.
        computed: Called with the tokens that each step took.
    """

    def __init__(self, since_start_s: Callable[[], float], computed: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._since_start_s = since_start_s
        self._computed = computed
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        self._stopped = False
        self._last = DecodeStep("", 0, 0, 0)
        self._first_token_s = self._last_token_s = 0.0
        self._first_tokens = 0

    # ---- llama.cpp's thread --------------------------------------------------------------------

    def hear(self, step: DecodeStep) -> bool:
        """Take a step; False: the request is over."""
        self._loop.call_soon_threadsafe(self._take, step)
        return not self._stopped

    # ---- the event loop ------------------------------------------------------------------------

    def stop(self) -> None:
        """Want no more: the slot is free within one token, or one batch of the prompt's."""
        self._stopped = True

    def end(self) -> None:
        """Note that there is no more text."""
        self._texts.put_nowait(None)

    async def texts(self) -> AsyncIterator[str]:
        """Yield text as it comes."""
        while (text := await self._texts.get()) is not None:
            yield text

    @property
    def usage(self) -> Usage:
        """What it took by now."""
        between = self._last.output_tokens - self._first_tokens
        return Usage(
            self._last.input_tokens,
            self._last.output_tokens,
            self._first_token_s,
            (self._last_token_s - self._first_token_s) / between if between > 0 else 0.0,
        )

    def _take(self, step: DecodeStep) -> None:
        tokens = step.computed_tokens + step.output_tokens
        fresh = tokens - self._last.computed_tokens - self._last.output_tokens
        if fresh > 0:
            self._computed(fresh)
        if step.output_tokens > self._last.output_tokens:
            self._last_token_s = self._since_start_s()
            if not self._last.output_tokens:
                self._first_token_s, self._first_tokens = self._last_token_s, step.output_tokens
        self._last = step
        if step.text:
            self._texts.put_nowait(step.text)
