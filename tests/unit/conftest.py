"""Guards of unit tests: no write to disk, no socket, no process, no event loop."""

import inspect
import os
import sys
import threading
from collections.abc import Iterator

import pytest

_REFUSED = {
    "os.fork": "starts a process",
    "os.mkdir": "writes to the disk",
    "os.posix_spawn": "starts a process",
    "os.remove": "writes to the disk",
    "os.rename": "writes to the disk",
    "os.rmdir": "writes to the disk",
    "os.system": "starts a process",
    "socket.__new__": "opens a socket, as every event loop does",
    "sqlite3.connect": "opens a database",
    "subprocess.Popen": "starts a process",
}
"""Audit events of the interpreter, and what they mean."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CACHES = ("__pycache__", ".hypothesis", os.devnull)

_THREAD = threading.get_ident()
_running = ""
_met: list[str] = []


class NotAUnitTest(BaseException):
    """A test does what only integration tests do; no code under test may swallow it."""


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if not _running or threading.get_ident() != _THREAD:
        return  # threads that earlier tests of the process left behind may do what they like
    if event == "open":
        opens_path = not isinstance(arguments[0], int)  # a descriptor was opened before
        what = "writes to the disk" if opens_path and _flags(arguments) & _WRITING else ""
    else:
        what = _REFUSED.get(event, "")
    if what and not any(cache in str(arguments) for cache in _CACHES):
        _met.append(f"{_running} {what} ({event}{arguments}): it belongs into tests/integration")
        raise NotAUnitTest(_met[-1])


def _flags(arguments: tuple[object, ...]) -> int:
    return arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0


sys.addaudithook(_refuse)


def _guarded(item: pytest.Item) -> Iterator[None]:
    """Refuse what is not for unit tests while one is set up or runs.

    Not while it is torn down: after the last one, what other tests shared is torn down, too.
    """
    global _running  # noqa: PLW0603 - an audit hook has no other place for its state
    _running = item.nodeid
    try:
        yield
    finally:
        _running = ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Guard the set-up."""
    yield from _guarded(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Guard the test."""
    yield from _guarded(item)


@pytest.fixture(autouse=True)
def _unit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that needs an event loop, or that went on after it was refused something."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        pytest.fail("a test that needs an event loop belongs into tests/integration")
    _met.clear()
    yield
    if _met:
        pytest.fail(_met[0])
