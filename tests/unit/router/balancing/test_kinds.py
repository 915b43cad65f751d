"""Turns of kinds of instances by the plan's shares."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.router.core.balancing.kinds import Kinds
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance, Request
from services.router.core.pending_request import PendingRequest
from tests.support.examples import examples


def state(name: str, variant: str, share: float, *, credits_: int = 4) -> InstanceState:
    made = InstanceState(Instance(f"{name}:1", name, "m", variant, 0.9, share, credits_))
    made.credits, made.up, made.in_batches = credits_, True, credits_ > 1
    return made


def fill(made: InstanceState, held: int) -> None:
    made.in_flight = {n: PendingRequest(Request(n, "m", b"", 0.0, 1.0)) for n in range(held)}


@examples(0.25)
@given(st.integers(1, 9), st.integers(0, 3), st.lists(st.booleans(), min_size=50, max_size=200))
def test_a_busy_kind_keeps_its_share(tenths: int, held: int, busy: list[bool]) -> None:
    """A kind whose credits are used up gets the next requests for its next batch, not another."""
    fast = state("fast", "small", tenths / 10)
    slow = state("slow", "large", 1 - tenths / 10)
    kinds = Kinds()
    kinds.arrange([fast, slow])
    chosen: Counter[str] = Counter()
    for full in busy:
        fill(fast, 4 + held if full else 0)
        chosen[kinds.next()[0].instance.variant] += 1

    assert abs(chosen["small"] - len(busy) * tenths / 10) <= 1


def test_a_kind_without_room_is_passed_over_and_repaid() -> None:
    """Requests do not wait for it, and it makes up for the turns that it missed."""
    fast, slow = state("fast", "small", 0.75), state("slow", "large", 0.25)
    kinds = Kinds()
    kinds.arrange([fast, slow])
    fill(fast, 8)
    missed = [kinds.next() for _ in range(4)]
    fill(fast, 0)
    later = [kinds.next()[0].instance.variant for _ in range(12)]

    assert missed == [(slow,)] * 4
    assert later.count("small") == 12
    fill(fast, 8)
    fill(slow, 8)
    assert kinds.next() == ()


def test_one_kind_takes_no_turns() -> None:
    kinds = Kinds()
    kinds.arrange([state("a", "small", 0.5), state("b", "small", 0.5)])
    assert not kinds.kinds


def test_a_slow_kind_without_batches_repays_what_it_took_while_the_fast_one_was_busy() -> None:
    """Of 400 requests it gets its 3 %, although the fast kind is busy for one in forty."""
    fast, slow = state("a", "small", 0.97, credits_=1), state("b", "large", 0.03, credits_=1)
    kinds = Kinds()
    kinds.arrange([fast, slow])
    chosen = Counter[str]()
    for number in range(400):
        fill(fast, int(number % 40 == 0))
        chosen[kinds.next()[0].instance.variant] += 1

    assert abs(chosen["large"] - 12) <= 1
