"""A collector of spans that cannot be reached, and one beside a proxy that cannot."""

import pytest

from services.kit.net import free_port
from services.kit.proxies import VARIABLES
from services.kit.telemetry import export, tracing
from services.kit.telemetry.export import exported
from tests.support.otlp import collecting


@pytest.mark.timeout(15)
def test_a_collector_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library by itself would try for half a minute."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(export, "_SHUTDOWN_S", 0.1)

    with exported("router"):
        span = tracing.enter("/p.S/M", [], may_begin=True)
        assert span is not None
        span.end("OK")

    assert not tracing.recording()


def test_a_collector_on_this_machine_is_called_past_every_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with collecting(monkeypatch) as collector:
        with exported("router"):
            span = tracing.enter("/p.S/M", [], may_begin=True)
            assert span is not None
            span.end("OK")

        assert collector.spans
