"""Limits of file descriptors: raised at the start, compared with connections, watched."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from services.kit import descriptors
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def few() -> Iterator[int]:
    """Lowers the soft limit, which is put back at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_becomes_the_hard_one(few: int) -> None:
    """A service has what the system permits, and says how much that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = descriptors.raise_limit()
    assert limit > few
    assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limit == (descriptors.MOST if hard == resource.RLIM_INFINITY else hard)


@pytest.mark.parametrize(("connections", "lines"), [(512, 1), (512 - descriptors.OTHERS, 0)])
def test_more_connections_than_descriptors_are_said(few: int, connections: int, lines: int) -> None:
    """The line names both numbers, and what to change."""
    with capture_logs() as said:
        descriptors.check_room("127.0.0.1:1", connections)
    assert len(said) == lines
    assert all(each["descriptors"] == few and "LimitNOFILE" in each["event"] for each in said)


async def test_the_last_descriptors_are_said_once_a_minute(few: int) -> None:
    """Where a service cannot open anything more, its log says so, and it continues."""
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    taken = []
    with capture_logs() as said:
        watching = asyncio.create_task(descriptors.watch(clock))
        await clock.advance(6.0)
        assert not said
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(24):
            await clock.advance(5.0)
        watching.cancel()
    for each in taken:
        os.close(each)
    assert [each["limit"] for each in said] == [few, few]
