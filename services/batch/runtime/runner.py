"""Running batches: their input is read, lines are sent, results written, files made."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from pydantic_core import to_json

from cinquefoil.batch.v1.records import Batch, BatchError, BatchState
from cinquefoil.planner.v1.records import WaitingModel
from services.batch.adapters.contents import Contents
from services.batch.adapters.router_client import Answer, RouterClient
from services.batch.adapters.store import HOLD_S, Piece, Result, Store
from services.batch.core.admission import Admission
from services.batch.core.backlog import waiting_models
from services.batch.core.lines import EXPIRED, Fault, answered, failed, parsed
from services.batch.core.releases import Releases
from services.batch.runtime.gate import Gate
from services.batch.runtime.reading import PIECE_LINES, Inventory, cut, result_id
from services.batch.runtime.writing import ResultWriter, finish
from services.kit.clock import Clock
from services.kit.config import BatchService
from services.kit.errors import NotFound, ServiceError
from services.kit.off_loop import off_loop
from services.kit.telemetry import logs

_log = logs.get("batch")
_tracebacks = logs.Tracebacks()

_LOOK_S: Final = 0.5
_JANITOR_S: Final = 60.0
_PAUSE_S: Final = 1.0
_READINGS: Final = 2
"""Input files that are read at a time."""
_PIECES: Final = 64
"""Pieces that a reading writes in one transaction."""
_SERVER_ERROR: Final = 500
_TOO_LATE: Final = 504
_BUG: Final = "internal_error"
_GONE: Final = 100


@dataclass(slots=True)
class Line:
    """A line that has no result yet.

    Attributes:
        number: From 1.
        content: As in the file; once read, the body of the request.
        custom_id: The caller's name for it, once read.
        attempts: Answers that were errors of the server.
    """

    number: int
    content: bytes
    custom_id: str = ""
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a runner works with.

    Attributes:
        store: Durable state.
        contents: Contents of files.
        router: Answers lines.
        clock: Time.
        settings: `batch`.
        most_line_bytes: Largest line.
        releases: When lines may be sent.
    """

    store: Store
    contents: Contents
    router: RouterClient
    clock: Clock
    settings: BatchService
    most_line_bytes: int
    releases: Releases


class Runner:
    """Runs all batches of a deployment, beside other services that do the same.

    Args:
        parts: What it works with.

    Attributes:
        open: Batches that have not ended, as last looked at.
        reported: Set when what waits has changed by more than answers.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._writer = ResultWriter(parts.store)
        self._gates: dict[str, Gate] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._reading = asyncio.Semaphore(_READINGS)
        self._cancelling: set[str] = set()
        self._begun: set[str] = set()
        self._pieces: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._draining = False
        self.open: list[Batch] = []
        self.reported = asyncio.Event()
        self._answered = Counter[str]()

    @property
    def in_flight(self) -> dict[str, int]:
        """Lines by model that are with the router."""
        return {model: gate.in_flight for model, gate in self._gates.items()}

    def waiting(self) -> list[WaitingModel]:
        """Return everything that waits, by model."""
        return waiting_models(self.open, self.in_flight, self._answered)

    def wake(self) -> None:
        """Look at the batches now: one has begun, or is to end."""
        self._wake.set()

    async def run(self, stop: asyncio.Event, grace_s: float) -> None:
        """Run batches until `stop` is set; then answers that are awaited have `grace_s` to come."""
        async with asyncio.TaskGroup() as tasks:
            chores = [
                tasks.create_task(self._writer.run(), name="batch.write"),
                tasks.create_task(self._renew(), name="batch.renew"),
                tasks.create_task(self._tidy(), name="batch.tidy"),
            ]
            looking = tasks.create_task(self._look(), name="batch.look")
            await stop.wait()
            looking.cancel()
            self._draining = True
            if self._pieces:
                await asyncio.wait(self._pieces, timeout=grace_s)
            for task in (*self._pieces, *self._busy.values(), *chores):
                task.cancel()
        with suppress(TimeoutError, ServiceError):
            async with asyncio.timeout(grace_s):
                await self._writer.flush()
                await self._parts.store.let_go()

    async def _look(self) -> None:
        while True:
            self._wake.clear()
            try:
                found = await self._parts.store.open()
                if {(each.id, each.state) for each in found} != {
                    (each.id, each.state) for each in self.open
                }:
                    self.reported.set()
                self.open = found
                for batch in self.open:
                    await self._go_on(batch)
            except ServiceError as error:
                _log.warning("batches wait", cause=error.message)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wake.wait()

    async def _go_on(self, batch: Batch) -> None:
        """Do what a batch needs next."""
        store = self._parts.store
        if batch.state is BatchState.VALIDATING:
            self._do(batch, self._read_in_turn(batch))
        elif batch.state is BatchState.IN_PROGRESS:
            if batch.completed + batch.failed >= batch.lines:
                await store.change(
                    batch.id, BatchState.FINALIZING, within=(BatchState.IN_PROGRESS,)
                )
                self.wake()
            else:
                await self._feed(batch)
        elif batch.state is BatchState.CANCELLING:
            self._cancelling.add(batch.id)
            await store.drop_free_pieces(batch.id)
            if not await store.pieces_left(batch.id, held=True):
                self._do(batch, self._finish(batch, BatchState.CANCELLED))
        elif batch.state is BatchState.FINALIZING:
            expired = await store.has_expired(batch.id)
            state = BatchState.EXPIRED if expired else BatchState.COMPLETED
            self._do(batch, self._finish(batch, state))

    def _do(self, batch: Batch, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a batch that one service does at a time, unless it is being done."""
        if batch.id in self._busy:
            work.close()
            return

        async def held() -> None:
            try:
                if await self._parts.store.hold(batch.id):
                    await work
                else:
                    work.close()
            except ServiceError as error:
                _log.warning("a batch waits", batch=batch.id, cause=error.message)
                await asyncio.sleep(_PAUSE_S)
            finally:
                work.close()
                del self._busy[batch.id]
                self.wake()

        self._busy[batch.id] = asyncio.create_task(held(), name=f"batch.{batch.id}")

    async def _read_in_turn(self, batch: Batch) -> None:
        """Read the input of a batch when few others are read; one that is gone fails it."""
        async with self._reading:
            try:
                await self._read(batch)
            except NotFound as error:
                why = to_json([{"code": "input_file_gone", "message": error.message, "line": 0}])
                await self._parts.store.change(
                    batch.id,
                    BatchState.FAILED,
                    within=(BatchState.VALIDATING,),
                    errors=why.decode(),
                )

    async def _read(self, batch: Batch) -> None:
        """Read the input of a batch, and begin it."""
        store, settings = self._parts.store, self._parts.settings
        inventory, found = Inventory(batch), list[Piece]()
        errors: list[BatchError] = []
        await store.uncut(batch.id)
        try:
            pieces = cut(
                self._parts.contents,
                inventory,
                most_bytes=self._parts.most_line_bytes,
                most_lines=settings.max_lines,
            )
            async for piece in pieces:
                found.append(piece)
                if len(found) >= _PIECES:
                    await store.cut(found, inventory.take_faulty())
                    found = []
            await store.cut(found, inventory.take_faulty())
            errors = await self._why_not(batch, inventory)
        except Fault as fault:
            errors = [BatchError(fault.code, fault.message, inventory.lines)]
        values = {
            "model": inventory.model,
            "lines": inventory.lines,
            "tokens": inventory.tokens,
        }
        if errors:
            await store.uncut(batch.id)
            values["errors"] = to_json(
                [{"code": e.code, "message": e.message, "line": e.line} for e in errors]
            ).decode()
            state = BatchState.FAILED
        else:
            state = BatchState.IN_PROGRESS
        await store.change(batch.id, state, within=(BatchState.VALIDATING,), **values)
        _log.info("read", batch=batch.id, lines=inventory.lines, state=state.name.lower())

    async def _why_not(self, batch: Batch, inventory: Inventory) -> list[BatchError]:
        """Return why a batch whose file was read cannot begin; empty: it can."""
        settings = self._parts.settings
        if not inventory.lines:
            return [BatchError("empty_file", "the file has no line")]
        if not inventory.good:
            return inventory.errors
        lines, tokens = await self._parts.store.waiting(batch.owner, batch.id)
        if lines + inventory.lines > settings.max_waiting_lines:
            return [
                BatchError(
                    "line_limit_exceeded",
                    f"{lines} of your requests wait; batch.max_waiting_lines allows "
                    f"{settings.max_waiting_lines}",
                )
            ]
        most = settings.max_waiting_tokens
        if most is not None and tokens + inventory.tokens > most:
            return [
                BatchError(
                    "token_limit_exceeded",
                    f"about {tokens} of your tokens wait and this file has {inventory.tokens}; "
                    f"batch.max_waiting_tokens allows {most}",
                )
            ]
        return []

    async def _feed(self, batch: Batch) -> None:
        """Send lines of a batch, as many as its model takes now."""
        await self._begin_account(batch)
        gate = self._gate(batch.model)
        over = self._left_s(batch) <= 0
        if over:
            await self._parts.store.mark_expired(batch.id)
        wanted = PIECE_LINES if over else gate.wants(_due(batch))
        if self._draining or wanted <= 0:
            return
        claimed = await self._parts.store.claim(batch.id, -(-wanted // PIECE_LINES))
        for piece, known in claimed.items():
            work = self._run_piece(batch, piece, known, gate)
            task = asyncio.create_task(work, name="batch.piece")
            self._pieces.add(task)
            task.add_done_callback(self._pieces.discard)

    async def _begin_account(self, batch: Batch) -> None:
        """Note the grid at the batch's beginning, as soon as the planner has said it."""
        release = self._parts.releases.by_model.get(batch.model)
        if batch.id in self._begun or release is None or not release.periods:
            return
        grid = release.periods[0].intensity_gco2e_per_kwh
        if grid > 0:
            await self._parts.store.begin_account(batch.id, grid, release.own_pool_j)
            self._begun.add(batch.id)

    def _gate(self, model: str) -> Gate:
        if model not in self._gates:
            admission = Admission(self._parts.settings.max_in_flight)
            parts = self._parts
            self._gates[model] = Gate(model, admission, parts.releases, parts.clock)
        return self._gates[model]

    async def _run_piece(self, batch: Batch, piece: Piece, known: set[int], gate: Gate) -> None:
        """Send the lines of a piece but those known to have a result; return when each has one."""
        try:
            text = await self._parts.contents.read(
                batch.input_file_id, piece.offset_bytes, piece.size_bytes
            )
        except ServiceError as error:
            _log.warning("a piece waits", batch=batch.id, cause=error.message)
            await asyncio.sleep(_PAUSE_S)
            await self._parts.store.free(piece)
            return
        numbered = enumerate(text.split(b"\n"), piece.first_line)
        left = [Line(*each) for each in numbered if each[1].strip() and each[0] not in known]
        await self._run_lines(batch, left, gate)
        if not self._draining:
            self._writer.done(piece)
        self.wake()

    async def _run_lines(self, batch: Batch, lines: list[Line], gate: Gate) -> None:
        """Send lines until each has a result: again where the router is full, or one fails."""

        def over() -> bool:
            return self._draining or batch.id in self._cancelling or self._left_s(batch) <= 0

        due = _due(batch)
        left = deque(line for line in lines if self._readable(batch, line))
        calls = set[asyncio.Task[None]]()
        try:
            while left or calls:
                if left and (sent := await gate.enter(len(left), due, over)):
                    some = [left.popleft() for _ in range(sent)]
                    calls.add(asyncio.create_task(self._call(batch, some, left, gate)))
                elif calls and batch.id not in self._cancelling:
                    await asyncio.wait(calls, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    break
                for call in [each for each in calls if each.done()]:
                    calls.discard(call)
                    call.result()
        finally:
            for call in calls:
                call.cancel()
        if self._left_s(batch) <= 0:
            message = "the batch's window ended before the request was answered"
            for line in left:
                self._fail(batch, line.number, Fault(EXPIRED, message, line.custom_id))

    def _readable(self, batch: Batch, line: Line) -> bool:
        """Read a line; note its failure where the file has changed."""
        with self._failing(batch, line):
            request = parsed(line.content, batch.endpoint, batch.model)
            line.custom_id, line.content = request.custom_id, request.body
            return True
        return False

    @contextmanager
    def _failing(self, batch: Batch, line: Line) -> Iterator[None]:
        """Fail a line for what goes wrong in the block: its batch would wait for it without end."""
        try:
            yield
        except Fault as fault:
            self._fail(batch, line.number, fault)
        except Exception as error:  # noqa: BLE001 - the border: every line has a result
            details = _tracebacks.details(error)
            _log.error("unhandled error", batch=batch.id, line=line.number, **details)
            self._fail(batch, line.number, Fault(_BUG, "internal error", line.custom_id))

    async def _call(self, batch: Batch, lines: list[Line], left: deque[Line], gate: Gate) -> None:
        """Send lines in one call; put those back that are to be sent again."""
        await self._writer.room()
        clock, open_ = self._parts.clock, len(lines)
        began_s, pause_s = clock.monotonic(), 0.0
        try:
            async with aclosing(
                self._parts.router.send(
                    batch.endpoint, [line.content for line in lines], _headers(batch)
                )
            ) as answers:
                async for answer in answers:
                    open_ -= 1
                    gate.leave(answer, clock.monotonic() - began_s)
                    line = lines[answer.line]
                    if await self._take(batch, line, answer):
                        continue
                    left.append(line)
                    pause_s = max(pause_s, _PAUSE_S * line.attempts)
        finally:
            gate.abandon(open_)
        await asyncio.sleep(pause_s)

    async def _take(self, batch: Batch, line: Line, answer: Answer) -> bool:
        """Note a line's answer; return whether it is final."""
        if answer.retry_after_s is not None:
            return False
        if answer.status == _TOO_LATE and self._left_s(batch) <= 0:
            return False
        line.attempts += 1
        most = self._parts.settings.max_attempts
        if answer.status >= _SERVER_ERROR and line.attempts < most:
            return False
        name = result_id(batch.id, line.number)
        with self._failing(batch, line):
            read = partial(answered, line.custom_id, name, answer.status, answer.body)
            content, bad, usage = await off_loop(len(answer.body), read)
            self._writer.add(Result(batch.id, line.number, bad, content, usage))
        self._answered[batch.model] += 1
        return True

    def _fail(self, batch: Batch, number: int, fault: Fault) -> None:
        content = failed(fault, result_id(batch.id, number))
        self._writer.add(Result(batch.id, number, failed=True, content=content))

    def _left_s(self, batch: Batch) -> float:
        return (_due(batch) - self._parts.clock.now()).total_seconds()

    async def _finish(self, batch: Batch, state: BatchState) -> None:
        ended = await finish(
            self._parts.store, self._parts.contents, batch, state, self._parts.settings.keep_files_s
        )
        self._cancelling.discard(batch.id)
        self._begun.discard(batch.id)
        if ended is not None:
            _log.info(
                "ended",
                batch=ended.id,
                state=state.name.lower(),
                completed=ended.completed,
                failed=ended.failed,
            )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(HOLD_S / 3)
            try:
                await self._parts.store.renew()
            except ServiceError as error:
                _log.warning("pieces may be taken by others", cause=error.message)

    async def _tidy(self) -> None:
        """Delete files whose time is over, and forget batches that ended as long ago."""
        while True:
            try:
                for file in await self._parts.store.expired_files(_GONE):
                    await self._parts.contents.delete(file.id)
                before_s = self._parts.clock.now().timestamp() - self._parts.settings.keep_files_s
                await self._parts.store.forget_batches(before_s)
            except ServiceError as error:
                _log.warning("old files stay", cause=error.message)
            await asyncio.sleep(_JANITOR_S)


def _headers(batch: Batch) -> dict[str, str]:
    due_s = _due(batch).timestamp()
    return {"x-client-id": batch.owner, "cinquefoil-wait-until": f"{due_s:.3f}"}


def _due(batch: Batch) -> datetime:
    return batch.created_at + batch.window
