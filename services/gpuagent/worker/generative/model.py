"""A language model that this process runs itself, with llama.cpp."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from services.gpuagent.core.worker_spec import Generative
from services.gpuagent.worker.generative import prompts
from services.gpuagent.worker.generative.llama import Heard, Llama
from services.gpuagent.worker.generative.prompts import Prompt


class LanguageModel:
    """llama.cpp, with the threads that wait for it.

    Args:
        llama: The loaded file.
        how: Its context and defaults.
        threads: As many as there are slots.
    """

    def __init__(self, llama: Llama, how: Generative, threads: Executor) -> None:
        self._llama = llama
        self._how = how
        self._threads = threads
        self.metadata = prompts.metadata()
        self.decoupled = True

    def read(self, data: bytes, deadline_s: float) -> Prompt:  # noqa: ARG002 - it never waits
        """Read and check a request; see `prompts.read`."""
        return prompts.read(data, self._how)

    async def generate(self, prompt: Prompt, heard: Heard) -> str:
        """Generate text; see `Llama.generate`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._llama.generate, prompt, heard)

    async def failure(self) -> str:
        """Wait for ever: what llama.cpp does not survive ends the process."""
        await asyncio.Event().wait()
        return ""
