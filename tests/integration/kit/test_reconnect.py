"""A peer that comes and goes."""

import asyncio
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from services.kit.backoff import Backoff
from services.kit.rpc.reconnect import ConnectionLost, Reconnector
from tests.support.virtual_clock import VirtualClock


class Clock(VirtualClock):
    """Notes how long it was waited."""

    def __init__(self) -> None:
        super().__init__(datetime(2026, 1, 1, tzinfo=UTC))
        self.waits_s: list[float] = []

    async def sleep(self, delay_s: float) -> None:
        self.waits_s.append(delay_s)
        self._elapsed_s += delay_s


async def _fails() -> None:
    """Fail after the block that started it has ended."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    raise ConnectionLost("reset")


class Script:
    """Sessions that end as it is written."""

    def __init__(self, clock: Clock, steps: list[str], **options: float) -> None:
        self._clock = clock
        self._steps = iter(steps)
        self._link = Reconnector("peer", clock, backoff=Backoff(1.0, 8.0), **options)  # type: ignore[arg-type]

    async def run(self) -> None:
        self._task = asyncio.ensure_future(self._link.run(self._session))
        with pytest.raises(asyncio.CancelledError):
            await self._task

    async def _session(self) -> None:
        match next(self._steps, "stop"):
            case "stop":
                self._task.cancel()
                await asyncio.Event().wait()
            case "cancels itself":
                raise asyncio.CancelledError
            case "task fails after the block":
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_fails())
            case "refused":
                raise ConnectionLost("refused")
            case "short":
                self._link.connected()
            case "long":
                self._link.connected()
                self._clock._elapsed_s += 60


def assert_within(waits_s: list[float], *bounds_s: float) -> None:
    assert len(waits_s) == len(bounds_s)
    for wait_s, bound_s in zip(waits_s, bounds_s, strict=True):
        assert bound_s / 2 <= wait_s <= bound_s


async def test_delays_grow_until_the_peer_answers() -> None:
    clock = Clock()
    await Script(clock, ["refused", "refused", "refused", "short", "refused"]).run()
    assert_within(clock.waits_s, 1, 2, 4, 1, 2)


async def test_a_peer_that_hangs_up_at_once_is_not_hammered() -> None:
    clock = Clock()
    await Script(clock, ["short", "short", "short", "long", "short"], steady_s=5.0).run()
    assert_within(clock.waits_s, 1, 2, 4, 1, 2)


async def test_only_changes_of_presence_and_of_its_reason_are_logged() -> None:
    with capture_logs() as lines:
        await Script(Clock(), ["refused", "refused", "short", "short", "refused"]).run()
    assert [(line["event"], line.get("why")) for line in lines] == [
        ("peer is away", "refused"),
        ("peer is back", None),
        ("peer is away", "the stream ended"),
        ("peer is back", None),
        ("peer is away", "the stream ended"),
        ("peer is away", "refused"),
    ]


async def test_an_error_of_another_kind_ends_the_run() -> None:
    async def session() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await Reconnector("peer", Clock()).run(session)


async def test_a_cancel_during_a_session_that_fails_is_not_lost() -> None:
    started = asyncio.Event()

    async def session() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionLost("while being cancelled") from None

    task = asyncio.create_task(Reconnector("peer", Clock()).run(session))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("end", ["task fails after the block", "cancels itself"])
async def test_only_its_own_cancellation_ends_it(end: str) -> None:
    """Python 3.11 marks a task as cancelled whose TaskGroup failed once its block had ended."""
    clock = Clock()
    await Script(clock, [end, end, "short", end]).run()
    assert_within(clock.waits_s, 1, 2, 1, 2)
