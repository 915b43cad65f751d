"""Report on a scenario, as text data and as JSON."""

import math
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from multiprocessing.queues import SimpleQueue
from typing import Any, Final, get_args

from services.kit.config import Strategy
from services.kit.errors import InvalidArgument
from services.simulator.loader import Setting
from services.simulator.report.figures import Figures, figures
from services.simulator.report.series import Series, series
from services.simulator.run import draw_arrivals, simulate
from services.simulator.scenario import Policy
from services.simulator.stats.run_record import PlanRecord
from services.simulator.stats.sampled_intervals import Arrivals

Progress = Callable[[Policy, float], None]
"""Called with a policy and its progress, 0..1."""


_SPAWN: Final = multiprocessing.get_context("spawn")  # forks would inherit threads' locks
_SHOW_EVERY_S: Final = 0.2

Read = Callable[[], Setting]
"""Reads the scenario. Each process calls it: a module's function, or a partial of one."""

Parts = SimpleQueue[tuple[Policy, float]]
"""A policy, and its progress, 0..1."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one policy. Attributes: figures, series (over time), plans (in order)."""

    figures: Figures
    series: Series
    plans: tuple[PlanRecord, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a scenario.

    Attributes:
        name: Name of the scenario.
        start: Grid time at the start.
        duration_s: Length, s.
        seed: Seed of all random numbers.
        detail: "full" or "sampled".
        variants: Variants of each model, from the least accurate to the most.
        results: Results of the policies, in order.
    """

    name: str
    start: datetime
    duration_s: float
    seed: int
    detail: str
    variants: Mapping[str, tuple[str, ...]]
    results: Mapping[str, Result]

    def document(self) -> dict[str, Any]:
        """Return it as values for JSON; the same scenario and seed give the same document."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def run(name: str, setting: Setting, policies: Sequence[Policy], progress: Progress) -> Report:
    """Simulate policies one after another, each with the same requests."""
    requests = draw_arrivals(setting)
    results = {
        policy.label: result_of(setting, policy, requests, partial(progress, policy))
        for policy in policies
    }
    return report_of(name, setting, results)


def result_of(
    setting: Setting, policy: Policy, requests: Arrivals, progress: Callable[[float], None]
) -> Result:
    """Simulate one policy, and return its result.

    Args:
        setting: The scenario.
        policy: The policy.
        requests: Arrivals from `draw_arrivals`.
        progress: Called with the progress, 0..1.
    """
    seen = simulate(setting, policy, requests, progress)
    return Result(figures(seen), series(seen), seen.plans)


def report_of(name: str, setting: Setting, results: Mapping[str, Result]) -> Report:
    """Return the report on a scenario from its policies' results, in order."""
    scenario = setting.scenario
    return Report(
        name=name,
        start=setting.start,
        duration_s=scenario.duration_s,
        seed=scenario.seed,
        detail=scenario.detail,
        variants={
            model.name: tuple(v.name for v in sorted(model.variants, key=lambda v: v.accuracy))
            for model in setting.models
        },
        results=results,
    )


def run_in_processes(
    name: str, read: Read, policies: Sequence[Policy], progress: Progress, processes: int
) -> Report:
    """Simulate policies in parallel, each in its own process; the report is that of `run`.

    Args:
        name: Name of the scenario.
        read: Returns the scenario.
        policies: Policies to simulate.
        progress: Called in this process.
        processes: Largest number at a time, >= 1. With one, or one policy, no process is started.

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
"""In a process of the pool: the scenario, its requests, and the queue of progress."""


def _begin(read: Read, parts: Parts) -> None:
    global _worker  # noqa: PLW0603 - how a pool's initializer leaves what tasks need
    setting = read()
    _worker = setting, draw_arrivals(setting), parts


def _one(policy: Policy) -> Result:
    setting, requests, parts = _worker
    return result_of(setting, policy, requests, lambda part: parts.put((policy, part)))


def chosen(setting: Setting, names: Sequence[str]) -> tuple[Policy, ...]:
    """Return the policies to simulate: the scenario's, or the named ones.

    Args:
        setting: The scenario.
        names: Names of its policies, or of strategies; empty: all of its policies.

    Raises:
        InvalidArgument: A name is neither a policy nor a strategy.
    """
    known = {policy.label: policy for policy in setting.scenario.policies}
    strategies = get_args(Strategy)
    for name in names:
        if name not in known and name not in strategies:
            have = ", ".join(dict.fromkeys((*known, *strategies)))
            raise InvalidArgument(f"no policy or strategy {name!r}; there are {have}")
    if not names:
        return setting.scenario.policies
    selected = (known.get(name) or Policy.model_validate({"strategy": name}) for name in names)
    return tuple({policy.label: policy for policy in selected}.values())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if isinstance(value, datetime) else value
