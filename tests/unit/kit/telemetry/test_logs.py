"""Log lines are JSON with service, component, time and trace."""

import json
from collections.abc import Iterator

import pytest
import structlog

from services.kit.telemetry import logs
from services.kit.telemetry.tracing import traceparent


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging is the process's: put back what was there."""
    before = structlog.get_config()
    token = traceparent.set("")
    yield
    traceparent.reset(token)
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_says_who_when_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("carbon")
    logs.get("rpc").info("serving", address="here")
    (line,) = lines(capsys)

    assert line.pop("timestamp")
    assert line == {
        "service": "carbon", "component": "rpc", "level": "info", "event": "serving",
        "address": "here",
    }  # fmt: skip


def test_lines_below_the_level_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("carbon", level="warning")
    logs.get("rpc").info("quiet")
    logs.get("rpc").warning("loud")

    assert [line["event"] for line in lines(capsys)] == ["loud"]


def test_a_line_within_a_trace_carries_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("carbon")
    token = traceparent.set("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    logs.get("rpc").info("call")
    traceparent.reset(token)

    assert lines(capsys)[0]["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_an_error_is_logged_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("carbon")
    logs.get("rpc").error("unhandled error", exc_info=KeyError("x"))

    assert "KeyError" in json.dumps(lines(capsys)[0]["exception"])
