"""Choice of the instance for the next request."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from services.kit.config import InstanceChoice
from services.router.core.balancing.answer_carbon import Price
from services.router.core.instance_state import InstanceState
from services.router.core.pending_request import PendingRequest
from services.router.core.prefix_cache import length_of
from services.router.core.token_times import TokenObjective

Choose = Callable[[Sequence[InstanceState]], InstanceState]
"""Returns, of instances with a free credit (at least one), the one that takes the next request."""

HELD_WEIGHT: Final = 0.1
"""Weight of a byte that an instance holds, over one of the prompt that it has to read: of 1, 0.5,
0.25, 0.1 and 0.03 the one of least energy on a window (docs/measurements/language-models.md).
"""


def idle_longest(states: Sequence[InstanceState]) -> InstanceState:
    """Return the instance that has been idle longest; where none is idle, the least loaded.

    Source: CLOVER, section 4 ("a FIFO queue whose head goes to the instance idle longest"),
    extended to instances that hold more than one request: load is in flight over credits, with
    what others have at its server.
    """
    return min(states, key=lambda state: (state.interactive_load / state.credits, state.used_at))


def by_shares(states: Sequence[InstanceState]) -> InstanceState:
    """Return the next instance of smooth weighted round robin; the weights advance.

    With the same instances free each time, n choices give each n x share to within one, evenly
    spread. Ties go to the first. Instances without any share take turns.

    Source: nginx, ngx_http_upstream_round_robin.c (commit 52327e0, "smooth weighted round-robin").
    """
    if len(states) == 1:
        return states[0]
    total = 0.0
    best = states[0]
    for state in states:
        state.weight += state.share
        total += state.share
        if state.weight > best.weight:
            best = state
    best.weight -= total
    return best


def least_expected_completion(states: Sequence[InstanceState]) -> InstanceState:
    """Return the instance with the least expected completion time of the next request.

    Expected completion: (in flight + 1) x service time / parallelism, whose quotient is estimated
    from answers. An idle instance without an estimate comes first, a busy one is taken to be as
    slow as the slowest; each time an idle instance is passed over, its estimate falls a little, so
    that an instance once slow is tried again.
    """
    unknown_s = max(state.latency.unit_s for state in states) or 1.0

    def expected_s(state: InstanceState) -> tuple[float, int]:
        held = state.interactive_load
        if not state.latency.unit_s:
            return (held and (held + 1) * unknown_s, state.used_at)
        return ((held + 1) * state.latency.unit_s, state.used_at)

    best = min(states, key=expected_s)
    for state in states:
        if state is not best and not state.in_flight:
            state.latency.pass_over()
    return best


def by_prefix(
    states: Sequence[InstanceState], pending: PendingRequest, held_weight: float = HELD_WEIGHT
) -> InstanceState:
    """Return the instance with the least work: uncached bytes of the prompt, and bytes it holds.

    What an instance holds are the bodies of its requests in flight, for a prompt's KV cache is read
    at each step of its answer; that costs less than computing a prompt (`HELD_WEIGHT`).

    Source: NVIDIA Dynamo, "KV cache routing" (cost: overlap weight x blocks to prefill + blocks
    that decode), without its random choice among similar costs.
    """
    blocks = pending.prefix()

    def cost(state: InstanceState) -> tuple[float, int]:
        known_bytes = length_of(state.prefixes.matched(blocks))
        return held_weight * state.work.body_bytes - known_bytes, state.used_at

    return min(states, key=cost)


def fewest_tokens_left(states: Sequence[InstanceState]) -> InstanceState:
    """Return the instance with the fewest tokens of answers left to generate, over its share.

    The lengths of answers are those predicted, `max_tokens` at most, and otherwise the mean of the
    answers before. The tokens left are summed at each choice, over the requests that an instance
    holds: none is counted that has ended or is elsewhere.

    Source: Qiu et al., "Efficient Interactive LLM Serving with Proxy Model-based Sequence Length
    Prediction" (2024), whose predictions order requests; here they balance instances.
    """
    usual_tokens = max(state.usual_tokens for state in states) or 1.0

    def left(state: InstanceState) -> tuple[float, int]:
        tokens = sum(each.tokens_left(usual_tokens) for each in state.in_flight.values())
        return tokens / state.share, state.used_at

    return min(states, key=left)


def consolidated(
    states: Sequence[InstanceState],
    pending: PendingRequest,
    objective: TokenObjective,
    price: Price,
) -> InstanceState:
    """Return, of instances that keep the objective with one answer more, the one of least carbon.

    Equal ones are filled in order of identity, so that all routers fill the same, and the others
    have nothing to do. Where none has room, the least loaded takes it.

    Args:
        states: The instances.
        pending: The request.
        objective: Objective of its tokens.
        price: Carbon of one more answer.
    """
    prompt_bytes = pending.request.prompt_bytes
    room = [
        state
        for state in states
        if state.token_times.has_room(state.with_one_more(prompt_bytes), objective)
    ]
    if not room:
        return idle_longest(states)
    return min(room, key=lambda state: (price(state), state.instance.id))


CHOICES: Mapping[InstanceChoice, Choose] = {
    "idle_longest": idle_longest,
    "shares": by_shares,
    "least_expected_completion": least_expected_completion,
    "predicted_tokens": fewest_tokens_left,
    "consolidated": idle_longest,  # without an objective, or before the request is known
    "prefix": idle_longest,  # where the request is not known yet, or has no prompt
}
