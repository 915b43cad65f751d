"""Routes to servers that belong to somebody else, beside those of the planner's table.

A model with `servers` is answered by them alone: whatever the planner's table has of it, its
instances are the addresses that were found last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from services.kit.config import Model, ServerPool
from services.router.core.model import Instance, InstanceId, ModelRoutes, RoutingTable

_SEGMENT = "server/"


class ServerPools:
    """The pools of a deployment, and the addresses in them.

    Args:
        models: Models by name; those without servers are passed over.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self.models: dict[str, Model] = {}
        self._addresses: dict[tuple[str, str], tuple[str, ...]] = {}
        self._names: dict[str, str] = {}
        self.use(models)

    def use(self, models: Mapping[str, Model]) -> None:
        """Take other models; the addresses of pools that stay are kept."""
        self.models = {name: model for name, model in models.items() if model.servers}
        self._names = {
            alias: name
            for name, model in self.models.items()
            for pool in model.servers.values()
            for alias in _aliases(model, pool)
        } | {name: name for name in self.models}
        stay = {(name, pool_name) for name, pool_name, _ in self.pools()}
        for key in self._addresses.keys() - stay:
            del self._addresses[key]

    def pools(self) -> Iterable[tuple[str, str, ServerPool]]:
        """Yield every pool with the names of its model and of itself."""
        for name, model in self.models.items():
            for pool_name, pool in model.servers.items():
                yield name, pool_name, pool

    def named(self, alias: str) -> str | None:
        """Return the model that clients name so, by its own name or its server's; None: none."""
        return self._names.get(alias)

    def pool_name_of(self, instance: Instance) -> str:
        """Return the name of the pool of one of the instances of `merged`."""
        return instance.segment_id.removeprefix(_SEGMENT).partition("/")[0]

    def metrics_of(self, instance: Instance) -> str:
        """Return the path of the metrics of one of those; "": they are not read."""
        model = self.models.get(instance.model)
        pool = model.servers.get(self.pool_name_of(instance)) if model is not None else None
        return pool.metrics if pool is not None else ""

    def owns(self, instance: InstanceId) -> bool:
        """Return whether an instance is a server of a pool, and no worker."""
        return instance.segment_id.startswith(_SEGMENT)

    def found(self, model: str, pool: str, addresses: Iterable[str]) -> bool:
        """Replace the addresses of a pool; return whether they changed."""
        now = tuple(sorted(set(addresses)))
        before = self._addresses.get((model, pool))
        self._addresses[model, pool] = now
        return now != (before or ())

    @property
    def looked(self) -> bool:
        """True once there are pools and each was looked at."""
        return bool(self.models) and all(
            (model, pool) in self._addresses for model, pool, _ in self.pools()
        )

    def merged(self, table: RoutingTable) -> RoutingTable:
        """Return a table of the planner with the servers as the instances of their models."""
        if not self.models:
            return table
        others = tuple(each for each in table.models if each.model not in self.models)
        known = {each.model: each for each in table.models}
        own = tuple(self._routes(name, model, known) for name, model in self.models.items())
        return replace(table, models=(*others, *own))

    def _routes(self, name: str, model: Model, known: Mapping[str, ModelRoutes]) -> ModelRoutes:
        routes = known.get(name) or ModelRoutes(
            name,
            model.slo.latency_s,
            model.slo.percentile,
            model.instance_choice,
            discipline=model.discipline,
            intensity_threshold=model.intensity_threshold,
        )
        found = [
            (pool_name, pool, address)
            for pool_name, pool in model.servers.items()
            for address in self._addresses.get((name, pool_name), ())
        ]
        return replace(
            routes,
            instances=tuple(
                Instance(
                    endpoint=address,
                    segment_id=f"{_SEGMENT}{pool_name}/{address}",
                    model=name,
                    variant=pool.variant,
                    accuracy=model.variants[pool.variant].accuracy,
                    share=1.0 / len(found),
                    credits=pool.slots,
                    zone=pool.zone,
                    pue=pool.pue,
                )
                for pool_name, pool, address in found
            ),
        )


def _aliases(model: Model, pool: ServerPool) -> Iterable[str]:
    runtime = model.variants[pool.variant].runtime
    if runtime.kind == "openai":
        if runtime.model_name:
            yield runtime.model_name
        yield from runtime.adapters
