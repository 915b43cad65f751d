"""Distributions of requests: counts of arrivals, and stationary states of Markov chains."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

RARE = 1e-6
"""Share of all requests that is too small to change a percentile."""

MOST_ITERATIONS = 1000


def in_turn(means: Values, turns: int, size: int, *, drawn: bool, groups: float) -> Values:
    """Return distributions of the requests assigned to one of `turns` processes.

    Args:
        means: Mean number of requests to all, for each distribution.
        turns: Processes to which requests are assigned in turn.
        size: Length of each distribution.
        drawn: Whether the first turn is random; else this process has just had its turn.
        groups: Dispersion of requests that come together.

    Returns:
        Shape (means, size).
    """
    total = counts(means * turns, size * turns, groups).reshape(len(means), size, turns)
    if not drawn:
        just: Values = total.sum(axis=2)
        return just
    later = np.arange(turns) / turns
    found: Values = total @ (1 - later)
    found[:, 1:] += (total @ later)[:, :-1]
    return found


def counts(means: Values, size: int, groups: float) -> Values:
    """Return distributions of counts, shape (means, size): Poisson, or of groups.

    Groups of geometric size that come in a Poisson process have negative binomial counts.
    """
    if groups <= 1.0:
        return _poissons(means, size)
    number = np.maximum(means, 1e-300)[:, None] / (groups - 1.0)
    at = np.arange(size - 1)
    steps = np.log((at + number) / (at + 1) * (1.0 - 1.0 / groups))
    logs = np.concatenate([np.zeros((len(means), 1)), np.cumsum(steps, axis=1)], axis=1)
    found: Values = np.exp(logs - number * math.log(groups))
    return found


def _poissons(means: Values, size: int) -> Values:
    """Return Poisson distributions, shape (means, size)."""
    most = float(means.max(initial=0.0))
    likely = min(size, math.ceil(most + 12 * math.sqrt(most) + 30))  # the rest is below 1e-16
    found = np.zeros((len(means), size))
    logs = np.log(np.maximum(means, 1e-300))[:, None] * np.arange(likely) - _log_factorials(likely)
    np.exp(logs - means[:, None], out=found[:, :likely])
    return found


@lru_cache(maxsize=512)
def _log_factorials(size: int) -> Values:
    """Return the logarithms of 0!, 1!, .."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size)))])


def likely_columns(shares: Values, most: float = 1.0) -> Values:
    """Return the columns up to the last that makes a difference, times `most`."""
    last = np.flatnonzero(most * shares.max(axis=0, initial=0.0) > RARE)
    return shares[:, : int(last[-1]) + 1 if len(last) else 0]


def binomial(trials: int, share: float) -> Values:
    """Return the distribution of successes among `trials`, each with the probability `share`."""
    return np.array(
        [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
    )


def stationary(moves: Values, near: Values | None = None) -> Values:
    """Return the stationary distribution; transitions out of the states stay in the last one.

    Args:
        moves: Transition probabilities, from state by row to state by column.
        near: A distribution to start the iteration from; None: any.
    """
    moves[:, -1] += np.maximum(0.0, 1.0 - moves.sum(axis=1))
    found: Values = np.full(len(moves), 1.0 / len(moves)) if near is None else near
    for _ in range(MOST_ITERATIONS):
        before, found = found, found @ moves
        if np.abs(found - before).sum() < RARE:
            break
    return found / float(found.sum())
