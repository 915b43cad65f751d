"""Memory settings of a service's process."""

import gc
from collections.abc import Iterator

import pytest

from services.kit.process.memory import collect_rarely


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_the_start_made_is_passed_over_and_later_cycles_are_still_freed() -> None:
    """The collector leaves old objects alone, and is slower to start, but not off."""
    young = 700  # as the interpreter has it; the suite itself collects rarely
    gc.set_threshold(young)
    gc.disable()  # as a process that imports without it

    collect_rarely()

    assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_threshold()[0] > young
    loop: list[object] = []
    loop.append(loop)
    del loop
    assert gc.collect() >= 1
