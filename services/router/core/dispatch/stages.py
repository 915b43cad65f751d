"""The stages of one model's pipelines after the first: a queue and instances of its own for each.

A request that was begun is never refused for lack of room. Instead no request is begun that could
not go on: a stage whose next stage has no instance that takes requests, or has a long queue, is
closed until it has. Requests that wait at a stage without instances start again on another variant.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from services.router.core.balancing.instance_choice import CHOICES
from services.router.core.dispatch.decisions import Decision, Restart
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, ModelRoutes
from services.router.core.pending_request import PendingRequest

_LONG, _SHORT = 2, 1
"""A queue is long from so many requests per credit on, until there are no more than so many."""

StageKey = tuple[str, int]
"""A variant and a stage of it, > 0."""


def first_only(routes: ModelRoutes) -> ModelRoutes:
    """Return routes of the first stages alone, which take clients' requests."""
    if all(not each.stage for each in routes.instances):
        return routes
    return replace(routes, instances=tuple(i for i in routes.instances if not i.stage))


class Stages:
    """The later stages of one model.

    Args:
        first: The dispatcher of the model, whose instances run first stages, and variants that are
            no pipelines.
        make: Makes the dispatcher of a stage.
    """

    def __init__(self, first: Dispatcher, make: Callable[[ModelRoutes], Dispatcher]) -> None:
        self.first = first
        self._make = make
        self._later: dict[StageKey, Dispatcher] = {}
        self._depths: dict[str, int] = {}  # stages, by variant
        self._full: set[StageKey] = set()  # their queues are long

    def __iter__(self) -> Iterator[Dispatcher]:
        return iter(self._later.values())

    @property
    def idle(self) -> bool:
        """True if there are no stages, and no requests left from former ones."""
        return not self._depths and not self._later

    def of(self, instance: Instance) -> Dispatcher:
        """Return the dispatcher that an instance works for."""
        return self._later[_key(instance)] if instance.stage else self.first

    def after(self, instance: Instance) -> Dispatcher | None:
        """Return the dispatcher of the stage after an instance's; None: it is gone."""
        return self._later.get((instance.variant, instance.stage + 1))

    def holding(self, pending: PendingRequest) -> Dispatcher:
        """Return the dispatcher that has a request."""
        at = pending.pipeline
        found = self._later.get((at.variant, at.stage)) if at else None
        return found or self.first

    def swap(self, routes: ModelRoutes, now_s: float) -> list[Decision]:
        """Take over a new routing table's entry for the model; before its first stage does."""
        wanted: dict[StageKey, list[Instance]] = {}
        for instance in routes.instances:
            if instance.stage:
                wanted.setdefault(_key(instance), []).append(instance)
        self._depths = {each.variant: each.stages for each in routes.instances if each.stages > 1}
        decisions: list[Decision] = []
        for key in dict.fromkeys((*self._later, *wanted)):
            own = replace(
                routes,
                instances=tuple(wanted.get(key, ())),
                # A request that was begun does not wait for a better time or place.
                instance_choice=routes.instance_choice
                if routes.instance_choice in CHOICES
                else "least_expected_completion",
            )
            if key not in self._later:
                self._later[key] = self._make(replace(own, instances=()))
            decisions += self._later[key].swap(own, now_s)
        return decisions

    def retire(self) -> list[Decision]:
        """Remove the model: waiting requests fail, and those that could not go on."""
        self._depths = {}
        return [decision for each in self._later.values() for decision in each.retire()]

    def settle(self, now_s: float) -> list[Decision]:
        """Open and close stages after an event; restart requests whose stage has no instance."""
        decisions: list[Decision] = list(self._stranded())
        self._full = {
            key
            for key, each in self._later.items()
            if each.queue_depth > (_SHORT if key in self._full else _LONG) * each.slots
        }
        for (variant, stage), dispatcher in self._later.items():
            if stage + 1 < self._depths.get(variant, 0):
                decisions += dispatcher.close(*self._closed([(variant, stage + 1)]), now_s)
        firsts = self._closed((variant, 1) for variant in self._depths)
        decisions += self.first.close(*firsts, now_s)
        self._later = {
            key: each for key, each in self._later.items() if each.routes.instances or each.occupied
        }
        return decisions

    # ---- inside --------------------------------------------------------------------------------

    def _closed(self, nexts: Iterable[StageKey]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the variants whose next stage cannot be reached, and those where it is full."""
        nexts = tuple(nexts)
        broken = {key[0] for key in nexts if key not in self._later or not self._later[key].ready}
        return frozenset(broken), frozenset(key[0] for key in nexts if key in self._full)

    def _stranded(self) -> Iterator[Restart]:
        if self.first.routes.instances:
            for each in self._later.values():
                if not each.routes.instances:
                    yield from map(Restart, each.give_up())


def _key(instance: Instance) -> StageKey:
    return instance.variant, instance.stage
