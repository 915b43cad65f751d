"""Carbon of one more answer, and the order in which instances are filled by it."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.request_cost import Cost, Usage
from services.router.core.balancing.answer_carbon import AnswerCarbon
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.token_times import Held, TokenObjective

OBJECTIVE = TokenObjective(1.0, 0.0195)
ROOM = 6  # answers at a time that keep it, below


class Grid:
    """Intensities of zones that a test sets; a zone without one is not known."""

    def __init__(self, **zones: float) -> None:
        self.zones = zones

    def intensity(self, zone: str) -> float | None:
        return self.zones.get(zone)

    def ratio(self, zone: str) -> float | None:
        return None if zone not in self.zones else 1.0


def on(name: str, zone: str = "a", *, pue: float = 1.0, idle_w: float = 70.0) -> Instance:
    return Instance(f"{name}:1", name, "m", "v", 0.9, 1.0, 16, zone, pue, idle_w)


def answered(answers: float, *, fixed_j: float = 3.0, token_j: float = 0.05) -> Cost:
    """Return the cost of an answer of 100 tokens in steps of such energy."""
    energy_j = 100 * (fixed_j / answers + token_j)
    return Cost(energy_j, 0.0, "counter", 0.0, 1.0, 1, usage=Usage(50, 50, 0.1, 0.01))


def pool(grid: Grid, *instances: Instance) -> InstancePool:
    """Return instances whose answers take 10 ms and 1 ms for each other one."""
    made = InstancePool("consolidated", grid)
    made.add(instances)
    for state in made.states.values():
        state.credits, state.up = 16, True
        for answers in (1, 2, 3, 4):
            state.token_times.add(Held(answers, 0), 0.0, 0.01 + 1e-3 * answers)
    made.refresh("consolidated", overloaded=False, tokens=OBJECTIVE)
    return made


def give(made: InstancePool, count: int, first: int = 0) -> Counter[str]:
    """Give requests to instances one after another, and return how many each took."""
    taken = Counter[str]()
    for number in range(first, first + count):
        pending = PendingRequest(Request(number, "m", b"", 0.0, 60.0))
        chosen = made.free(pending, 0.0)
        assert chosen is not None
        made.hold(chosen, pending, 0.0)
        taken[chosen.instance.segment_id] += 1
    return taken


def test_a_zone_of_600_g_beside_one_of_50_is_filled_last() -> None:
    """By name the dirty zone's come first; it begins once the clean ones keep no more in time."""
    instances = (on("a", "dirty"), on("b", "clean"), on("c", "dirty"), on("d", "clean"))
    made = pool(Grid(dirty=600.0, clean=50.0), *instances)

    assert give(made, ROOM) == {"b": ROOM}
    assert give(made, ROOM, ROOM) == {"d": ROOM}
    assert give(made, ROOM + 1, 2 * ROOM) == {"a": ROOM, "c": 1}


def test_a_zone_that_becomes_dirty_is_left_although_its_instances_run() -> None:
    """An instance that holds some would take the next cheaply; it is filled last all the same."""
    grid = Grid(first=50.0, second=300.0)
    made = pool(grid, on("a", "first"), on("b", "second"))
    for state in made.states.values():
        for answers in (1, 2, 4, 6):
            pending = PendingRequest(Request(answers, "m", b"", 0.0, 60.0))
            made.learn(state, pending, 0.0, answered(answers))
    assert give(made, 2) == {"a": 2}

    grid.zones |= {"first": 600.0}

    assert give(made, 2, 2) == {"b": 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (on("a", pue=1.6), on("b", pue=1.1)),
        (on("a", "unknown", pue=1.6), on("b", "clean", pue=1.1)),
    ],
)
def test_wall_energy_counts_and_an_unknown_zone_makes_all_alike(
    one: Instance, other: Instance
) -> None:
    assert give(pool(Grid(a=300.0, clean=5.0), one, other), 2) == {"b": 2}


def test_the_class_of_least_energy_at_a_full_batch_comes_first() -> None:
    """At one answer the small GPU takes less, at eight the large one: that is what it is for."""
    large, small = on("a", idle_w=30.0), on("b", idle_w=70.0)
    learned = AnswerCarbon()
    for answers in (1, 2, 4, 8):
        learned.learn(small, answers, answered(answers, fixed_j=2.0, token_j=0.3))
        learned.learn(large, answers, answered(answers, fixed_j=3.0, token_j=0.05))

    price = learned.price([InstanceState(large), InstanceState(small)], Grid(a=300.0))

    assert price(InstanceState(large)) < price(InstanceState(small))


def test_a_class_without_answers_counts_as_the_usual() -> None:
    """It is neither tried before a known one for nothing, nor avoided for ever."""
    known, new = InstanceState(on("a")), InstanceState(on("b", idle_w=30.0))
    learned = AnswerCarbon()
    learned.learn(known.instance, 2.0, answered(2.0))

    price = learned.price([known, new], Grid(a=300.0))

    assert price(known) == pytest.approx(price(new))


@given(
    st.lists(st.sampled_from(["x", "y", "z"]), min_size=2, max_size=6),
    st.fixed_dictionaries({zone: st.floats(0.0, 900.0) for zone in "xyz"}),
    st.integers(1, 40),
)
def test_while_any_instance_has_room_the_objective_is_kept_in_the_cleanest_zone_that_has(
    zones: list[str], intensities: dict[str, float], count: int
) -> None:
    """Whatever the grid says, no instance is given more than it keeps in time before all are."""
    instances = [on(f"{number:02}", zone) for number, zone in enumerate(zones)]
    taken = give(pool(Grid(**intensities), *instances), min(count, ROOM * len(zones)))

    by_price = sorted(instances, key=lambda each: (intensities[each.zone], each.id))
    left = min(count, ROOM * len(zones))
    for each in by_price:
        assert taken[each.segment_id] == min(left, ROOM)
        left -= taken[each.segment_id]


@pytest.mark.parametrize(
    "cost",
    [
        replace(answered(2.0), usage=None),
        replace(answered(2.0), energy_j=float("nan")),
        replace(answered(2.0), energy_j=0.0),
        replace(answered(2.0), usage=Usage(0, 0, 0.0, 0.0)),
    ],
)
def test_answers_that_state_no_energy_of_tokens_change_nothing(cost: Cost) -> None:
    learned = AnswerCarbon()
    learned.learn(on("a"), 2.0, cost)
    state = InstanceState(on("a", pue=2.0))
    assert learned.price([state], Grid(a=3.0))(state) == pytest.approx(6.0)
