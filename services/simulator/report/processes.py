"""Simulates policies side by side, each in a process of its own."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.queues import SimpleQueue
from typing import Any, Final

from services.simulator.loader import Setting
from services.simulator.report.report import Progress, Report, Result, report_of, result_of, run
from services.simulator.run import draw_arrivals
from services.simulator.scenario import Policy

_SPAWN: Final = multiprocessing.get_context("spawn")  # forks would inherit threads' locks
_SHOW_EVERY_S: Final = 0.2

Read = Callable[[], Setting]
"""Reads the scenario. Each process calls it: a function of a module, or a partial of one."""

Parts = SimpleQueue[tuple[Policy, float]]
"""A policy, and the part of it that is done, 0..1."""


def run_in_processes(
    name: str, read: Read, policies: Sequence[Policy], progress: Progress, processes: int
) -> Report:
    """Simulate policies with the same requests; the report is that of `run`.

    Args:
        name: The scenario's.
        read: Returns the scenario.
        policies: Those to simulate.
        progress: Called in this process.
        processes: At most so many at a time, >= 1. With one, or one policy, no process is started.

    Raises:
        FailedPrecondition: A policy made no plan.
    """
    setting = read()
    if min(processes, len(policies)) == 1:
        return run(name, setting, policies, progress)
    parts: Parts = _SPAWN.SimpleQueue()
    with ProcessPoolExecutor(
        min(processes, len(policies)), _SPAWN, initializer=_begin, initargs=(read, parts)
    ) as pool:
        futures = {policy.label: pool.submit(_one, policy) for policy in policies}
        try:
            _follow(futures.values(), parts, progress)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    found = {label: future.result() for label, future in futures.items()}
    return report_of(name, setting, found)


def _follow(futures: Iterable[Future[Result]], parts: Parts, progress: Progress) -> None:
    """Show progress until all have ended, or one has failed."""
    open_: set[Future[Result]] = set(futures)
    while open_:
        done, open_ = wait(open_, _SHOW_EVERY_S, return_when=FIRST_COMPLETED)
        while not parts.empty():
            progress(*parts.get())
        for future in done:
            future.result()


_worker: Any = None
"""In a process of the pool: the scenario, its requests, and the queue of parts."""


def _begin(read: Read, parts: Parts) -> None:
    global _worker  # noqa: PLW0603 - how a pool's initializer leaves what tasks need
    setting = read()
    _worker = setting, draw_arrivals(setting), parts


def _one(policy: Policy) -> Result:
    setting, requests, parts = _worker
    return result_of(setting, policy, requests, lambda part: parts.put((policy, part)))
