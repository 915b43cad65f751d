"""Callers that hold what others need: uploads that do not go on, and watches without number."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cinquefoil.batch.v1.records import Batch, BatchState
from services.batch.adapters.contents import Contents
from services.batch.runtime import desk as desk_module
from services.batch.runtime.desk import Desk, Owner
from services.kit.clock import RealClock
from services.kit.config import BatchService
from services.kit.errors import DeadlineExceeded, ResourceExhausted

OWNER = Owner("ada")


class Files:
    """As much of a store as uploads and watches read."""

    async def stored_bytes(self, _owner: str) -> int:
        return 0

    async def batch(self, id_: str, _owner: str | None) -> Batch:
        now = RealClock().now()
        state = BatchState.IN_PROGRESS
        return Batch(id=id_, owner="ada", state=state, created_at=now, window=timedelta(hours=1))


async def desk_of(folder: Path) -> Desk:
    contents = Contents(str(folder), 0)
    await contents.prepare()
    parts: Any = SimpleNamespace(
        store=Files(),
        contents=contents,
        settings=BatchService(listen="127.0.0.1:0"),
        clock=RealClock(),
        releases=SimpleNamespace(by_model={}),
    )
    return Desk(parts, cast("Any", SimpleNamespace(wake=lambda: None, open=())))


async def test_an_upload_that_falls_silent_ends_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gRPC, too: there it kept its file, and its place among the calls, for ever."""
    monkeypatch.setattr(desk_module, "_SILENT_S", 0.05)

    async def content() -> AsyncIterator[bytes]:
        yield b"{}\n"
        await asyncio.Event().wait()

    desk = await desk_of(tmp_path)
    with pytest.raises(DeadlineExceeded, match="nothing came"):
        await desk.upload(OWNER, "a", content())

    assert await asyncio.to_thread(os.listdir, tmp_path) == []


async def test_one_owner_watches_a_bounded_number_of_batches(tmp_path: Path) -> None:
    """Each is read from the database twice a second; those that end make room."""
    desk = await desk_of(tmp_path)
    async with AsyncExitStack() as stack:
        for number in range(32):
            watch = cast("Any", desk.watch(OWNER, f"b{number}"))
            stack.push_async_callback(watch.aclose)
            await anext(watch)
        with pytest.raises(ResourceExhausted, match="32 batches are watched"):
            await anext(desk.watch(OWNER, "b"))
        await anext(desk.watch(Owner("bob", sees_all=True), "b"))
    await anext(desk.watch(OWNER, "b"))
