"""Unmodified Triton clients, sync and asyncio, against a real router with a real worker stream."""

import asyncio
import json
import sys
from typing import Any

import pytest

from tests.support.paths import SUPPORT
from tests.support.router.router_service import running

PROGRAM = SUPPORT / "router/tritonclient_calls.py"


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Everything both clients saw; one process for all tests, as importing them takes a second."""
    return asyncio.run(look())


async def look() -> dict[str, Any]:
    async with running(max_request_bytes=8192, max_queue=8) as world:
        await world.route(await world.worker("a"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            PROGRAM,
            world.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        found: dict[str, Any] = json.loads(output)
        return found


@pytest.mark.parametrize("client", ["sync", "aio"])
def test_health_and_metadata(seen: dict[str, Any], client: str) -> None:
    found = seen[client]

    assert found["live"]
    assert found["ready"]
    assert found["metadata"]["name"] == "digits"
    assert found["metadata"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]
    assert found["config"]["max_batch_size"] == 4
    assert found["config"]["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}]
    assert "dynamic_batching" in found["config"]


def test_the_server_lists_only_extensions_that_it_has(seen: dict[str, Any]) -> None:
    server = seen["sync"]["server"]

    assert server["name"] == "cinquefoil"
    assert server["extensions"] == [
        "binary_tensor_data",
        "classification",
        "parameters",
        "statistics",
        "model_configuration",
        "model_repository",
        "schedule_policy",
        "cinquefoil_receipts",
    ]


def test_sync_inference_with_receipt(seen: dict[str, Any]) -> None:
    found = seen["sync"]

    assert found["output"] == [10.0]
    assert found["response"]["id"] == "mine"
    assert found["response"]["parameters"]["model_variant"] == {"string_param": "variant-a"}
    assert found["response"]["parameters"]["energy_j"] == {"double_param": 3.6}


def test_asyncio_inference_echoes_each_requests_id(seen: dict[str, Any]) -> None:
    assert seen["aio"]["outputs"] == [[10.0]] * 8
    assert seen["aio"]["ids"] == [str(i) for i in range(8)]


def test_statistics_grow_from_one_client_to_the_next(seen: dict[str, Any]) -> None:
    (first,), (second,) = (seen[c]["statistics"]["model_stats"] for c in ("sync", "aio"))

    assert first["inference_count"] == "1"
    assert second["inference_count"] == "14"  # with 2 compressed and 3 streamed
    assert second["inference_stats"]["success"]["count"] == "14"
    assert int(second["inference_stats"]["queue"]["ns"]) > 0


@pytest.mark.parametrize("client", ["sync", "aio"])
def test_a_stream_answers_in_order_and_an_error_does_not_end_it(
    seen: dict[str, Any], client: str
) -> None:
    assert seen[client]["streamed"] == [
        [[10.0], "a"],
        [[10.0], "b"],
        ["error", "no model 'nothing'; models are digits"],
        [[10.0], "d"],
    ]


def test_compressed_requests_are_answered(seen: dict[str, Any]) -> None:
    assert seen["sync"]["compressed"] == [[10.0], [10.0]]


def test_the_repository_has_the_deployments_models(seen: dict[str, Any]) -> None:
    (model,) = seen["sync"]["index"]["models"]

    assert model == {"name": "digits", "version": "1", "state": "READY"}


def test_settings_and_shared_memory_can_be_read(seen: dict[str, Any]) -> None:
    found = seen["sync"]

    assert found["regions"] == [{}, {}]
    assert found["log"]["settings"]["log_info"] == {"bool_param": True}
    assert found["log"]["settings"]["log_verbose_level"] == {"uint32_param": 0}
    assert found["trace"]["settings"]["trace_level"] == {"value": ["OFF"]}


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("load", "FAILED_PRECONDITION", "the planner decides what runs"),
        ("load unknown", "NOT_FOUND", "no model 'nothing'"),
        ("unload", "FAILED_PRECONDITION", "cinquefoil plan"),
        ("system memory", "UNIMPLEMENTED", "send tensors in the request"),
        ("cuda memory", "UNIMPLEMENTED", "send tensors in the request"),
        ("log", "FAILED_PRECONDITION", "cannot change log_verbose_level"),
        ("trace", "FAILED_PRECONDITION", "cannot change trace_rate"),
    ],
)
def test_what_is_not_done_is_refused_with_what_to_do_instead(
    seen: dict[str, Any], call: str, code: str, words: str
) -> None:
    status, message = seen["sync"]["refusals"][call]

    assert status == f"StatusCode.{code}"
    assert words in message


@pytest.mark.parametrize("client", ["sync", "aio"])
@pytest.mark.parametrize(
    ("mistake", "code", "words"),
    [
        ("unknown model", "NOT_FOUND", "no model 'nothing'; models are digits"),
        ("wrong shape", "INVALID_ARGUMENT", "input 'x' has shape [-1, 4], got [1, 3]"),
        ("wrong dtype", "INVALID_ARGUMENT", "input 'x' is FP32, got INT32"),
        ("oversized", "RESOURCE_EXHAUSTED", "router.max_request_bytes allows 8192"),
    ],
)
def test_mistakes_get_clear_errors(
    seen: dict[str, Any], client: str, mistake: str, code: str, words: str
) -> None:
    status, message = seen[client]["wrong"][mistake]

    assert status == f"StatusCode.{code}"
    assert words in message
