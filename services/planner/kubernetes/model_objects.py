"""Model objects of Kubernetes: their specs become the deployment's models, and get a status.

Every service reads models from its deployment file: the sections of accepted objects are written to
a ConfigMap that all of them mount (decision 54), so that the planner, too, follows its own writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic_core import to_json

from cinquefoil.planner.v1.records import PlanState
from services.kit.clock import Clock
from services.kit.conditions import concerning
from services.kit.config.loader import ConfigError, Mistake, further_models, load
from services.kit.errors import ServiceError, Unavailable
from services.kit.kubernetes import Cluster, Objects, Query, Refused, reconnector
from services.kit.telemetry import logs
from services.planner.adapters.model_loader import load_models
from services.planner.adapters.router_sessions import RouterSessions
from services.planner.adapters.store import Store
from services.planner.control.deployment_in_force import DeploymentChanges
from services.planner.control.publisher import Publisher
from services.planner.core.accounting.entries import HOUR, Figures, hour_of
from services.planner.core.model_status import MEASURED, ModelState, accepted, planned, refused

_log = logs.get("kubernetes.models")

MODELS: Final = "/apis/cinquefoil.io/v1alpha1/namespaces/{}/models"
CONFIG_MAPS: Final = "/api/v1/namespaces/{}/configmaps"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/{}/events"
KEY: Final = "models.yaml"

MOST_MODELS: Final = 500
_MOST_BYTES: Final = 900_000
"""Of a ConfigMap, which may have 1 MiB."""

_MOST_LEVELS: Final = 16
"""Of mappings and lists in one another: YAML repeats the indentation in each line."""

_METADATA: Final = ("uid", "name", "generation", "creationTimestamp")

_OF_ALL: Final = frozenset((401, 403, 429))
"""Statuses of refusals that are not about one object."""
_NOT_FOUND, _SERVER_ERROR = 404, 500

_STATUS_S: Final = 5.0
_MEASURED_S: Final = 30.0
_ACCOUNT_S: Final = 60.0
_DAY: Final = timedelta(hours=24)


class ModelObjects:
    """Follows the Model objects of the planner's namespace, and writes what becomes of them.

    Args:
        cluster: The API server.
        config_map: Name of the ConfigMap that has the accepted specs.
        changes: The deployment in force.
        publisher: What is routed and planned.
        routers: Reports of latency.
        store: The account.
        clock: Time.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator
        self,
        cluster: Cluster,
        config_map: str,
        changes: DeploymentChanges,
        publisher: Publisher,
        routers: RouterSessions,
        store: Store,
        clock: Clock,
    ) -> None:
        self._cluster, self._config_map, self._changes = cluster, config_map, changes
        self._publisher, self._routers, self._store = publisher, routers, store
        self._clock = clock
        self._objects: Objects = {}
        self._changed = asyncio.Event()
        self._refused: Mapping[str, str] = {}
        self._kept: Mapping[str, Any] | None = None
        self._account: Mapping[str, Figures] = {}
        self._account_s = -_ACCOUNT_S
        self._written_s: dict[str, float] = {}

    async def keep(self) -> None:
        """Follow the objects until cancelled: while the API server is away, nothing changes."""
        api = reconnector("models.cinquefoil.io", self._clock)

        async def session() -> None:
            namespace = await asyncio.to_thread(lambda: self._cluster.namespace)
            self._changed.clear()  # of an earlier session: specs count once all have been listed
            async with asyncio.TaskGroup() as tasks:
                watch = self._follow(namespace, api.connected)
                tasks.create_task(watch, name="planner.models.watch")
                # Not a task: a block that has ended by itself takes a task's error for a cancel.
                await self._write(namespace)

        await api.run(session)

    async def _follow(self, namespace: str, connected: Any) -> None:
        def use(found: Objects) -> None:
            self._objects = dict(found)
            self._changed.set()

        while True:
            await self._cluster.follow(
                Query(MODELS.format(namespace), keep=_needed), use, connected
            )

    async def _write(self, namespace: str) -> None:
        """Write specs at each change of them, and statuses at each change and every 5 s."""
        seen: object = None
        written: str | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STATUS_S if seen is not None else None):
                    await self._changed.wait()
            self._changed.clear()
            specs = {name: each["metadata"]["generation"] for name, each in self._named().items()}
            basis = specs, self._changes.now.file.digest
            if basis != seen:
                text = await self._accept()
                seen = basis
                if text is not None and text != written:
                    path = f"{CONFIG_MAPS.format(namespace)}/{self._config_map}"
                    await self._cluster.patch(path, {"data": {KEY: text}})
                    written = text
            await self._report(namespace)

    def _named(self) -> dict[str, Mapping[str, Any]]:
        """Return the objects by name, the oldest first: an older one is refused last."""
        order = sorted(
            self._objects.values(),
            key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]),
        )
        return {str(each["metadata"]["name"]): each for each in order}

    async def _accept(self) -> str | None:
        """Return the accepted specs as the file of models; None: the deployment file is wrong."""
        source = self._changes.now.file.source
        sections = {name: each.get("spec") or {} for name, each in self._named().items()}
        if source is None:
            return None
        try:
            found = await asyncio.to_thread(_accepted, source, sections, self._kept)
        except ConfigError as error:
            _log.error("the deployment file is wrong; Model objects wait", why=str(error))
            return None
        self._kept, self._refused = found
        for name, why in self._refused.items():
            _log.warning("a Model object is refused", model=name, why=why)
        return _text(self._kept)

    async def _report(self, namespace: str) -> None:
        """Write the statuses that differ from what the objects have, and Events of new plans."""
        await self._read_account()
        now = f"{self._clock.now():%Y-%m-%dT%H:%M:%SZ}"
        for name, each in self._named().items():
            before, generation = each.get("status") or {}, each["metadata"]["generation"]
            if name in self._refused:
                state, status = None, refused(before, generation, self._refused[name], now)
            else:
                state = self._state(name)
                status = accepted(before, generation, state, now)
            if not self._due(name, before, status):
                continue
            gone = dict.fromkeys(before.keys() - status.keys())
            path = f"{MODELS.format(namespace)}/{name}"
            try:
                await self._cluster.patch(f"{path}/status", {"status": {**gone, **status}})
                if state is not None and state.plan and state.plan != before.get("plan"):
                    await self._cluster.create(
                        EVENTS.format(namespace), self._event(each, namespace, state)
                    )
            except Refused as error:
                if error.status in _OF_ALL or error.status >= _SERVER_ERROR:
                    raise
                if error.status != _NOT_FOUND:  # else it was deleted meanwhile
                    _log.warning("a Model object takes no status", model=name, why=str(error))

    def _due(self, name: str, before: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Return whether a status is to be written: measurements alone change it every 30 s."""
        if status == before:
            return False
        now_s = self._clock.monotonic()
        only = all(
            status.get(key) == before.get(key)
            for key in before.keys() | status.keys()
            if key not in MEASURED
        )
        if only and now_s - self._written_s.get(name, -_MEASURED_S) < _MEASURED_S:
            return False
        self._written_s[name] = now_s
        return True

    def _state(self, name: str) -> ModelState | None:
        """Return what is known of a model; None: the deployment in force does not have it."""
        now, board = self._changes.now, self._publisher.board.value
        model = now.deployment.models.get(name)
        if model is None:
            return None
        plan = board.plan
        if plan is not None and not (
            plan.state is PlanState.ACTIVE and name in plan.inputs.demand_rps
        ):
            plan = None  # not yet carried out, or older than the model
        routes = next((each for each in board.routing.models if each.model == name), None)
        return ModelState(
            model.slo.latency_s,
            model.slo.percentile,
            () if routes is None else routes.instances,
            self._routers.latency_s().get(name),
            self._account.get(name),
            concerning(name, board.conditions),
            0 if plan is None else plan.version,
            "" if plan is None else plan.reason,
            bool(model.servers),
        )

    async def _read_account(self) -> None:
        now_s, now = self._clock.monotonic(), self._clock.now()
        if now_s - self._account_s < _ACCOUNT_S:
            return
        with suppress(Unavailable):
            hours = await self._store.pages.read(hour_of(now - _DAY), hour_of(now) + HOUR, "model")
            sums: dict[str, Figures] = {}
            for key, figures in hours:
                sums[key.model] = sums.get(key.model, Figures()) + figures
            self._account, self._account_s = sums, now_s

    def _event(self, of: Mapping[str, Any], namespace: str, state: ModelState) -> dict[str, Any]:
        metadata, now = of["metadata"], self._clock.now()
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}-plan-", "namespace": namespace},
            "eventTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}",
            "type": "Normal",
            "reason": "Planned",
            "action": "Plan",
            "note": planned(state),
            "reportingController": "cinquefoil.io/planner",
            "reportingInstance": self._store.leadership.holder[:128],
            "regarding": {
                "apiVersion": "cinquefoil.io/v1alpha1",
                "kind": "Model",
                "name": metadata["name"],
                "namespace": namespace,
                "uid": metadata["uid"],
            },
        }


def _needed(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is read of a Model: its spec is in `managedFields` and in annotations, too."""
    metadata = {name: found["metadata"].get(name) for name in _METADATA}
    return {"metadata": metadata, "spec": found.get("spec"), "status": found.get("status")}


def _accepted(
    source: Path, sections: Mapping[str, Any], before: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the specs that the deployment may have together, and why others are refused.

    Where an object's spec is refused, its last one counts. Reads files: blocks.

    Args:
        source: The deployment file.
        sections: Specs by name, the oldest object first. Of those that the deployment cannot have
            together the ones that have changed are refused, the newest object first.
        before: Those that counted up to now. None: as the file of models has them.

    Raises:
        ConfigError: The file is wrong by itself.
    """
    load(source, {})
    last = dict(further_models(source) if before is None else before)
    # Those that counted stand first: where the whole is wrong, what has changed is suspected.
    first = {name: each for name, each in sections.items() if last.get(name, _NONE) == each}
    kept, found, sizes = {**first, **sections}, dict[str, str](), dict[int, int]()
    while kept and (wrong := _too_large(kept, sizes) or _first_wrong(source, kept)):
        for name, why in wrong.items():
            found.setdefault(name, why)
            del kept[name]
            if name in last:
                kept = {name: last.pop(name), **kept}
    return kept, found


_NONE: Final = object()


def _too_large(sections: Mapping[str, Any], sizes: dict[int, int]) -> dict[str, str]:
    """Return the specs that are too many, or nested too deep, by name, and why.

    Args:
        sections: Specs by name; the first ones have the room.
        sizes: Sizes of specs as YAML by identity, those that are known; completed.
    """
    found, count, size = dict[str, str](), 0, 0
    for name, each in sections.items():
        if _levels(each) > _MOST_LEVELS:
            found[name] = f"spec: has more than {_MOST_LEVELS} mappings and lists in one another"
            continue
        own = len(to_json(each))
        if size + own <= _MOST_BYTES:
            own = sizes[id(each)] = sizes.get(id(each)) or len(_text({name: each}))
        if size + own > _MOST_BYTES or count == MOST_MODELS:
            found[name] = f"at most {MOST_MODELS} Models of {_MOST_BYTES:,} bytes together"
        else:
            count, size = count + 1, size + own
    return found


def _levels(value: Any) -> int:
    """Return how many mappings and lists a value has in one another."""
    level, count = [value], -1
    while level:
        level = [
            child
            for each in level
            for child in (
                each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            )
        ]
        count += 1
    return count


def _first_wrong(source: Path, sections: dict[str, Any]) -> dict[str, str]:
    """Return what is wrong with specs, by name; nothing: the deployment may have them."""
    try:
        load_models(load(source, sections))
    except ConfigError as error:
        return _wrong(error.mistakes, sections)
    except ServiceError as error:
        return {next(reversed(sections)): error.message}
    return {}


def _wrong(mistakes: list[Mistake], sections: dict[str, Any]) -> dict[str, str]:
    """Return what is wrong by name of the object; of no object in particular: of the newest."""
    found: dict[str, str] = {}
    for name in sections:
        where = f"models.{name}"
        own = [each for each in mistakes if f"{each.where}.".startswith(f"{where}.")]
        if own:
            found[name] = "; ".join(
                f"spec{each.where.removeprefix(where)}: {each.message}" for each in own
            )
    return found or {next(reversed(sections)): "; ".join(map(str, mistakes))}


def _text(sections: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(sections), sort_keys=True) if sections else ""
