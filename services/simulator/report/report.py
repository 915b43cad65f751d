"""All that came of a scenario, for people and for programs."""

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
"""Called with a policy and how far it is, 0..1."""


_SPAWN: Final = multiprocessing.get_context("spawn")  # forks would inherit threads' locks
_SHOW_EVERY_S: Final = 0.2

Read = Callable[[], Setting]
"""Reads the scenario. Each process calls it: a function of a module, or a partial of one."""

Parts = SimpleQueue[tuple[Policy, float]]
"""A policy, and the part of it that is done, 0..1."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one policy. Attributes: figures, series (over time), plans (in order)."""

    figures: Figures
    series: Series
    plans: tuple[PlanRecord, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a scenario.

    Attributes:
        name: The scenario's.
        start: Grid time at the start.
        duration_s: Length, s.
        seed: Of everything drawn.
        detail: "full" or "sampled".
        variants: Of each model, from the least accurate to the most.
        results: By policy, in order.
    """

    name: str
    start: datetime
    duration_s: float
    seed: int
    detail: str
    variants: Mapping[str, tuple[str, ...]]
    results: Mapping[str, Result]

    def document(self) -> dict[str, Any]:
        """Return it as JSON can hold it; the same scenario and seed give the same document."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def run(name: str, setting: Setting, policies: Sequence[Policy], progress: Progress) -> Report:
    """Simulate policies one after the other, each with the same requests."""
    requests = draw_arrivals(setting)
    results = {
        policy.label: result_of(setting, policy, requests, partial(progress, policy))
        for policy in policies
    }
    return report_of(name, setting, results)


def result_of(
    setting: Setting, policy: Policy, requests: Arrivals, progress: Callable[[float], None]
) -> Result:
    """Simulate one policy, and return what came of it.

    Args:
        setting: The scenario.
        policy: How to decide.
        requests: As `draw_arrivals` returns them.
        progress: Called with the part that is done, 0..1.
    """
    seen = simulate(setting, policy, requests, progress)
    return Result(figures(seen), series(seen), seen.plans)


def report_of(name: str, setting: Setting, results: Mapping[str, Result]) -> Report:
    """Return the report on a scenario, of what came of its policies, in order."""
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
    """Simulate policies side by side, each in a process of its own; the report is that of `run`.

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


def chosen(setting: Setting, names: Sequence[str]) -> tuple[Policy, ...]:
    """Return the policies to simulate: the scenario's, or those named.

    Args:
        setting: The scenario.
        names: Names of its policies, or of strategies; none: all of its policies.

    Raises:
        InvalidArgument: There is neither a policy nor a strategy of a name.
    """
    known = {policy.label: policy for policy in setting.scenario.policies}
    strategies = get_args(Strategy)
    for name in names:
        if name not in known and name not in strategies:
            have = ", ".join(dict.fromkeys((*known, *strategies)))
            raise InvalidArgument(f"no policy or strategy {name!r}; there are {have}")
    if not names:
        return setting.scenario.policies
    asked = (known.get(name) or Policy.model_validate({"strategy": name}) for name in names)
    return tuple({policy.label: policy for policy in asked}.values())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if isinstance(value, datetime) else value
