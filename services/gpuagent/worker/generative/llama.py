"""llama.cpp, in this process: a loaded language model that decodes several requests at a time.

`xllamacpp` is llama.cpp's own server: continuous batching over slots, one thread that decodes. The
worker calls it over loopback, with a key that no other process has, as it calls any server of the
OpenAI API.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
from pydantic_core import from_json, to_json

from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.worker.external_server import Server
from services.gpuagent.worker.generative import llama_members
from services.gpuagent.worker.generative.api_requests import ApiRequest
from services.gpuagent.worker.generative.generation import TextModel, TextRequest
from services.gpuagent.worker.generative.openai_server import OpenAiModel, session
from services.gpuagent.worker.work_messages import Body
from services.kit.config import GenerativeRuntime
from services.kit.errors import FailedPrecondition
from services.kit.net import free_port
from services.kit.package_data import package_file

_PROMPT_BATCH: Final = 64
"""Tokens of a prompt per step: between checks for cancellation, while other slots wait."""

_ALL_LAYERS: Final = 999
_SILENT: Final = -1
_SPARE_THREADS: Final = 2
"""For `/health` and errors, beside one for each request that is decoded."""

_CAPABILITIES: Final = {
    "tools": "supports_tool_calls",
    "reasoning_effort": "supports_reasoning_effort",
}
"""Capabilities of a chat template that members of a request take."""

PLATFORM: Final = "llama.cpp"


@asynccontextmanager
async def llama_model(spec: WorkerSpec, runtime: GenerativeRuntime) -> AsyncIterator[LanguageModel]:
    """Load the model of a worker while the block runs.

    Raises:
        RuntimeError: The library or the file is not there, is not the one of its digest, or
            cannot be loaded.
    """
    server = Server(f"127.0.0.1:{free_port()}", secrets.token_hex(32))
    # It never fails as a whole: what llama.cpp does not survive ends the process.
    loaded = await asyncio.to_thread(_loaded, spec, runtime, server)
    async with session(f"http://{server.address}", server.api_key) as http:
        model = LanguageModel(http, server, runtime, PLATFORM)
        await server.until_ready(model.ready)
        model.lacking = await _lacking(http)
        model.adapters = tuple(runtime.adapters)
        yield model
    del loaded


class LanguageModel(OpenAiModel):
    """A loaded model.

    Attributes:
        lacking: Members of requests for which its chat template has no place.
    """

    lacking: tuple[str, ...] = ()

    def read(self, data: Body, deadline_s: float) -> TextRequest:
        """Read and check a request; members that llama.cpp would pass over are refused.

        Raises:
            InvalidArgument: It is invalid.
        """
        wanted = super().read(data, deadline_s)
        if not isinstance(wanted, ApiRequest):
            return wanted
        llama_members.check(wanted.body, wanted.path, self.lacking)
        return replace(wanted, body=llama_members.with_chosen_tool(wanted.body))

    def document(self, wanted: TextRequest) -> bytes:
        """Return the body for llama.cpp, with each adapter's weight: without, it mixes caches."""
        found = super().document(wanted)
        if not self.adapters:
            return found
        named = wanted.adapter if isinstance(wanted, ApiRequest) else ""
        weights = [
            {"id": number, "scale": float(name == named)}
            for number, name in enumerate(self.adapters)
        ]
        return b'{"lora":%b,%b' % (to_json(weights), found[1:])

    async def failure(self) -> str:
        """Wait for ever."""
        return await TextModel.failure(self)


def _loaded(spec: WorkerSpec, runtime: GenerativeRuntime, server: Server) -> Any:
    """Return a running server; blocks while the model is loaded."""
    library, slots = _library(), spec.slots
    found = _found(spec.file, runtime)
    params = library.CommonParams()
    params.model.path = str(found)
    params.n_ctx, params.n_parallel = runtime.context_tokens * slots, slots
    params.ctx_shift = params.fit_params = False  # the context is as configured
    params.n_batch = params.n_ubatch = max(_PROMPT_BATCH, slots)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = spec.threads
    on_gpu = spec.provider != "CPUExecutionProvider"  # where llama.cpp was built for it
    params.n_gpu_layers = _ALL_LAYERS if on_gpu else 0
    params.verbosity = _SILENT  # prompts are private
    params.cache_ram_mib = 0
    params.port = int(server.address.rpartition(":")[2])
    params.model_alias = {spec.model}  # answers state it, instead of the file
    params.enable_reasoning = int(runtime.reasoning)
    if runtime.chat_template is not None:
        params.chat_template = _text(runtime.chat_template, "chat_template")
    params.lora_adapters = [_adapter(library, each) for each in runtime.adapters.values()]
    params.n_threads_http = slots + _SPARE_THREADS
    params.api_keys = [server.api_key]
    params.ui = params.endpoint_slots = False
    try:
        return library.Server(params)
    except Exception as error:  # xllamacpp's errors share no base class
        raise RuntimeError(f"{found}: {error}") from error


def _library() -> Any:
    try:
        import xllamacpp  # noqa: PLC0415 - 100 MB that only generative models need
    except ModuleNotFoundError as error:
        raise RuntimeError(f"{error}; pip install 'cinquefoil[generative]'") from error
    except ImportError as error:  # where libgomp.so.1 is missing: Debian's libgomp1
        raise RuntimeError(f"xllamacpp: {error}") from error
    return xllamacpp


async def _lacking(http: aiohttp.ClientSession) -> tuple[str, ...]:
    """Return members for which the chat template has no place: llama.cpp would pass over them."""
    async with http.get("/props") as answer:
        found = from_json(await answer.read())["chat_template_caps"]
    return tuple(name for name, capability in _CAPABILITIES.items() if not found[capability])


def _adapter(library: Any, file: Path) -> Any:
    if not file.is_file():
        raise RuntimeError(f"runtime.adapters: no file {file}")
    adapter = library.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = str(file), 0.0  # until a request names it
    return adapter


def _text(file: Path, setting: str) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError) as error:
        raise RuntimeError(f"runtime.{setting}: {error}") from error


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
