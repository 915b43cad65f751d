"""Answers of servers of the OpenAI API: chunks and errors as recorded, and metrics."""

import json
from typing import Any

import pytest

from services.gpuagent.worker.generative.openai_server import _context_tokens, _Heard, _message
from services.gpuagent.worker.generative.prompts import Prompt
from services.gpuagent.worker.generative.server_load import ServerLoad, parse
from services.kit.errors import ServiceError

PROMPT = Prompt(id="", inference=None, text="1 2 3 4", max_tokens=3)  # type: ignore[arg-type]

VLLM = 'vllm:{name}{{engine="{engine}",model_name="m"}} {value}'
VLLM_CACHE = 'vllm:cache_config_info{{block_size="16",engine="{}",num_gpu_blocks="{}"}} 1.0'


def vllm(*values: tuple[str, int, float]) -> str:
    lines = (VLLM.format(name=name, engine=engine, value=value) for name, engine, value in values)
    return "\n".join(("# HELP x y", *lines, 'vllm:e2e_bucket{le="0.3"} 1', "python_gc 3"))


@pytest.mark.parametrize(
    ("exposition", "load"),
    [
        (
            vllm(
                ("num_requests_waiting", 0, 0.0),
                ("num_requests_waiting", 1, 4.0),
                ("kv_cache_usage_perc", 0, 0.25),
                ("kv_cache_usage_perc", 1, 0.5),
            ),
            ServerLoad(4, 0.5),
        ),
        (vllm(("gpu_cache_usage_perc", 0, 0.75)), ServerLoad(0, 0.75)),
        (
            "sglang:num_running_reqs 7.0\nsglang:num_queue_reqs 2.0\nsglang:token_usage 0.9\n",
            ServerLoad(2, 0.9),
        ),
        (
            "\n".join(map(VLLM_CACHE.format, range(3), ("100", "50", "None"))),
            ServerLoad(kv_tokens=2400),
        ),
        ("sglang:max_total_num_tokens 9000.0\n", ServerLoad(kv_tokens=9000)),
        ("llamacpp:requests_processing 1\nllamacpp:requests_deferred 5\n", ServerLoad(5)),
        ("tgi_batch_current_size 3\ntgi_queue_size 1\n", ServerLoad(1)),
        ("other 1\n", ServerLoad()),
    ],
)
def test_the_load_is_read_under_each_server_s_names(exposition: str, load: ServerLoad) -> None:
    """Engines of one server add up, and so do their caches, of which the fullest counts."""
    assert parse(exposition) == load


LLAMA_CPP: list[dict[str, Any]] = [
    {"choices": [{"text": " ", "index": 0, "logprobs": None, "finish_reason": None}]},
    {"choices": [{"text": "5", "index": 0, "logprobs": None, "finish_reason": None}]},
    {
        "choices": [{"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "completion_tokens": 3,
            "prompt_tokens": 7,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        "timings": {"prompt_n": 5, "predicted_n": 3},
    },
]
"""Three tokens, of which the last is no text yet."""


def test_llama_cpp_states_usage_only_at_the_end() -> None:
    """Until then tokens are counted by chunks, and the prompt's by its bytes."""
    heard = _Heard(PROMPT)
    first, second, last = map(heard.step, LLAMA_CPP)

    assert (first.text, first.computed_tokens, first.output_tokens) == (" ", 2, 1)
    assert (second.text, second.output_tokens) == ("5", 2)
    assert (last.input_tokens, last.computed_tokens, last.output_tokens) == (7, 5, 3)
    assert heard.reason == "length"


def test_thoughts_are_tokens_and_no_text() -> None:
    step = _Heard(PROMPT).step({"choices": [{"delta": {"reasoning_content": "Hm"}}]})

    assert (step.text, step.output_tokens) == ("", 1)


@pytest.mark.parametrize(
    ("chunk", "status"),
    [
        ({"error": {"message": "too long", "code": 400}}, "INVALID_ARGUMENT"),
        ({"object": "error", "message": "CUDA out of memory", "code": 500}, "INTERNAL"),
        ({"error": {"message": "no slot", "code": 503}}, "UNAVAILABLE"),
        ({"choices": "text"}, "INTERNAL"),
        ({"choices": [], "usage": {"prompt_tokens": 3}}, "INTERNAL"),
    ],
)
def test_errors_within_a_stream_and_chunks_of_another_form_end_it(
    chunk: dict[str, Any], status: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        _Heard(PROMPT).step(chunk)
    assert caught.value.status == status


def test_messages_of_errors_are_found_in_every_form() -> None:
    """OpenAI's, vLLM's before 0.11, and what a proxy writes."""
    assert _message(json.dumps({"error": {"message": "a"}}).encode()) == "a"
    assert _message(json.dumps({"object": "error", "message": "b"}).encode()) == "b"
    assert _message(b"<html>Bad Gateway") == "<html>Bad Gateway"
    assert _message(b"") == "no details"


@pytest.mark.parametrize(
    ("card", "tokens"),
    [
        ({"id": "m", "max_model_len": 4096}, 4096),
        ({"id": "m", "meta": {"n_ctx": 512, "n_ctx_train": 8192}}, 512),
        ({"id": "m", "meta": None}, 131_072),
    ],
)
def test_the_context_is_what_the_server_states(card: dict[str, Any], tokens: int) -> None:
    assert _context_tokens(card) == tokens
