"""Calls of Python that a request costs: a bound, so that the path does not grow unnoticed."""

from typing import Final

from benchmarks import request_path

CALLS: Final = 200
RETURNS: Final = 70
MODULES: Final = 53
_MARGIN: Final = 1.05


async def test_a_small_request_costs_no_more_python_calls_than_recorded() -> None:
    """Router and worker together stay within 5 % of the recorded calls, returns and modules."""
    found = await request_path.count()
    assert found.calls <= _MARGIN * CALLS, found.by_module
    assert found.returns <= _MARGIN * RETURNS, found.by_module
    assert found.modules <= _MARGIN * MODULES, found.by_module


async def test_the_count_has_router_worker_and_transport() -> None:
    """Counts the whole path: each of its rooms has calls."""
    found = await request_path.count()
    rooms = {module.rsplit("/", 1)[0] for module in found.by_module}
    assert {"router/core/dispatch", "gpuagent/worker", "kit/h2"} <= rooms
