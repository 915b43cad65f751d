"""Reads the console's data, with the readers of `cinquefoil status`, `plan` and `carbon`."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, cast

from cinquefoil.batch.v1 import batch_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.router.v1.router_pb2 import WatchReceiptsRequest
from services.cli.account import GROUPINGS, by_hour, elsewhere, rows
from services.cli.client import Clients, first
from services.cli.console.output import document
from services.cli.history.document import document as history
from services.cli.history.fetch import fetch as fetch_history
from services.cli.infer.receipts import received
from services.cli.plan.show import SOLVE_S, with_measures
from services.cli.status.show import fetch
from services.cli.web_console.cached import Cached
from services.cli.web_console.last_known import LastKnown
from services.console.documents import Document
from services.console.palette import lines, palette
from services.kit.config import Deployment
from services.kit.errors import InvalidArgument, ServiceError

_WINDOW: Final = timedelta(hours=24)
"""Of the account."""

_WEIGHTS: Final = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Of a sweep: closer where plans differ most."""
_HISTORY_S: Final = 5.0
"""Pages that are open at the same time share a reading of the history."""
_MOST_WINDOWS: Final = 8
_MOST_BATCHES: Final = 50
_KEEP_S: Final = 15.0
"""The account changes by the hour."""


class ServiceReaders:
    """Reads a deployment's services."""

    def __init__(
        self, clients: Clients, deployment: Deployment, clock: Callable[[], float]
    ) -> None:
        """Wrap the clients of a deployment.

        Args:
            clients: Its services.
            deployment: The deployment file; may be replaced when that changes.
            clock: Monotonic time, s.
        """
        self._clients = clients
        self.deployment = deployment
        self._account = Cached(self._read_account, _KEEP_S, clock)
        self._last_account: Document = {"models": [], "days": {}}
        self._histories = OrderedDict[tuple[int, int], Cached[Document]]()
        self._clock = clock
        self._last_known = LastKnown(clock)

    async def now(self) -> Document:
        """Return the status, the account of the last day by model, and of today and yesterday.

        A service that does not answer is shown as it was last known, `stale` seconds ago;
        `status.problems` has its error. `palette` has the colours of models and variants.
        """
        status = await fetch(self._clients, self.deployment)
        account = self._last_account = await _or(self._account.get(), self._last_account)
        return {
            "status": status,
            "stale": self._last_known.fill(status),
            "palette": palette(self.deployment.models),
            "account": account["models"],
            "days": account["days"],
        }

    async def changes(self) -> AsyncGenerator[int, None]:
        """Yield the newest plan's version whenever that or the plan's state has changed."""
        known: tuple[int, int] | None = None
        watching = self._clients.planner.Watch(planner_pb2.WatchRequest(), timeout=None)
        async with aclosing(
            cast(AsyncGenerator[planner_pb2.WatchResponse, None], watching)
        ) as responses:
            async for response in responses:
                plan = response.plan
                if known is not None and (plan.version, plan.state) != known:
                    yield plan.version
                known = plan.version, plan.state

    async def plans(self) -> Document:
        """Return the newest plans."""
        answer = await self._clients.planner.ListPlans(planner_pb2.ListPlansRequest())
        return {"plans": [with_measures(plan, answer) for plan in answer.plans]}

    async def history(self, hours: int, step_s: int) -> Document:
        """Return the curves and plans of the last hours; `services.cli.history.document`.

        Args:
            hours: How many.
            step_s: Wanted length of a point, s; 0: the shortest possible.
        """
        window = hours, step_s
        if window not in self._histories:
            read = partial(self._read_history, hours, step_s)
            self._histories[window] = Cached(read, _HISTORY_S, self._clock)
        self._histories.move_to_end(window)
        while len(self._histories) > _MOST_WINDOWS:
            self._histories.popitem(last=False)
        return await self._histories[window].get()

    async def batches(self) -> Document:
        """Return the newest batches, and when the waiting requests of each model run."""
        stub = self._clients.batch
        if stub is None:
            return {"batches": [], "releases": [], "served": False}
        found = await stub.List(batch_pb2.ListRequest(all_owners=True, limit=_MOST_BATCHES))
        plan = await stub.GetReleases(batch_pb2.GetReleasesRequest())
        return {
            "batches": [document(each) for each in found.batches],
            "releases": [document(each) for each in plan.releases],
            "served": True,
        }

    async def plan(self, version: int) -> Document:
        """Return one plan, 0: the newest; and its expected beside its observed figures."""
        request = planner_pb2.GetPlanRequest(version=version)
        plan = (await self._clients.planner.GetPlan(request)).plan
        return with_measures(plan)

    async def explanation(self, version: int) -> Document:
        """Return a plan's explanation; recomputed, which takes seconds on large fleets."""
        request = planner_pb2.ExplainRequest(version=version)
        answer = await self._clients.planner.Explain(request, timeout=SOLVE_S)
        return document(answer.explanation)

    async def difference(self, from_version: int, to_version: int) -> Document:
        """Return the differences between two plans."""
        request = planner_pb2.DiffRequest(from_version=from_version, to_version=to_version)
        return document((await self._clients.planner.Diff(request)).diff)

    async def models(self) -> Document:
        """Return each model's objective and policy, and its variants with their accuracies."""
        found = await first(self._clients.planner.Watch(planner_pb2.WatchRequest()))
        routes = {each.model: each for each in found.routing.models} if found else {}
        return {
            "models": [
                {
                    "model": name,
                    "slo_latency_s": model.slo.latency_s,
                    "slo_percentile": model.slo.percentile,
                    "accuracy_unit": model.accuracy_unit,
                    "demand_rps": model.demand_rps,
                    **_policy(routes.get(name)),
                    "variants": [
                        {"variant": each, "accuracy": variant.accuracy}
                        for each, variant in model.variants.items()
                    ],
                }
                for name, model in self.deployment.models.items()
            ]
        }

    async def account(self, by: str, hours: int) -> Document:
        """Return the account of the last hours, by model, node, zone or region, and hour by hour.

        `began` is when the first meter did, "": not known: the first hour may have begun before.
        """
        known = [each for each in GROUPINGS if each != "all"]
        if by not in known:
            raise InvalidArgument(f"by: must be one of {', '.join(known)}, got {by[:80]!r}")
        entries = await self._entries(GROUPINGS[by], timedelta(hours=hours))
        fleet = await self._clients.planner.GetFleet(planner_pb2.GetFleetRequest())
        began = [
            each.since for node in fleet.nodes for each in node.energy if each.HasField("since")
        ]
        return {
            "rows": rows(entries, by),
            "hours": by_hour(entries, by),
            "elsewhere": elsewhere(entries),
            "began": min(each.ToDatetime(UTC) for each in began).isoformat() if began else "",
            "until": datetime.now(UTC).isoformat(timespec="seconds"),
            "colours": lines(self.deployment.models) if by == "model" else {},
        }

    async def what_if(self, given: Mapping[str, Any]) -> Document:
        """Return the plan for some circumstances; nothing changes.

        Args:
            given: `demand` and `intensity`: factors of the present ones; `carbon_weight`,
                `accuracy_mean` and `accuracy_floor`, 0..1; `strategy`; `without`: UUIDs of GPUs
                that are out; `why`: have the answer say what else there was, which takes longer.
                What is absent is as at present.
        """
        what_if = await self._what_if(given)
        request = planner_pb2.DryRunRequest(what_if=what_if, brief="why" not in given)
        return document(await self._clients.planner.DryRun(request, timeout=SOLVE_S))

    async def sweep(self, given: Mapping[str, Any]) -> AsyncGenerator[Document, None]:
        """Yield `carbon_weight` and `outlook` of the plan by weight; `given` as `what_if`'s."""
        request = planner_pb2.SweepRequest(
            what_if=await self._what_if(given), carbon_weights=_WEIGHTS
        )
        async for response in self._clients.planner.Sweep(request, timeout=SOLVE_S):
            yield document(response)

    async def receipts(self, given: Mapping[str, Any]) -> AsyncGenerator[Document, None]:
        """Yield receipts of answers, those of all router processes together, oldest first.

        Args:
            given: `sample`: share of the answers, > 0, <= 1; `model` and `variant`: only theirs.
                What is absent: all.
        """
        request = WatchReceiptsRequest(**given)
        async with aclosing(received(self.deployment, request)) as found:
            async for responses in found:
                receipts = [each for response in responses for each in response.receipts]
                receipts.sort(key=lambda each: each.answered_at.ToNanoseconds())
                yield {
                    "routers": len(responses),
                    "processes": self.deployment.router.processes,
                    "receipts": [document(each) for each in receipts],
                    "left_out": sum(each.left_out for each in responses),
                }

    async def _what_if(self, given: Mapping[str, Any]) -> planner_pb2.WhatIf:
        """Return circumstances; factors are of the newest plan's demand, intensities and prices.

        That of carbon budgets is of all of them.
        """
        inputs = planner_pb2.GetPlanRequest()
        present = (await self._clients.planner.GetPlan(inputs)).plan.inputs
        found = planner_pb2.WhatIf(
            strategy=given.get("strategy", ""), without_gpus=given.get("without", ())
        )
        for name in ("carbon_weight", "accuracy_mean", "accuracy_floor"):
            if name in given:
                setattr(found, name, given[name])
        factors = {
            "demand": (present.demand_rps, found.demand_rps),
            "intensity": (present.intensity_gco2e_per_kwh, found.intensity_gco2e_per_kwh),
            "price": (present.energy_price_eur_per_kwh, found.energy_price_eur_per_kwh),
        }
        for name, (now, assumed) in factors.items():
            if given.get(name, 1.0) != 1.0:
                for key, value in now.items():
                    assumed[key] = value * given[name]
        if (factor := given.get("carbon_budget", 1.0)) != 1.0:
            fleet = await self._clients.planner.GetFleet(planner_pb2.GetFleetRequest())
            for each in fleet.carbon_budgets:
                each.kg *= factor
                found.carbon_budgets.append(each)
        return found

    async def _read_account(self) -> Document:
        """Return the account of the last day by model, and the totals of `today`, `yesterday`."""
        now = datetime.now(UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        entries = await self._entries(planner_pb2.ACCOUNT_GROUPING_MODEL, 2 * _WINDOW)

        def between(since: datetime, until: datetime) -> list[Any]:
            found = (each for each in entries if since <= each.hour.ToDatetime(UTC) < until)
            return rows(found, "model")

        return {
            "models": between(now - _WINDOW, now),
            "days": {
                "today": between(midnight, now)[-1],
                "yesterday": between(midnight - _WINDOW, midnight)[-1],
            },
        }

    async def _entries(
        self, by: planner_pb2.AccountGrouping.ValueType, window: timedelta
    ) -> list[planner_pb2.AccountEntry]:
        request = planner_pb2.ReadAccountRequest(by=by)
        request.since.FromDatetime(datetime.now(UTC) - window)
        responses = self._clients.planner.ReadAccount(request)
        return [entry async for response in responses for entry in response.entries]

    async def _read_history(self, hours: int, step_s: int) -> Document:
        return history(await fetch_history(self._clients, hours, step_s), self.deployment)


def _policy(routes: plan_pb2.ModelRoutes | None) -> Document:
    if routes is None:
        return {"discipline": None, "instance_choice": None}
    return {"discipline": routes.discipline, "instance_choice": routes.instance_choice}


async def _or(reading: Awaitable[Any], otherwise: Any) -> Any:
    """Return a reading; `otherwise` if its service does not answer, which `status` shows."""
    try:
        return await reading
    except ServiceError:
        return otherwise
