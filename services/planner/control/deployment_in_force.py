"""The deployment in force: the deployment file with operators' overrides."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from cinquefoil.planner.v1.records import ChangedSetting
from services.kit.config import Deployment
from services.kit.config.differences import differences
from services.kit.config.loader import ConfigError
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.telemetry import logs
from services.planner.adapters.model_loader import load_models
from services.planner.adapters.store import Store
from services.planner.core.cycle.environment import Clock
from services.planner.core.model import Model
from services.planner.core.overrides import MAX_OVERRIDES, overridden, still_valid

_log = logs.get("settings")


@dataclass(frozen=True, slots=True)
class InForce:
    """A validated deployment.

    Attributes:
        file: Deployment of the file.
        overrides: Operators' changes by path.
        deployment: The file with the overrides.
        models: Its models, with their profiles.
    """

    file: Deployment
    overrides: Mapping[str, ChangedSetting]
    deployment: Deployment
    models: tuple[Model, ...]

    @classmethod
    async def of(
        cls, file: Deployment, overrides: Mapping[str, ChangedSetting], *, may_add: bool = False
    ) -> "InForce":
        """Validate a deployment; reads profiles.

        Args:
            file: Deployment of the file.
            overrides: Operators' changes by path.
            may_add: Whether these may contain a model that the file lacks.

        Raises:
            InvalidArgument: An override is invalid.
            ConfigError, ServiceError: A profile cannot be read.
        """
        values = {path: each.value for path, each in overrides.items()}
        deployment = overridden(file, values, may_add=may_add) if values else file
        models = await asyncio.to_thread(load_models, deployment)
        return cls(file, dict(overrides), deployment, models)

    @classmethod
    async def restored(cls, file: Deployment, store: Store) -> "InForce":
        """Return the deployment at the start: earlier overrides as far as the file allows."""
        return await cls.of(file, _kept(file, await store.overrides()))

    def changed(self, new: "InForce") -> tuple[str, ...]:
        """Return the paths of settings that differ in another one."""
        return differences(self.deployment, new.deployment)


class DeploymentChanges:
    """Changes the deployment in force: by reload of its file, or by order of an operator.

    Args:
        now: Deployment in force at the start.
        store: Stores the overrides.
        clock: Source of time.
        use: Applies the deployment to all its users; also gets the operator's identity.

    Attributes:
        now: Deployment in force.
    """

    def __init__(
        self, now: InForce, store: Store, clock: Clock, use: Callable[[InForce, str], None]
    ) -> None:
        self.now = now
        self._store = store
        self._clock = clock
        self._use = use
        self._changing = asyncio.Lock()
        self._zones = now.deployment.node_zones

    async def reload(self, file: Deployment) -> None:
        """Apply a changed file; overrides stay as far as the file allows.

        Raises:
            ConfigError, ServiceError: The file is invalid; nothing has changed.
        """
        for name, node in file.nodes.items():
            if node.zone not in self._zones:
                raise FailedPrecondition.at(
                    f"nodes.{name}.zone",
                    f"no node was in {node.zone} when the planner started; restart it to follow "
                    "this zone",
                )
        if missing := sorted(file.node_zones - self._zones):
            raise FailedPrecondition.at(
                "join",
                f"nodes could not join in {missing[0]} when the planner started; restart it to "
                "follow this zone",
            )
        async with self._changing:
            kept = _kept(file, self.now.overrides)
            new = await InForce.of(file, kept)
            if kept.keys() != self.now.overrides.keys():
                await self._store.overrides.save(kept)
            self._take(new)

    async def proposed(
        self,
        values: Mapping[str, JsonValue],
        reset: Collection[str],
        principal: str,
        *,
        may_add: bool = False,
    ) -> InForce:
        """Return the deployment with some settings changed; nothing is stored or applied.

        Args:
            values: New values by path; None removes a model or variant.
            reset: Paths to reset to the file's values, including everything below.
            principal: Identity of the operator.
            may_add: Whether a value may be the section of a model that the file lacks.

        Raises:
            InvalidArgument: A setting does not exist, cannot be changed at run time, or may not
                have the value; or a setting to reset was not changed.
        """
        kept = dict(self.now.overrides)
        for path in reset:
            below = [each for each in kept if each == path or each.startswith(f"{path}.")]
            if not below:
                raise InvalidArgument.at(path, "was not changed at run time")
            for each in below:
                del kept[each]
        at = self._clock.now()
        kept.update(
            {path: ChangedSetting(path, value, principal, at) for path, value in values.items()}
        )
        if len(kept) > MAX_OVERRIDES:
            raise InvalidArgument.at("values", f"at most {MAX_OVERRIDES} settings can be changed")
        try:
            return await InForce.of(self.now.file, kept, may_add=may_add)
        except ConfigError as error:
            raise InvalidArgument(str(error)) from error

    async def change(
        self, values: Mapping[str, JsonValue], reset: Collection[str], principal: str
    ) -> tuple[str, ...]:
        """Change settings now and over restarts; return the paths that changed.

        Raises:
            InvalidArgument: As for `proposed`; nothing has changed.
        """
        async with self._changing:
            before, new = self.now, await self.proposed(values, reset, principal)
            await self._store.overrides.save(new.overrides)
            self._take(new, principal)
        changed = before.changed(new)
        _log.info("settings changed", settings=changed, principal=principal)
        return changed

    def _take(self, new: InForce, principal: str = "") -> None:
        self.now = new
        self._use(new, principal)


def _kept(file: Deployment, overrides: Mapping[str, ChangedSetting]) -> dict[str, ChangedSetting]:
    """Return the overrides that a file still allows; others are logged."""
    kept, dropped = still_valid(file, overrides)
    for path, why in dropped.items():
        _log.warning("a run-time change no longer applies", setting=path, why=why)
    return kept
