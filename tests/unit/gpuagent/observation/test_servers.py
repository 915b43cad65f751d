"""Metrics pages of others: read in bounds, whatever is on them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.observer import MAX_ACCOUNTS, ObservedServer
from services.gpuagent.observation.scraping import Page, reached_at
from services.kit.server_metrics.exposition import MAX_PAGE_BYTES, MAX_SAMPLES, read
from services.kit.server_metrics.figures import (
    KINDS,
    MAX_BUCKETS,
    MAX_MODELS,
    PREFIXES,
    Histogram,
    ServerFigures,
    figures,
)

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 2.0
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen3-8B"} 51200.0
vllm:generation_tokens_total{engine="0",model_name="Qwen/Qwen3-8B"} 2.56e4
vllm:request_success_total{engine="0",finished_reason="stop",model_name="Qwen/Qwen3-8B"} 90.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="Qwen/Qwen3-8B"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="Qwen/Qwen3-8B"} 50.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="Qwen/Qwen3-8B"} 100.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-8B"} 100.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="Qwen/Qwen3-8B"} 100.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="Qwen/Qwen3-8B"} 10.0
"""


def test_a_page_of_vllm() -> None:
    """Engines of one model are added up; quantiles are Prometheus' own."""
    (found,) = figures(VLLM)
    assert (found.server, found.model) == ("vLLM", "Qwen/Qwen3-8B")
    assert (found.running, found.waiting, found.requests) == (5, 1, 100)
    assert (found.prompt_tokens, found.answer_tokens) == (51200, 25600)
    assert found.first_token is not None
    assert found.first_token.quantile(0.95) == pytest.approx(0.19)
    assert found.first_token.mean_s == pytest.approx(0.1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_is_recognised_by_its_own_names(kind: object) -> None:
    """Every name that a kind lists gives the quantity that it is listed for."""
    label = f'{{{kind.model_label}="m"}}' if kind.model_label else ""  # type: ignore[attr-defined]
    for quantity in ("requests", "prompt_tokens", "answer_tokens", "running", "waiting"):
        for name in getattr(kind, quantity):
            (found,) = figures(f"{name}{label} 7\n".encode())
            assert getattr(found, quantity) == 7
    for quantity in ("first_token", "token", "latency"):
        for name in getattr(kind, quantity):
            lines = (f"{name}_count{label} 4", f"{name}_sum{label} 2")
            found = next(
                each
                for each in figures("\n".join(lines).encode())
                if getattr(each, quantity) is not None
            )
            assert getattr(found, quantity).mean_s == 0.5


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode()))
def test_any_bytes_are_read_or_left_out(data: bytes) -> None:
    for page in (data, b"vllm:x" + data, b'vllm:num_requests_running{model_name="' + data):
        figures(page)
        assert all(each.value >= 0 for each in read(page, PREFIXES))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e300", "0x10", "", "one"])
def test_values_that_no_counter_has_are_left_out(value: str) -> None:
    assert not figures(f"vllm:generation_tokens_total {value}\n".encode())


def test_a_hostile_page_takes_bounded_time_and_memory() -> None:
    """Too long a page, too many series, models, buckets and labels: the rest is left out."""
    lines = [
        f'vllm:time_to_first_token_seconds_bucket{{le="{n}.5",model_name="m{n % 500}"}} {n}'
        for n in range(60_000)
    ]
    lines += [f'vllm:num_requests_running{{{"a" * 1000}="' + "\\" * 2000 for _ in range(1000)]
    page = "\n".join(lines).encode() + b'\nvllm:x{a="' + b"a" * MAX_PAGE_BYTES
    began_s = time.process_time()
    found = figures(page)
    assert time.process_time() - began_s < 3
    assert len(found) <= MAX_MODELS
    times = [each.first_token for each in found if each.first_token is not None]
    assert all(len(each.buckets) <= MAX_BUCKETS for each in times)
    assert sum(1 for _ in read(page, PREFIXES)) <= MAX_SAMPLES


def test_escaped_labels_are_read() -> None:
    (found,) = read(rb'vllm:x{a="q\"\\\n",b="}"} 1' + b"\n", PREFIXES)
    assert found.labels == {"a": 'q"\\\n', "b": "}"}


def test_names_of_models_are_printable_and_short() -> None:
    name = "a\x1b[31m" + "b" * 1000
    (found,) = figures(f'vllm:num_requests_running{{model_name="{name}"}} 1'.encode())
    assert found.model.isprintable()
    assert len(found.model) <= 200


def page(**given: float) -> ServerFigures:
    return ServerFigures("vLLM", "m", **given)  # type: ignore[arg-type]


def test_an_account_counts_what_came_since() -> None:
    account = ServerAccount("vLLM", "m")
    account.add(0.0, page(requests=100, answer_tokens=1000, running=2))
    account.add(10.0, page(requests=110, answer_tokens=1500, running=4))
    assert account.counts == {"requests": 10, "answer_tokens": 500}
    assert account.rate("answer_tokens") == 50
    assert account.rate("prompt_tokens") is None
    assert account.mean_running == 4


def test_pages_with_other_names_each_time_take_bounded_memory() -> None:
    """Of models and of bounds of times: a server of others may have new ones on each page."""
    server = ObservedServer("http://a/metrics", "w")
    for at in range(20):
        lines = [f'vllm:num_requests_running{{model_name="{at}-{n}"}} 1' for n in range(60)]
        lines += [f'vllm:e2e_request_latency_seconds_count{{model_name="0-0"}} {at}']
        lines += [
            f'vllm:e2e_request_latency_seconds_bucket{{model_name="0-0",le="{at * 100 + n}"}} {at}'
            for n in range(100)
        ]
        server.add(float(at), Page(server.url, figures("\n".join(lines).encode())))
    assert len(server.accounts) <= MAX_ACCOUNTS
    assert 0 < len(server.accounts["0-0"].times["latency"].buckets) <= MAX_BUCKETS


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.2", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", ""]
)
def test_a_container_that_listens_at_no_address_of_its_own_is_not_read(address: str) -> None:
    """In its own network it has any: at this machine's another server answers, or the cloud."""
    assert reached_at(address) == ""
    assert reached_at("10.0.0.7") == "10.0.0.7"


def test_a_restarted_server_counts_from_zero() -> None:
    account = ServerAccount("vLLM", "m")
    account.add(0.0, page(requests=100))
    account.add(10.0, page(requests=7))
    assert account.counts == {"requests": 7}
    assert account.restarts == 1


def test_pages_of_no_later_time_and_impossible_rates_count_nothing() -> None:
    account = ServerAccount("vLLM", "m")
    account.add(10.0, page(requests=0))
    account.add(5.0, page(requests=50))
    account.add(20.0, page(requests=1e15))
    assert account.counts == {"requests": 0}


@given(st.lists(st.tuples(st.floats(-5, 50), st.floats(0, 1e9), st.floats(0, 1e9)), max_size=20))
def test_counts_are_never_negative(steps: list[tuple[float, float, float]]) -> None:
    account, now_s = ServerAccount("vLLM", "m"), 0.0
    for length_s, requests, running in steps:
        now_s += length_s
        times = Histogram(requests, running, {0.5: requests / 2})
        account.add(now_s, ServerFigures("vLLM", "m", requests, running=running, latency=times))
    assert all(count >= 0 for count in account.counts.values())
    assert account.busy_s <= account.observed_s + 1e-9
    assert all(each.count >= 0 for each in account.times.values())
