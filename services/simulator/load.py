"""Arrivals of requests: a rate over time, and the process at that rate.

Arrivals are a renewal process in operational time: with L(t) the requests expected up to t, the
times L(t_k) have gaps of mean 1, drawn from the arrivals' distribution. Mapped back through L,
exponential gaps give exactly a Poisson process of that rate, and others the same burstiness at
every rate. Source: Gerhardt and Nelson, "Transforming renewal processes for simulation of
nonstationary arrival processes", INFORMS J. Computing 21(4), 2009.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from services.simulator.scenario import (
    Arrivals,
    ConstantLoad,
    DailyLoad,
    Load,
    Texts,
    TraceLoad,
)

Numbers = NDArray[np.float64]

_DAY_S = 86_400.0
_STEP_S = 60.0
_CHUNK = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """A rate that is constant within steps.

    Attributes:
        edges_s: Start of each step and end of the last, s, shape (steps + 1,).
        rps: Rates, req/s, shape (steps,).
    """

    edges_s: Numbers
    rps: Numbers

    @property
    def expected(self) -> Numbers:
        """Requests expected up to each edge, shape (steps + 1,)."""
        return np.concatenate(([0.0], np.cumsum(np.diff(self.edges_s) * self.rps)))


def rate(load: Load, column: Numbers | None, duration_s: float, hour: float) -> Rate:
    """Return the rate of a load's settings.

    Args:
        load: The settings; not recorded ones, which are arrivals already.
        column: Rates of a trace, req/s.
        duration_s: Length, s.
        hour: Hour of the day (UTC) at the start.
    """
    match load:
        case ConstantLoad(rate_rps=rps):
            return Rate(np.array([0.0, duration_s]), np.array([rps]))
        case TraceLoad(step_s=step_s) if column is not None:
            edges_s = _edges(duration_s, step_s)
            return Rate(edges_s, column[np.arange(len(edges_s) - 1) % len(column)])
        case DailyLoad():
            edges_s = _edges(duration_s, _STEP_S)
            middle_s = (edges_s[:-1] + edges_s[1:]) / 2
            angle = 2 * math.pi * (middle_s / _DAY_S + (hour - load.peak_hour) / 24.0)
            return Rate(edges_s, load.mean_rps * (1 + load.swing * np.cos(angle)))
    raise ValueError(f"no rate: {load}")


def arrivals(steps: Rate, process: Arrivals, rng: Generator) -> Numbers:
    """Return arrivals within the steps, s from the start, in order.

    Args:
        steps: The rate.
        process: Arrival process.
        rng: Random numbers.
    """
    expected = steps.expected
    operational = np.concatenate(list(_renewals(_gaps(process, rng), float(expected[-1]))))
    return np.asarray(np.interp(operational, expected, steps.edges_s), dtype=np.float64)


def text_lengths(
    texts: Texts, usual: tuple[float, float], count: int, rng: Generator
) -> NDArray[np.int64]:
    """Return the tokens of prompts and answers, >= 1, shape (count, 2).

    Args:
        texts: The settings.
        usual: Means of prompts and of answers if the settings have none.
        count: Number of requests.
        rng: Random numbers.
    """
    means = (texts.prompt_tokens or usual[0], texts.answer_tokens or usual[1])
    sigma = np.sqrt(np.log1p(np.square([texts.prompt_cv, texts.answer_cv])))
    drawn = rng.lognormal(np.log(means) - sigma**2 / 2, sigma, (count, 2))
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def _edges(duration_s: float, step_s: float) -> Numbers:
    edges_s = np.arange(math.ceil(duration_s / step_s) + 1, dtype=np.float64) * step_s
    edges_s[-1] = duration_s
    return edges_s


def _gaps(process: Arrivals, rng: Generator) -> Callable[[int], Numbers]:
    """Return a function from a count to gaps of mean 1."""
    match process.kind:
        case "regular":
            return np.ones
        case "poisson":
            return rng.standard_exponential
        case "gamma":
            shape = process.cv**-2
            return lambda count: rng.gamma(shape, 1 / shape, count)


def _renewals(gaps: Callable[[int], Numbers], end: float) -> Iterator[Numbers]:
    """Yield the renewals in [0, end), in pieces."""
    last = 0.0
    while last < end:
        times = last + np.cumsum(gaps(_CHUNK))
        last = float(times[-1])
        yield times[times < end]
    yield np.zeros(0)
