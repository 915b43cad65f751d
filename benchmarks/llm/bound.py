"""A bound on the energy of any schedule that keeps the objective: a relaxed program.

Time is cut into intervals of 10 s. For each interval and each kind of step (a clock, `n` answers
decoded with `k` tokens of context in all, `p` tokens of prompts taken in) a variable says how long
all GPUs together run such steps. The linear program

    minimises   active energy of the steps + idle power of all GPUs until the last arrival
    such that   prompts and answers are computed after they arrived, and in the end all are;
                by the end of each interval those are computed whose objective has run out;
                the context that answers read is that of the trace;
                the GPUs run no longer than the interval lasts

It knows the future, moves work between GPUs and between steps for nothing, and computes each block
of a prefix once. One request in a hundred, those with most tokens, may take any time. Corners
suffice: by the profile a step's time is linear in `n`, `k` and `p`, and its energy at the highest
clock concave, so steps between the corners take as long as mixtures of them, and no less energy. At
lower clocks, where the two phases stretch differently, that held for 60 random steps each.
"""

from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from benchmarks.llm.engine import (
    CLOCKS,
    KV_TOKENS,
    SLOTS,
    Engine,
    Limits,
    Request,
)
from services.simulator.continuous_batching import BLOCK_TOKENS

INTERVAL_S: Final = 10.0
ANSWERS: Final = (0, 1, 32, SLOTS)
PROMPTS: Final = (0, 512, 2048)
EXEMPT: Final = 0.01


def bound_j_per_token(trace: Sequence[Request], limits: Limits, gpus: int) -> float:
    """Return the least energy per token generated that the program of this module finds, J."""
    engine = Engine()
    kinds = [
        (clock, n, k, p)
        for clock, n, k, p in product(CLOCKS, ANSWERS, (0, KV_TOKENS), PROMPTS)
        if (n or p) and (n or not k)
    ]
    costs = [engine.step(clock, n, k / max(n, 1), p) for clock, n, k, p in kinds]
    time_s, energy_j = (np.array(each) for each in zip(*costs, strict=True))
    answers, contexts, prompts = (
        np.array([kind[index] for kind in kinds]) / time_s for index in (1, 2, 3)
    )
    work = _Work(trace, limits)
    count, width = len(work.arrived), len(kinds)
    # columns: seconds of each kind of step in each interval; then prompts and answers not yet done
    columns = count * (width + 2)
    cost = np.zeros(columns)
    cost[: count * width] = np.tile(energy_j / time_s, count)
    equal, right = lil_matrix((2 * count + 1, columns)), np.zeros(2 * count + 1)
    below, most = lil_matrix((count, columns)), np.full(count, gpus * INTERVAL_S)
    upper = np.full(columns, np.inf)
    for at in range(count):
        steps = slice(at * width, (at + 1) * width)
        for phase, rate in enumerate((prompts, answers)):
            row, backlog = 2 * at + phase, count * width + 2 * at + phase
            equal[row, steps], equal[row, backlog] = rate, 1.0
            if at:
                equal[row, backlog - 2] = -1.0
            right[row] = work.arrived[at, phase]
            upper[backlog] = work.may_wait[at, phase]
        equal[2 * count, steps] = contexts
        below[at, steps] = 1.0
    right[2 * count] = work.context
    found = linprog(
        cost, below.tocsr(), most, equal.tocsr(), right,
        bounds=np.column_stack([np.zeros(columns), upper]), method="highs",
    )  # fmt: skip
    if not found.success:
        raise ValueError(f"no schedule of {gpus} GPUs keeps the objective: {found.message}")
    idle_j = gpus * engine.shape.context_power_w * max(each.arrived_s for each in trace)
    return float(found.fun + idle_j) / sum(each.output_tokens for each in trace)


class _Work:
    """Tokens of prompts and answers by interval.

    Attributes:
        arrived: Tokens that arrive in each interval, of prompts and of answers.
        may_wait: Of those that have arrived, how many need not be computed by its end.
        context: Tokens that all answers read, one after the other.
    """

    def __init__(self, trace: Sequence[Request], limits: Limits) -> None:
        longest = max(each.output_tokens for each in trace)
        end_s = max(each.arrived_s for each in trace) + limits.ttft_s + limits.tpot_s * longest
        count = int(end_s // INTERVAL_S) + 2
        self.arrived, due = np.zeros((count, 2)), np.zeros((count, 2))
        self.context = 0.0
        by_tokens = sorted(trace, key=lambda each: each.tokens, reverse=True)
        exempt = {id(each) for each in by_tokens[: int(EXEMPT * len(trace)) + 1]}
        seen: set[int] = set()
        for each in trace:
            known = sum(block in seen for block in each.blocks)
            seen.update(each.blocks)
            work = (max(each.input_tokens - known * BLOCK_TOKENS, 1), each.output_tokens - 1)
            first_s = each.arrived_s + limits.ttft_s
            ended_s = first_s + limits.tpot_s * each.output_tokens
            self.arrived[int(each.arrived_s // INTERVAL_S)] += work
            self.context += work[1] * (each.input_tokens + each.output_tokens / 2)
            if id(each) in exempt:
                due[-1] += work
                continue
            due[int(first_s // INTERVAL_S), 0] += work[0]
            due[int(ended_s // INTERVAL_S), 1] += work[1]
        self.may_wait = np.maximum(np.cumsum(self.arrived, 0) - np.cumsum(due, 0), 0.0)
