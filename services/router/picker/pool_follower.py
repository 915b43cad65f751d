"""Servers of all pools: found once, followed where they come and go, also as pools change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple, Self

from services.kit.clock import Clock
from services.kit.config import Deployment, OpenAiRuntime, ServerPool
from services.kit.kubernetes import Cluster
from services.kit.owned_tasks import OwnedTasks
from services.router.adapters import kubernetes
from services.router.core.server_pools import ServerPools


class _Source(NamedTuple):
    """Where the servers of a pool are found: the pool, and the address of its variant's runtime."""

    pool: ServerPool
    own: tuple[str, ...]


class PoolFollower(OwnedTasks):
    """Keeps the addresses of the pools; enter it to begin, leave it to end.

    Args:
        pools: The pools.
        found: Takes model, pool and its addresses, now and after each change.
        clock: Time.

    Attributes:
        changed: Set at each change of addresses.
        entered: True from its beginning on.
    """

    def __init__(
        self,
        pools: ServerPools,
        found: Callable[[str, str, tuple[str, ...]], None],
        clock: Clock,
    ) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self.entered = False
        self._pools, self._found, self._clock = pools, found, clock
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None
        self._sources: dict[tuple[str, str], _Source] = {}
        self._following: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.entered = True
        return self

    async def _ended(self) -> None:
        await self._stack.aclose()

    async def use(self, deployment: Deployment) -> None:
        """Find and follow the servers of a deployment's pools; those that stay are not disturbed.

        Raises:
            FailedPrecondition: A pool is in Kubernetes, and this router is in no pod.
        """
        models = deployment.models
        pools = [
            (name, pool_name, pool)
            for name, model in models.items()
            for pool_name, pool in model.servers.items()
        ]
        if self._cluster is None and any(pool.in_kubernetes for _, _, pool in pools):
            reached = Cluster.reached("models.*.servers", "config.models.*.servers")
            self._cluster = await self._stack.enter_async_context(reached)
        wanted = {
            (name, pool_name): _Source(pool, _own(deployment, name, pool))
            for name, pool_name, pool in pools
        }
        for key, source in tuple(self._sources.items()):
            if wanted.get(key) != source:
                del self._sources[key]
                if task := self._following.pop(key, None):
                    task.cancel()
        self._pools.use(models)
        for key, source in wanted.items():
            if key not in self._sources:
                self._sources[key] = source
                self._follow(*key, source)

    def _follow(self, model: str, name: str, source: _Source) -> None:
        take = partial(self._take, model, name)
        if self._cluster is None or not source.pool.in_kubernetes:
            take(source.pool.addresses or source.own)
            return
        where = f"models.{model}.servers.{name}"
        work = kubernetes.follow(self._cluster, source.pool, take, where, self._clock)
        self._following[model, name] = self.start(work, f"router.servers[{model}/{name}]")

    def _take(self, model: str, name: str, addresses: tuple[str, ...]) -> None:
        self._found(model, name, addresses)
        self.changed.set()


def _own(deployment: Deployment, model: str, pool: ServerPool) -> tuple[str, ...]:
    runtime = deployment.models[model].variants[pool.variant].runtime
    return (runtime.address,) if isinstance(runtime, OpenAiRuntime) and runtime.address else ()
