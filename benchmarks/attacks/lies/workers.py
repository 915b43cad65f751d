"""Lies of workers: one worker of `node-1` gives each to the router, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from benchmarks.attacks.lies.evil_worker import HELLO_LIES, LIES, planted
from benchmarks.attacks.lies.seen import seen
from benchmarks.attacks.target import EVIL_NODE, Attack, Target, until

_TAKEN_S: Final = 14.0
_AFTER_S: Final = 0.7


def lying(lie: str) -> Attack:
    """Return the attack of one lie."""

    async def attack(target: Target) -> str:
        spec = next((target.folder / EVIL_NODE).rglob("workers"))
        before, links = await seen(target), await _links(target)
        file = planted(spec, lie)

        async def was_taken() -> bool:
            return file.exists()

        if not await until(was_taken, _TAKEN_S):
            return ""  # no worker took it: this row shows nothing
        await asyncio.sleep(_AFTER_S)
        before.check(await seen(target))
        return (
            "its link is dropped" if await _links(target) < links else "taken as far as it may be"
        )

    return attack


async def _links(target: Target) -> int:
    status = await target.router_status()
    return sum(each.connected for model in status.models for each in model.instances)


def lies() -> Iterator[tuple[str, Attack]]:
    """Yield the lies of a worker."""
    for name in (*LIES, *HELLO_LIES):
        yield name, lying(name)
