"""All models: the dispatcher of each, and the change from one routing table to the next."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Self

from services.kit.config import Deployment, DispatchRules, RequestLimits, Section
from services.kit.errors import InvalidArgument, NotFound, ServiceError, Unavailable
from services.kit.units import BYTES_PER_MIB
from services.router.core.balancing.weigher import CarbonSignal
from services.router.core.deferrable.release import ReleasePlan
from services.router.core.dispatch.decisions import Decision, Fail, Reply, Restart, fail
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.dispatch.filler import WaitingBounds
from services.router.core.dispatch.overload import Overload
from services.router.core.dispatch.stages import Stages, first_only
from services.router.core.model import Instance, Limits, ModelRoutes, RoutingTable
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import ByteBudget
from services.router.core.readiness import Readiness
from services.router.core.worker_port import Result

VERSION = "1"
"""The only version of every model."""

_TABLE_RETRY_S = 1.0


def limits(deployment: Deployment) -> dict[str, Limits]:
    """Return the limits of every model."""
    rules = _fields(deployment.router, DispatchRules)
    return {
        name: Limits(**rules, **_fields(model, RequestLimits), survives=model.survive > 0)
        for name, model in deployment.models.items()
    }


def _fields(section: Section, base: type[Section]) -> dict[str, Any]:
    """Return those settings of a section that a base of its type has."""
    return {name: getattr(section, name) for name in base.model_fields}


class ModelRegistry:
    """Dispatchers by model.

    Attributes:
        table: The routing table in use; revision 0 before the planner's first.
        readiness: Why models may have no instance, by the planner.
        limits: Of models, for those that a later table brings.
    """

    def __init__(
        self,
        table: RoutingTable,
        limits: Mapping[str, Limits],
        byte_budget: ByteBudget | None = None,
        carbon: CarbonSignal | None = None,
        bounds: WaitingBounds | None = None,
    ) -> None:
        self.table = table
        self.readiness = Readiness()
        self.limits = dict(limits)
        self._releases: Mapping[str, ReleasePlan] = {}
        self._byte_budget = byte_budget or ByteBudget()
        self._carbon = carbon
        self._bounds = bounds or WaitingBounds()
        self._dispatchers = {routes.model: self._dispatcher(routes) for routes in table.models}
        self._retired: dict[str, Dispatcher] = {}  # their workers still compute
        self._stages: dict[str, Stages] = {}  # of models that have, or had, pipelines

    @classmethod
    def at_start(cls, deployment: Deployment, carbon: CarbonSignal | None = None) -> Self:
        """Return a deployment's models before the planner's first table: they have no instances."""
        models = tuple(
            ModelRoutes(
                name,
                model.slo.latency_s,
                model.slo.percentile,
                model.instance_choice,
                discipline=model.discipline,
                intensity_threshold=model.intensity_threshold,
            )
            for name, model in deployment.models.items()
        )
        byte_budget = ByteBudget(int(deployment.router.max_queue_mib * BYTES_PER_MIB))
        bounds = WaitingBounds.of(deployment.router.waiting)
        return cls(RoutingTable(0, 0, models), limits(deployment), byte_budget, carbon, bounds)

    def __iter__(self) -> Iterator[Dispatcher]:
        return iter(self._dispatchers.values())

    def overloads(self) -> dict[str, Overload]:
        """Return the overload of each model; any thread may call this."""
        return {name: found.overload for name, found in list(self._dispatchers.items())}

    @property
    def ready(self) -> bool:
        """True if a table has arrived and every model may have requests."""
        return self.table.revision > 0 and all(map(self.accepts, self))

    def accepts(self, dispatcher: Dispatcher) -> bool:
        """Return whether a model may have requests: an instance takes them, or it is parked."""
        return dispatcher.ready or self.readiness.parked(dispatcher.routes.model)

    def find(self, name: str) -> Dispatcher | None:
        """Return the dispatcher of a model; None: there is no such model."""
        return self._dispatchers.get(name)

    def model(self, name: str, version: str = "") -> Dispatcher:
        """Return the dispatcher of a model.

        Raises:
            InvalidArgument: The name is empty.
            NotFound: There is no such model, or not that version.
            Unavailable: No such model is known before the first routing table.
        """
        found = self._dispatchers.get(name)
        if found is None:
            raise self._unknown(name)
        if version not in ("", VERSION):
            raise NotFound(
                f"model {name!r} has no version {version!r}; its only version is {VERSION!r}",
                reason="VERSION_NOT_FOUND",
                field="model_version",
            )
        return found

    def explained(self, dispatcher: Dispatcher, error: ServiceError) -> ServiceError:
        """Return an error; a passed deadline with the reason why the model has no instance."""
        routes = dispatcher.routes
        if routes.instances or error.reason != "DEADLINE":
            return error
        return error.because(self.readiness.why(routes.model))

    def dispatchers(self, name: str) -> tuple[Dispatcher, ...]:
        """Return every dispatcher of a model: the first, and those of later stages."""
        first = self._dispatchers.get(name)
        later = self._stages.get(name, ())
        return (*((first,) if first else ()), *later)

    def of(self, instance: Instance) -> Dispatcher:
        """Return the dispatcher that an instance in the table works for."""
        stages = self._stages.get(instance.model)
        return stages.of(instance) if stages else self.model(instance.model)

    def holding(self, pending: PendingRequest) -> Dispatcher | None:
        """Return the dispatcher that has a request; None: the one that it was offered to."""
        stages = self._stages.get(pending.request.model)
        return stages.holding(pending) if stages else None

    def unreachable(self) -> set[str]:
        """Return the segments of the table of which no worker can be reached."""
        lost, others = set[str](), set[str]()
        for first in self:
            for dispatcher in self.dispatchers(first.routes.model):
                for state in dispatcher.states.values():
                    if not state.leaving:
                        (lost if state.lost else others).add(state.instance.segment_id)
        return lost - others

    def release(self, releases: Mapping[str, ReleasePlan], now_s: float) -> list[Decision]:
        """Begin deferrable requests as a new plan says; of models it does not name at once."""
        self._releases = releases
        decisions: list[Decision] = []
        for dispatcher in self:
            dispatcher.filler.release = releases.get(dispatcher.routes.model, ReleasePlan())
            decisions += dispatcher.reconsider(now_s)
        return decisions

    def end_deferrable(self, why: Callable[[], ServiceError]) -> list[Decision]:
        """End every deferrable request that no instance has: the router takes no more of them.

        Args:
            why: Makes the error of each.
        """
        dispatchers = (each for first in self for each in self.dispatchers(first.routes.model))
        return [fail(one, why()) for each in dispatchers for one in each.filler.queue.clear()]

    # ---- pipelines -----------------------------------------------------------------------------

    def settle(self, name: str, now_s: float = 0.0) -> list[Decision]:
        """Open and close the stages of a model's pipelines after an event at one of them."""
        stages = self._stages.get(name)
        return stages.settle(now_s) if stages else []

    def forward(
        self,
        reply: Reply,
        result: Result,
        *,
        number: int,
        inputs: Collection[str],
        now_s: float,
    ) -> list[Decision]:
        """Pass a request that a stage has answered to the next stage.

        Args:
            reply: The request and the instance that answered it.
            result: The answer.
            number: Number of the next stage's request.
            inputs: Names of the next stage's inputs; empty: not known.
            now_s: The time.
        """
        instance, pending = reply.instance, reply.pending
        pipeline = pending.start_pipeline()
        pipeline.leave_stage(instance, result.cost, pending.assigned_s)
        try:
            request = pipeline.next_request(instance, result.response, number, inputs, now_s)
        except ServiceError as error:
            return [Fail(pending, error)]
        stand_in = pending.enter_stage(request)
        stages = self._stages.get(instance.model)
        following = stages.after(instance) if stages else None
        return [Restart(stand_in)] if following is None else following.resume(stand_in, now_s)

    def restart(self, pending: PendingRequest, number: int, now_s: float) -> list[Decision]:
        """Start a request again at the first stage: the pipeline it waits in is gone."""
        if pending.pipeline is None:
            return []
        try:
            first = self.model(pending.request.model)
        except ServiceError as error:
            return [Fail(pending, error)]
        request = pending.pipeline.restart(number, now_s)
        return first.resume(pending.enter_stage(request), now_s)

    def _unknown(self, name: str) -> ServiceError:
        models = ", ".join(sorted(self._dispatchers))
        if not name:
            return InvalidArgument(
                f"model_name is required; models are {models}", field="model_name"
            )
        if self.table.revision == 0:
            return Unavailable(
                f"no model {name!r} is known yet: the planner has not sent a routing table",
                reason="NO_ROUTING_TABLE",
                retry_after_s=_TABLE_RETRY_S,
            )
        return NotFound(
            f"no model {name!r}; models are {models}",
            reason="MODEL_NOT_FOUND",
            field="model_name",
        )

    def _dispatcher(self, routes: ModelRoutes) -> Dispatcher:
        limits = self.limits.get(routes.model, Limits())
        made = Dispatcher(routes, limits, self._byte_budget, self._carbon, self._bounds)
        made.filler.release = self._releases.get(routes.model, made.filler.release)
        return made

    def swap(self, table: RoutingTable, now_s: float = 0.0) -> list[Decision]:
        """Replace the routing table as a whole."""
        decisions: list[Decision] = []
        self.table = table
        wanted = {routes.model: routes for routes in table.models}
        for name in self._dispatchers.keys() - wanted.keys():
            gone = self._dispatchers.pop(name)
            decisions += gone.retire()
            self._retired[name] = gone
            if name in self._stages:
                decisions += self._stages[name].retire()
        for name, routes in wanted.items():
            dispatcher = self._dispatchers.get(name)
            if dispatcher is None:
                # One that returns in time takes its workers back: no other may dial them meanwhile.
                dispatcher = self._retired.pop(name, None) or self._dispatcher(routes)
                self._dispatchers[name] = dispatcher
            decisions += self._swap_stages(dispatcher, routes, now_s)
            decisions += dispatcher.swap(first_only(routes), now_s)
            decisions += self.settle(name, now_s)
        self._retired = {name: each for name, each in self._retired.items() if each.states}
        self._stages = {name: each for name, each in self._stages.items() if not each.idle}
        return decisions

    def _swap_stages(self, first: Dispatcher, routes: ModelRoutes, now_s: float) -> list[Decision]:
        stages = self._stages.get(routes.model)
        if stages is None:
            if all(instance.stages == 1 for instance in routes.instances):
                return []
            stages = self._stages[routes.model] = Stages(first, self._dispatcher)
        stages.first = first
        return stages.swap(routes, now_s)
