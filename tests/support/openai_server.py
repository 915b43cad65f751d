"""A server of the OpenAI API as vLLM writes its answers: `openai_server.py PORT FAULT_FILE`.

It continues a prompt of numbers: "1 2" with " 3", " 4", ... up to `max_tokens`, one token in a
chunk; after a prompt of words it counts from one. Given tools it calls the first, and given a
schema it answers with the first value that this allows. Chunks, usage, errors, metrics and the
list of models have the forms that vLLM documents; no vLLM was run.
A word in FAULT_FILE makes it misbehave: "die" after the first token, "unready" from now on, "full"
(503), "think" (reasoning before the text), "no-sleep" (404 to `/sleep`), "queue" (its metrics say
that requests wait), "hang" after the first token. While it says "pause", answers stop after the
first token; "hold", before it, too.
Requests that were closed before their end are counted at `/aborted`. With VLLM_API_KEY, that key
is required.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from services.kit.api_requests import texts

MODEL = "Qwen/Qwen3-8B"
CONTEXT_TOKENS = 4096
KV_BLOCKS = 1024  # of 16 tokens


class Counting:
    """Counts on."""

    def __init__(self, fault: Path, api_key: str) -> None:
        self._fault = fault
        self._api_key = api_key
        self._loaded: list[tuple[str, str]] = []
        self._running = self._aborted = self._sleeps = 0
        self._asleep = set[str]()

    def app(self) -> web.Application:
        """Return what serves it."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/aborted", self._count_aborted),
                web.post("/sleep", self._fall_asleep),
                web.post("/wake_up", self._wake_up),
                web.post("/collective_rpc", self._reload),
                web.get("/is_sleeping", self._is_sleeping),
                web.get("/v1/models", self._models),
                web.post("/v1/load_lora_adapter", self._load_adapter),
                web.post("/v1/completions", self._generate),
                web.post("/v1/chat/completions", self._generate),
                web.post("/v1/responses", self._respond),
            ]
        )
        return app

    def _wants(self, fault: str) -> bool:
        return self._fault.exists() and self._fault.read_text() == fault

    async def _while(self, *faults: str) -> None:
        while any(map(self._wants, faults)):  # noqa: ASYNC110 - a file has no events
            await asyncio.sleep(0.05)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._wants("unready") else 200)

    async def _fall_asleep(self, request: web.Request) -> web.Response:
        if self._wants("no-sleep"):
            return web.Response(status=404)
        if self._running:
            return web.Response(status=500)
        self._asleep = {"1": {"weights", "kv_cache"}, "2": {"weights", "kv_cache", "loaded"}}[
            request.query["level"]
        ]
        self._sleeps += 1
        return web.Response()

    async def _wake_up(self, request: web.Request) -> web.Response:
        await self._while("hold")
        self._asleep -= set(request.query.getall("tags", ["weights", "kv_cache"]))
        return web.Response()

    async def _reload(self, request: web.Request) -> web.Response:
        if (await request.json())["method"] == "reload_weights" and "weights" not in self._asleep:
            self._asleep.discard("loaded")
        return web.json_response({"results": [None]})

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": bool(self._asleep), "sleeps": self._sleeps})

    async def _count_aborted(self, _: web.Request) -> web.Response:
        return web.json_response(self._aborted)

    async def _metrics(self, _: web.Request) -> web.Response:
        of = f'{{engine="0",model_name="{MODEL}"}}'
        waiting = 3.0 if self._wants("queue") else 0.0
        return web.Response(
            text="# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{of} {float(self._running)}\n"
            "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.\n"
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting{of} {waiting}\n"
            "# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.\n"
            "# TYPE vllm:kv_cache_usage_perc gauge\n"
            f"vllm:kv_cache_usage_perc{of} 0.25\n"
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
            "# TYPE vllm:cache_config_info gauge\n"
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{KV_BLOCKS}"}} 1.0\n'
            "# HELP vllm:prompt_tokens_total Number of prefill tokens processed.\n"
            "# TYPE vllm:prompt_tokens_total counter\n"
            f"vllm:prompt_tokens_total{of} 42.0\n"
        )

    async def _models(self, request: web.Request) -> web.Response:
        self._check_key(request)
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": MODEL}
        data = [card | {"parent": None, "max_model_len": CONTEXT_TOKENS, "permission": []}]
        data += [card | {"id": name, "root": at, "parent": MODEL} for name, at in self._loaded]
        return web.json_response({"object": "list", "data": data})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        self._check_key(request)
        wanted = await request.json()
        if "no-such" in wanted["lora_path"]:
            return _refused(404, "No adapter found for no-such", "NotFoundError")
        self._loaded.append((wanted["lora_name"], wanted["lora_path"]))
        return web.Response(text="Success")

    def _check_key(self, request: web.Request) -> None:
        if self._api_key and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            body = json.dumps({"error": "Unauthorized"})
            raise web.HTTPUnauthorized(text=body, content_type="application/json")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self._check_key(request)
        body = await request.json()
        if self._asleep:
            return _refused(500, "The engine is asleep", "InternalServerError")
        if self._wants("full"):
            return _refused(503, "The engine is overloaded", "ServiceUnavailableError")
        prompt = _prompt_of(body)
        if len(prompt.split()) + _most(body) > CONTEXT_TOKENS:
            return _refused(
                400,
                f"This model's maximum context length is {CONTEXT_TOKENS} tokens.",
                "BadRequestError",
            )
        self._running += 1
        try:
            if not body.get("stream"):
                return await self._whole(body, prompt)
            return await self._stream(request, body, prompt)
        except (ConnectionError, asyncio.CancelledError):
            self._aborted += 1
            raise
        finally:
            self._running -= 1

    async def _respond(self, request: web.Request) -> web.Response:
        """Call the first tool, as the API of responses has it."""
        self._check_key(request)
        (tool, *_) = (await request.json())["tools"]
        call = {"type": "function_call", "id": "fc-1", "call_id": "c-1", "status": "completed"}
        said = {"name": tool["name"], "arguments": json.dumps(_value(tool["parameters"]))}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        head = {"id": "resp-1", "object": "response", "created_at": 1, "model": MODEL}
        found = head | {"status": "completed", "output": [call | said], "usage": usage}
        return web.json_response(found)

    async def _whole(self, body: Mapping[str, Any], prompt: str) -> web.Response:
        most, number = _most(body), _number(prompt)
        await self._while("pause", "hold")
        text = "".join(f" {number + made}" for made in range(1, most + 1))
        structured = _structured(body)
        reason = "stop" if structured else "length"
        message: dict[str, Any] = {"role": "assistant", "content": structured or text}
        if call := _call(body):
            reason, message = "tool_calls", {"role": "assistant", "tool_calls": [call]}
        said = {"message": message} if "messages" in body else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        found = {"id": "c-1", "choices": [choice], "sent": body, "usage": _usage(prompt, most)}
        return web.json_response(found)

    async def _stream(
        self, request: web.Request, body: Mapping[str, Any], prompt: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        chat = "messages" in body
        head = {
            "id": "chatcmpl-1" if chat else "cmpl-1",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 1,
            "model": MODEL,
        }

        options = body.get("stream_options") or {}

        async def send(choices: list[Any], usage: Mapping[str, Any]) -> None:
            chunk: dict[str, Any] = head | {"choices": choices}
            if not choices or options.get("continuous_usage_stats"):
                chunk["usage"] = usage
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

        if chat:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            await send([first | {"logprobs": None, "finish_reason": None}], _usage(prompt, 0))
        number = _number(prompt)
        await self._while("hold")
        if chat and self._wants("think"):
            for word in ("Let", " me count."):
                thought = {"index": 0, "delta": {"reasoning_content": word}}
                await send([thought | {"finish_reason": None}], _usage(prompt, 1))
        if delta := _delta(body):
            ended = "tool_calls" if "tool_calls" in delta else "stop"
            await send([{"index": 0, "delta": delta, "finish_reason": None}], _usage(prompt, 1))
            await send([{"index": 0, "delta": {}, "finish_reason": ended}], _usage(prompt, 1))
            body = {"max_tokens": 0}
        most = _most(body)
        for made in range(1, most + 1):
            text, last = f" {number + made}", made == most
            said = {"delta": {"content": text}} if chat else {"text": text}
            reason = {"logprobs": None, "finish_reason": "length" if last else None}
            die, hang = self._wants("die"), self._wants("hang")  # who reads the token may end them
            await send([{"index": 0} | said | reason], _usage(prompt, made))
            if die:
                os._exit(3)
            await asyncio.sleep(3600 if hang else 0)
            await self._while("pause", "hold")
        if options.get("include_usage"):
            await send([], _usage(prompt, most))
        await response.write(b"data: [DONE]\n\n")
        return response


def _prompt_of(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return "\n".join(texts(body))
    return str(body["prompt"])


def _most(body: Mapping[str, Any]) -> int:
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    return 16 if most is None else int(most)


def _number(prompt: str) -> int:
    last = prompt.rsplit(maxsplit=1)[-1:]
    return int(last[0]) if last and last[0].isdigit() else 0


def _call(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a call of the first tool, where there is one and no result of it yet."""
    tools = body.get("tools") or ()
    answered = any(message["role"] == "tool" for message in body.get("messages", ()))
    if not tools or answered or body.get("tool_choice") == "none":
        return None
    tool = tools[0]["function"]
    arguments = json.dumps(_value(tool.get("parameters") or {}))
    return {
        "id": "c-1",
        "type": "function",
        "function": {"name": tool["name"], "arguments": arguments},
    }


def _structured(body: Mapping[str, Any]) -> str:
    """Return a text as `response_format` wants it; "": as usual."""
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        return json.dumps(_value(wanted["json_schema"]["schema"]))
    if wanted.get("type") == "json_object":  # with a schema in the prompt, as some clients have it
        return json.dumps({"name": "a", "age": 7})
    if "```json" in "".join(texts(body)):
        return '```json\n{"name": "a", "age": 7}\n```'
    return ""


def _delta(body: Mapping[str, Any]) -> dict[str, Any] | None:
    if call := _call(body):
        return {"role": "assistant", "tool_calls": [{"index": 0, **call}]}
    text = _structured(body)
    return {"role": "assistant", "content": text} if text else None


def _value(schema: Mapping[str, Any]) -> Any:
    """Return a value that a simple schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: _value(each) for name, each in schema.get("properties", {}).items()}
    values = {"integer": 7, "number": 0.5, "boolean": True, "array": [], "string": "a"}
    return values.get(kind)


def _usage(prompt: str, made: int) -> dict[str, Any]:
    read = len(prompt.split())
    return {
        "prompt_tokens": read,
        "total_tokens": read + made,
        "completion_tokens": made,
        "prompt_tokens_details": {"cached_tokens": min(1, read - 1)},
    }


def _refused(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


if __name__ == "__main__":
    web.run_app(
        Counting(Path(sys.argv[2]), os.environ.get("VLLM_API_KEY", "")).app(),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        print=lambda *_: None,
        handler_cancellation=True,
    )
