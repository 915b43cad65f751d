"""Answers of servers of the OpenAI API: chunks and errors as recorded, and metrics."""

import json
import math
from typing import Any

import pytest

from services.gpuagent.worker.generative.decode_step import DecodeStep
from services.gpuagent.worker.generative.server_answers import (
    Progress,
    ServerAnswers,
    retry_after_s,
)
from services.gpuagent.worker.generative.server_listing import ServedModel, served_model
from services.gpuagent.worker.generative.server_load import ServerLoad, parse
from services.kit.errors import ServiceError

VLLM = 'vllm:{name}{{engine="{engine}",model_name="m"}} {value}'
VLLM_CACHE = 'vllm:cache_config_info{{block_size="16",engine="{}",num_gpu_blocks="{}"}} 1.0'


@pytest.mark.parametrize(
    "exposition",
    [
        "vllm:num_requests_waiting +Inf",
        "vllm:num_requests_waiting NaN",
        "vllm:num_requests_waiting -1e300",
        "sglang:max_total_num_tokens 1e308",
        "vllm:kv_cache_usage_perc NaN",
    ],
)
def test_a_figure_that_cannot_be_is_an_error_of_the_metrics(exposition: str) -> None:
    """Infinity ended the worker: `round` raises OverflowError."""
    with pytest.raises(ValueError, match="not within"):
        parse(exposition)


def progress() -> Progress:
    return Progress(ServerAnswers("the server at a:1"), "the server at a:1", prompt_bytes=7)


def taken(found: Progress, chunk: dict[str, Any]) -> tuple[str, DecodeStep]:
    """Return the text of a chunk, and the step that it makes."""
    text = found.take(chunk).text
    return text, found.step(text.encode())


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
        (
            VLLM_CACHE.format(0, 100).replace("}", ',kv_cache_size_tokens="900"}'),
            ServerLoad(kv_tokens=900),
        ),
        ("llamacpp:kv_cache_usage_ratio 0.99\n", ServerLoad()),
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
    found = progress()
    (space, first), (five, second), (_, last) = (taken(found, chunk) for chunk in LLAMA_CPP)

    assert (space, first.computed_tokens, first.output_tokens) == (" ", 2, 1)
    assert (five, second.output_tokens) == ("5", 2)
    assert (last.input_tokens, last.computed_tokens, last.output_tokens) == (7, 5, 3)
    assert found.reason == "length"


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "Hm"},
        {"reasoning": "Hm"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"refusal": "No"},
    ],
)
def test_thoughts_and_calls_of_tools_are_tokens_and_no_text(delta: dict[str, Any]) -> None:
    text, step = taken(progress(), {"choices": [{"delta": delta}]})

    assert (text, step.output_tokens) == ("", 1)


@pytest.mark.parametrize(
    ("chunk", "status"),
    [
        ({"error": {"message": "too long", "code": 400}}, "INVALID_ARGUMENT"),
        ({"object": "error", "message": "CUDA out of memory", "code": 500}, "INTERNAL"),
        ({"error": {"message": "no slot", "code": 503}}, "UNAVAILABLE"),
        ({"error": {"message": "no key", "code": "invalid_api_key"}}, "INTERNAL"),
        ({"error": {"message": "?", "code": "9" * 5000}}, "INTERNAL"),
        ({"choices": "text"}, "INTERNAL"),
        ({"error": "overloaded"}, "INTERNAL"),
    ],
)
def test_errors_within_a_stream_and_chunks_of_another_form_end_it(
    chunk: dict[str, Any], status: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        progress().take(chunk)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": "rate_limit_exceeded", "type": "tokens"}, "RESOURCE_EXHAUSTED"),
        ({"code": None, "type": "rate_limit_error"}, "RESOURCE_EXHAUSTED"),
        ({"code": "insufficient_quota"}, "RESOURCE_EXHAUSTED"),
        ({"code": "context_length_exceeded", "type": "invalid_request_error"}, "INVALID_ARGUMENT"),
        ({"code": None, "type": "BadRequestError"}, "INVALID_ARGUMENT"),
        ({"code": "429"}, "RESOURCE_EXHAUSTED"),
        ({"code": 503.0, "type": "overloaded_error"}, "UNAVAILABLE"),
        ({"type": "ServiceUnavailableError"}, "UNAVAILABLE"),
        ({"code": "invalid_api_key"}, "INTERNAL"),
        ({"code": "something_new"}, "INTERNAL"),
        ({"code": [1]}, "INTERNAL"),
        ({"code": 1e400}, "INTERNAL"),
        ({}, "INTERNAL"),
    ],
)
def test_an_error_s_code_is_a_number_or_a_word(error: dict[str, Any], status: str) -> None:
    with pytest.raises(ServiceError, match="no more") as caught:
        progress().take({"error": {"message": "no more"} | error})
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("status", "headers", "body", "ours", "says"),
    [
        (
            429,
            {"Retry-After": "7"},
            b'{"error": {"message": "slow down"}}',
            "RESOURCE_EXHAUSTED",
            "slow down",
        ),
        (503, {}, b'{"detail": "loading"}', "UNAVAILABLE", "503 Service Unavailable: loading"),
        (
            502,
            {},
            b"<html><head><title>502 Bad Gateway</title>",
            "UNAVAILABLE",
            "a page, '502 Bad Gateway'",
        ),
        (400, {}, b'{"object": "error", "message": "too long"}', "INVALID_ARGUMENT", "too long"),
        (400, {}, b'{"error": "plain"}', "INVALID_ARGUMENT", "plain"),
        (401, {}, b"", "INTERNAL", "api_key_file"),
        (404, {}, b"", "INTERNAL", "404 Not Found: no details"),
        (500, {}, b"\xff\xfe", "INTERNAL", "500"),
        (599, {}, b"", "INTERNAL", "599"),
        (204, {}, b"", "INTERNAL", "204 No Content and nothing instead of a stream of events"),
        (200, {"Content-Type": "text/html; x"}, b"<p>", "INTERNAL", "200 OK and text/html instead"),
        (200, {}, b'{"error": {"code": "overloaded", "message": "x"}}', "UNAVAILABLE", "x"),
        (
            301,
            {"Location": "https://b.example/v1?key=s3cret"},
            b"",
            "INTERNAL",
            "a redirect to https://b.example/v1:",
        ),
        (308, {}, b"", "INTERNAL", "308 Permanent Redirect, a redirect to nowhere"),
    ],
)
def test_an_answer_other_than_a_stream_says_what_it_is(
    status: int, headers: dict[str, str], body: bytes, ours: str, says: str
) -> None:
    """Of the server, or of a proxy before it; what a redirect's query has is kept secret."""
    error = ServerAnswers("the server at a:1").refusal(status, headers, body)

    assert (error.status, says in error.message) == (ours, True), error.message
    assert "s3cret" not in error.message
    assert ours == "INVALID_ARGUMENT" or "a:1" in error.message


@pytest.mark.parametrize(
    ("given", "wait_s"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("978307200", 3600.0),
        ("1e400", 3600.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
        ("-5", None),
        ("NaN", None),
        ("soon", None),
        ("", None),
    ],
)
def test_a_time_to_retry_is_believed_up_to_an_hour(given: str, wait_s: float | None) -> None:
    assert retry_after_s({"Retry-After": given}) == wait_s
    assert retry_after_s({}) is None
    assert retry_after_s({"retry-after-ms": "250", "Retry-After": "1"}) == 0.25


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": math.inf, "completion_tokens": 1},
        {"prompt_tokens": 1, "completion_tokens": math.nan},
        {"prompt_tokens": 10**400, "completion_tokens": 1},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 3},
        {"prompt_tokens": "3", "completion_tokens": "1"},
        [3, 1],
        "3",
    ],
)
def test_a_usage_that_cannot_be_leaves_the_tokens_to_be_counted_here(usage: Any) -> None:
    """The text is answered: it is right whatever the server says of its tokens."""
    found = progress()
    text, step = taken(found, {"choices": [{"text": "5", "finish_reason": "stop"}], "usage": usage})

    assert (text, step.output_tokens, found.counted) == ("5", 1, False)
    assert step.input_tokens == 2, "of the prompt's bytes"


@pytest.mark.parametrize(
    ("card", "tokens"),
    [
        ({"id": "m", "max_model_len": 4096}, 4096),
        ({"id": "m", "meta": {"n_ctx": 512, "n_ctx_train": 8192}}, 512),
        ({"id": "m", "meta": None}, 0),
        ({"id": "m", "max_model_len": 1e300}, 0),
        ({"id": "m", "max_model_len": 2**40}, 0),
    ],
)
def test_the_context_is_what_the_server_states(card: dict[str, Any], tokens: int) -> None:
    listed = json.dumps({"data": [card, {"id": "a", "parent": "m"}, {"id": 7, "parent": "m"}, 5]})
    assert served_model(listed.encode(), "m") == ServedModel("m", ("a",), tokens)
