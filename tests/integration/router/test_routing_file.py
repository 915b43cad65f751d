"""The last routing table comes back from the disk, or not at all."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from services.kit.state_file import damaged_files
from services.router.adapters.routing_file import RoutingFile
from services.router.core.model import Instance, ModelRoutes, RoutingTable

TABLE = RoutingTable(
    revision=41,
    plan_version=7,
    models=(
        ModelRoutes(
            "digits",
            0.5,
            95.0,
            "shares",
            (Instance("h:1", "s-1", "digits", "small", 0.9, 1.0, 4, zone="US-CAL", pue=1.2),),
        ),
    ),
    term=3,
)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A file with `TABLE`."""
    path = tmp_path / "routes.json"
    file = RoutingFile(path)
    file.put(TABLE)
    keeping = asyncio.create_task(file.keep())
    async with asyncio.timeout(45):
        while not path.exists():  # noqa: ASYNC110 - a new file has no event
            await asyncio.sleep(0.005)
    keeping.cancel()
    return path


def test_the_table_that_comes_back_is_of_no_term(path: Path) -> None:
    """The routes are those of before; a planner whose database began again supersedes them."""
    assert RoutingFile(path).read() == replace(TABLE, term=0)


def test_a_damaged_table_is_set_aside(path: Path) -> None:
    """A router that waits for a planner is better than one that sends requests astray."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)

    assert RoutingFile(path).read() is None
    assert len(damaged_files(path.parent)) == 1


def test_a_router_without_a_file_begins_without_routes(tmp_path: Path) -> None:
    """The first start of a router has no file."""
    assert RoutingFile(tmp_path / "routes.json").read() is None
