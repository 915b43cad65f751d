"""The loop that takes one zone from change to change."""

from __future__ import annotations

from services.carbon.board import Board
from services.carbon.monitor import Monitor
from services.kit.clock import Clock


async def follow(monitor: Monitor, board: Board, grid_clock: Clock) -> None:
    """Put each change of a zone on the board when grid time gets there; end after the last.

    Args:
        monitor: The zone's.
        board: Where to put it.
        grid_clock: Tells grid time.
    """
    while (change := monitor.next_change()) is not None:
        await grid_clock.sleep((change - grid_clock.now()).total_seconds())
        news = monitor.advance(grid_clock.now())
        if news is not None:
            board.publish(news)
