"""llama.cpp, in this process: a loaded language model that decodes several requests at a time.

`xllamacpp` is llama.cpp's own server without its wire: continuous batching over slots, one thread
that decodes, and here a waiting thread for each request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

from services.gpuagent.worker.generative.generation import DecodeStep, Generation, TextModel
from services.gpuagent.worker.generative.prompts import Prompt
from services.gpuagent.worker.model_port import ModelFailed
from services.kit.config import GenerativeRuntime
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.package_data import package_file

_PROMPT_BATCH: Final = 64
"""Tokens of a prompt per step: between checks for cancellation, while other slots wait."""

_ALL_LAYERS: Final = 999
_SILENT: Final = -1

PLATFORM: Final = "llama.cpp"


class LanguageModel(TextModel):
    """A loaded model. To make one blocks, and so does a thread for each of its answers.

    It never fails as a whole: what llama.cpp does not survive ends the process.

    Args:
        file: GGUF file, where `runtime` names none.
        runtime: Context, template and defaults.
        waiting: Threads that wait for answers, as many as there are slots.
        slots: Requests that are decoded at a time.
        threads: Threads that compute.
        gpu: Its layers run on the GPU that the process sees, where llama.cpp was built for it.

    Raises:
        RuntimeError: The library or the file is not there, is not the one of its digest, or
            cannot be loaded.
    """

    def __init__(  # noqa: PLR0913 - what a worker's spec says
        self,
        file: Path,
        runtime: GenerativeRuntime,
        waiting: Executor,
        *,
        slots: int,
        threads: int,
        gpu: bool = False,
    ) -> None:
        super().__init__(PLATFORM, runtime)
        self._waiting = waiting
        found = _found(file, runtime)
        params = _library().CommonParams()
        params.model.path = str(found)
        params.n_ctx, params.n_parallel = runtime.context_tokens * slots, slots
        params.ctx_shift = params.fit_params = False  # the context is as configured
        params.n_batch = params.n_ubatch = max(_PROMPT_BATCH, slots)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_gpu_layers = _ALL_LAYERS if gpu else 0
        params.verbosity = _SILENT  # prompts are private
        params.cache_ram_mib = 0
        # Its HTTP side cannot be left out. It listens on loopback, with a key that no client has.
        params.n_threads_http = 1
        params.api_keys = [secrets.token_hex(32)]
        params.ui = params.endpoint_slots = False
        try:
            self._server = _library().Server(params)
        except Exception as error:  # xllamacpp's errors share no base class
            raise RuntimeError(f"{found}: {error}") from error

    async def generate(self, prompt: Prompt, generation: Generation) -> str:
        """Generate text; see `TextModel`.

        Raises:
            InvalidArgument: The prompt does not fit the context.
            ModelFailed: llama.cpp could not go on.
        """
        loop, listening = asyncio.get_running_loop(), _Listening(generation.hear)
        await loop.run_in_executor(self._waiting, self._generate, prompt, listening)
        if listening.error is not None:
            raise listening.error
        return listening.reason

    def _generate(self, prompt: Prompt, listening: _Listening) -> None:
        """Generate text; blocks, and releases the GIL."""
        server = self._server
        handle = server.handle_chat_completions if prompt.chat else server.handle_completions
        body = prompt.to_openai() | {"return_progress": True, "timings_per_token": True}
        handle(body | {"stream_options": {"include_usage": True}}, listening.take)


class _Listening:
    """Makes steps of llama.cpp's chunks in its thread. Attributes: reason, error (how it ended)."""

    def __init__(self, heard: Callable[[DecodeStep], bool]) -> None:
        self.reason = ""
        self.error: InvalidArgument | ModelFailed | None = None
        self._heard = heard
        self._input = self._computed = self._output = 0

    def take(self, chunk: dict[str, Any]) -> bool:
        """Take a chunk; True ends the request."""
        if "error" in chunk:
            self.error = _explained(chunk["error"])
            return True
        timings = chunk.get("timings", {})
        self._output = timings.get("predicted_n", self._output)
        self._computed = timings.get("prompt_n", self._computed)
        if "prompt_progress" in chunk:
            self._input = chunk["prompt_progress"]["processed"]
        if chunk.get("usage"):
            self._input = chunk["usage"]["prompt_tokens"]
            self._output = chunk["usage"]["completion_tokens"]
        text = ""
        for choice in chunk["choices"]:
            text += (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
            self.reason = choice["finish_reason"] or self.reason
        return not self._heard(DecodeStep(text, self._input, self._computed, self._output))


def _explained(error: dict[str, Any]) -> InvalidArgument | ModelFailed:
    if error.get("type") == "exceed_context_size_error":
        field = "raw_input_contents[0]"
        return InvalidArgument.at(
            field,
            f"the prompt has {error['n_prompt_tokens']} tokens and must leave room for "
            f"an answer in a context of {error['n_ctx']}",
        )
    return ModelFailed(f"llama.cpp: {error.get('message', 'no details')}")


def _library() -> Any:
    try:
        import xllamacpp  # noqa: PLC0415 - 100 MB that only generative models need
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{error}; pip install 'cinquefoil[generative]'") from error
    except ImportError as error:  # where libgomp.so.1 is missing: Debian's libgomp1
        raise RuntimeError(f"xllamacpp: {error}") from error
    return xllamacpp


def _found(file: Path, runtime: GenerativeRuntime) -> Path:
    """Return the model's file; one of a package has the expected digest."""
    if runtime.resource:
        try:
            return package_file(runtime.resource, runtime.sha256)
        except FailedPrecondition as error:
            raise RuntimeError(str(error)) from error
    if not file.is_file():
        raise RuntimeError(f"no file {file}")
    return file
