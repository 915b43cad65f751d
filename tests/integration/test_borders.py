"""Messages of others are read, or refused with an error of its own: no bytes are a bug."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.borders import borders
from tests.support.paths import ROOT

NAMES = sorted(borders())


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Return a valid input with some accidents."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, len(data)))
        last = draw(st.integers(first, min(first + 16, len(data))))
        piece = draw(st.one_of(st.binary(max_size=9), st.sampled_from(WORDS)))
        data[first:last] = piece
    return bytes(data)


WORDS = [b"\xff" * 9, b"1e999", b"NaN", b"-1", b"null", b"[]", b"{}", b"9" * 400, b"\x00", b"\xf0"]
"""Pieces over which parsers trip."""


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_any_bytes_are_read_or_refused(name: str, data: st.DataObject) -> None:
    border = borders()[name]

    border(data.draw(st.one_of(damaged(list(border.seeds)), st.binary(max_size=64))))


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_read(name: str) -> None:
    """Seeds that are refused would make the property above vacuous."""
    border = borders()[name]
    for seed in border.seeds:
        border.read(seed)


PARSERS = {
    "batch/core/lines.py": "batch-line, batch-answer",
    "carbon/core/mqtt_payload.py": "mqtt-signal",
    "carbon/sources/live/error_text.py": "provider-*: 64 KiB of an error",
    "carbon/sources/live/provider.py": "provider-*",
    "gpuagent/energy/wall_power.py": "mqtt-signal: the same reader",
    "gpuagent/worker/generative/api_requests.py": "server-events",
    "gpuagent/worker/generative/openai_server.py": "server-answer",
    "gpuagent/worker/generative/server_answers.py": "server-events, server-refusal",
    "gpuagent/worker/generative/server_listing.py": "server-models",
    "gpuagent/worker/generative/server_load.py": "server-metrics",
    "gpuagent/worker/tensor_messages.py": "tensors",
    "router/core/answer_reader.py": "answer-behind-a-gateway",
    "gpuagent/supervision/processes.py": "worker-log",
    "kit/api_requests.py": "http-chat",
    "kit/config/yaml_document.py": "yaml",
    "kit/json_bounds.py": "server-answer",
    "kit/mqtt/payload.py": "mqtt-signal",
    "kit/operators/onnx_reader.py": "onnx",
    "kit/state_file.py": "segment-journal, transaction-journal",
    "planner/adapters/mqtt.py": "mqtt-signal: the same reader",
    "planner/adapters/openadr.py": "server-answer: the same reader",
    "router/adapters/tokens.py": "jwt, jwks",
    "router/core/wire.py": "request-head, http-chat",
    "router/edge/predict.py": "http-predict",
    "router/edge/documents.py": "http-infer, http-generate, http-object, http-completion",
    "router/edge/tensor_data.py": "http-infer",
}
"""Borders by the file that reads them."""

OTHERWISE = {
    "batch/adapters/router_client.py": "heads of answers of its own router, a line each",
    "batch/adapters/store/rows.py": "its own rows",
    "batch/edge/app.py": "64 KiB, by the guard of its address",
    "carbon/sources/live/cache.py": "what it has written itself",
    "gpuagent/core/worker_spec.py": "what the agent has written for its worker",
    "gpuagent/node_label.py": "the Kubernetes API, by a pod's own certificate authority; bounded",
    "gpuagent/profiling/profiler/logbook.py": "what it has written itself",
    "gpuagent/observation/history.py": "what it has written itself",
    "gpuagent/worker/generative/prompts.py": "parameters of a request, which has bounds",
    "gpuagent/worker/generative/llama.py": "its own server's capabilities, over loopback",
    "kit/lock_file.py": "what it has written itself",
    "kit/process/confined.py": "a bounded answer of a confined process",
    "kit/process/confined_child.py": "its parent's call",
    "kit/profiles/table_file.py": "a file of the operator's",
    "planner/adapters/store/account_pages.py": "its own rows",
    "kit/kubernetes.py": "the Kubernetes API, by a pod's own authority; bounded",
    "planner/adapters/store/leadership.py": "its own rows",
    "planner/adapters/store/rows.py": "its own rows",
    "planner/adapters/store/store.py": "its own rows",
    "predictor/embedding/minilm.py": "weights with a known SHA-256",
    "predictor/adapters/proxy_model.py": "a file of the operator's",
    "predictor/training/core/rows.py": "a file of the operator's, offline",
}
"""Files that read what is not another's, or has bounds elsewhere."""

_READS = re.compile(
    r"\b(?:from_json|parsed_answer|json\.loads?|validate_json|model_validate_json|yaml\.\w+_load|"
    r"onnx\.load|_LOADER\(|text_string_to_metric_families)\("
)
_SERVICES = ROOT / "services"
_TOOLS = ("cli/", "local/", "simulator/", "datasets/", "console/")


def test_whatever_reads_a_document_is_a_border_or_says_why_not() -> None:
    """A parser that is new is fuzzed for bugs and for costs, or its bound is named here."""
    reading = {
        str(path.relative_to(_SERVICES))
        for path in _SERVICES.rglob("*.py")
        if _READS.search(path.read_text(encoding="utf-8"))
    }
    files = {file for file in reading if not file.startswith(_TOOLS)}
    named = {
        name
        for names in PARSERS.values()
        for name in names.partition(":")[0].split(", ")
        if not name.endswith("*")
    }

    assert files - OTHERWISE.keys() == PARSERS.keys() & files
    assert OTHERWISE.keys() <= files, "no longer reads one"
    assert named <= set(NAMES)
