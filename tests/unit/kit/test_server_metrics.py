"""Load that a server states in its metrics."""

import pytest

from services.kit.server_metrics.figures import KINDS, ServerLoad, load_of


def page(**values: float) -> bytes:
    lines = (f'vllm:{name}{{engine="0"}} {value}' for name, value in values.items())
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("running", "waiting", "kv_use", "full"),
    [(8, 0, 0.99, False), (8, 1, 0.5, False), (8, 1, 0.95, True), (4, 5, 0.1, True)],
)
def test_a_server_is_full_where_requests_wait_and_none_can_begin_soon(
    running: int, waiting: int, kv_use: float, full: bool
) -> None:
    """A queue of a moment is none, and a full cache without a queue serves what it has."""
    found = load_of(
        page(num_requests_running=running, num_requests_waiting=waiting, kv_cache_usage_perc=kv_use)
    )
    assert found == ServerLoad(running + waiting, full)


@pytest.mark.parametrize("kind", [each for each in KINDS if each.running or each.waiting])
def test_every_kind_states_its_load(kind: object) -> None:
    """By the names that it lists, of all its models and engines together."""
    name = (kind.running + kind.waiting)[0]  # type: ignore[attr-defined]
    text = f'{name}{{m="a"}} 3\n{name}{{m="b"}} 2\n'
    found = load_of(text.encode())
    assert found is not None
    assert found.requests == 5


@pytest.mark.parametrize("text", [b"", b"process_cpu_seconds_total 5\n", b"<html>", b"vllm:x 1"])
def test_a_page_without_such_metrics_states_none(text: bytes) -> None:
    """It is not taken for an idle server."""
    assert load_of(text) is None


def test_values_that_cannot_be_count_nothing() -> None:
    """NaN, infinity and negative numbers are no load."""
    lines = (b'vllm:num_requests_running{engine="%d"} %s' % pair for pair in enumerate(_ODD))
    assert load_of(b"\n".join(lines)) == ServerLoad(4.0, full=False)


_ODD = (b"NaN", b"+Inf", b"-7", b"4", b"1e300")
