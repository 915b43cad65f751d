"""Membership of nodes, over restarts: they join, are taken out of use, and are forgotten."""

import asyncio
from collections.abc import Callable, Collection
from socket import SOCK_STREAM
from typing import Final

from cinquefoil.planner.v1.records import NodeOrder
from services.kit.clock import Clock
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from services.kit.net import IpAddress, is_loopback, may_name, plain_ip, source_of, split_address
from services.kit.rpc import Caller
from services.kit.segment import check_name, plain, some_of
from services.kit.telemetry import logs
from services.planner.adapters.store import Store
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.known_nodes import JoinedNode

_log = logs.get("nodes")

_MOST_JOINED: Final = 10_000
_LOOK_S: Final = 60.0
_RESOLVE_S: Final = 5.0
_LOOKS: Final = 4
"""Checks of a node before it is forgotten."""


class Membership:
    """Admits nodes to the fleet and records orders about them; everything is stored first."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator, all made in assembly.py
        self,
        state: ClusterState,
        store: Store,
        clock: Clock,
        account_writer: AccountingWriter,
        zones: Collection[str],
        forgotten: Callable[[str], None],
        *,
        local: bool,
    ) -> None:
        """Start with the nodes of the deployment file.

        Args:
            state: Gets admitted nodes and orders.
            store: Stores both.
            clock: Source of time.
            account_writer: Writes a node's energy before it is forgotten.
            zones: Zones that nodes may join in.
            forgotten: Called with the name of a forgotten node.
            local: Callers have no identities because all of them are on this machine: nodes must
                be, too, or any user could have routers send requests elsewhere.
        """
        self._fleet = state.fleet
        self._changed = state.changed
        self._store = store
        self._clock = clock
        self._account_writer = account_writer
        self._zones = zones
        self._forgotten = forgotten
        self._local = local
        self._seen_s: dict[str, float] = {}
        self._owners_kept = 0
        self._writing = asyncio.Lock()

    async def restore(self) -> None:
        """Restore the nodes, their GPUs and orders from before a restart."""
        joined, orders = await self._store.nodes()
        for node in joined.values():
            self._fleet.settings.admit(node)
        owners = await self._store.owners()
        self._fleet.owners = {
            uuid: name for uuid, name in owners.items() if name in self._fleet.settings
        }
        for name, order in orders.items():
            if name in self._fleet.settings:
                self._fleet.order(name, order)

    async def admit(self, node: JoinedNode, agent: Caller, peer: str) -> None:
        """Admit a node whose agent joins; one of the deployment file needs no admission.

        Args:
            node: The node as its agent reports it.
            agent: The calling agent.
            peer: Where it calls from, as gRPC writes it.

        Raises:
            InvalidArgument: The name is invalid, or the address is missing or has no host.
            FailedPrecondition: The file lets no other nodes join, or the zone is unknown.
            PermissionDenied: The name, the caller or the address may not join, or the name belongs
                to another.
            ResourceExhausted: Too many have joined.
        """
        known = self._fleet.settings
        if known.in_file(node.name) or (node.name in known and node.name not in known.joined):
            return
        check_name("node.name", node.name)
        self._check_may_join(node, agent)
        try:
            split_address(node.address)
        except ValueError as error:
            raise InvalidArgument.at("address", str(error)) from error
        if self._local and not is_loopback(node.address):
            raise PermissionDenied(
                f"address: {node.address} is beyond this machine: give tls and access, or say "
                "access: {insecure: true}",
                reason="NOT_AUTHORISED",
            )
        await self._check_address(node, peer)
        if node.zone not in self._zones:
            raise FailedPrecondition.at(
                "node.zone",
                f"no zone {plain(node.zone)!r}; carbon.zones has {some_of(self._zones)}",
            )
        async with self._writing:
            known_as = known.joined.get(node.name)
            if known_as == node:
                return
            if known_as is not None and self._fleet.connected(node.name):
                raise PermissionDenied(
                    f"node {node.name} is joined from {known_as.address}; its stream must end "
                    "first",
                    reason="NODE_TAKEN",
                )
            if len(known.joined) >= _MOST_JOINED:
                raise ResourceExhausted(f"{_MOST_JOINED} nodes have joined: no more can")
            await self._store.save_node(node.name, node, self._fleet.orders.get(node.name))
            known.admit(node)
        _log.info("node admitted", node=node.name, zone=node.zone, address=node.address)

    async def keep_owners(self) -> None:
        """Write whose each GPU is where that has changed; a database that is away gets it later."""
        if self._owners_kept == self._fleet.owners_revision:
            return
        async with self._writing:
            if self._owners_kept == (revision := self._fleet.owners_revision):
                return  # written with another's
            try:
                await self._store.owners.save(dict(self._fleet.owners))
            except Unavailable as error:
                _log.warning("not written whose the GPUs are", error=error.message)
            else:
                self._owners_kept = revision

    def _check_may_join(self, node: JoinedNode, agent: Caller) -> None:
        known, join = self._fleet.settings, self._fleet.settings.join
        if join is None:
            file = [name for name in known if known.in_file(name)]
            raise FailedPrecondition.at(
                "node.name",
                f"{node.name!r} is not in the deployment file; it has {some_of(file)}, and no "
                "join: section that lets others join",
            )
        if not join.permits(node.name):
            raise PermissionDenied(
                f"{node.name!r} may not join: join.names has {some_of(join.names)}",
                reason="NOT_AUTHORISED",
            )
        if agent.roles is not None and agent.node != node.name and not join.lends_to(agent.name):
            raise PermissionDenied(
                f"{agent.name} is not the agent of node {node.name}: its identity must end in "
                f"/{node.name}, or be one of join.identities",
                reason="NOT_AUTHORISED",
            )
        if not node.address:
            raise InvalidArgument.at(
                "address", f"required: where the agent of {node.name} listens, host:port"
            )

    async def _check_address(self, node: JoinedNode, peer: str) -> None:
        """Refuse addresses of others: routers would send requests there."""
        join = self._fleet.settings.join
        try:
            found = await _resolved(split_address(node.address)[0])
        except OSError as error:  # TimeoutError, too
            raise InvalidArgument.at("address", f"{plain(node.address)}: {error}") from error
        source = source_of(peer)
        for ip in found:
            if join is None or not may_name(ip, source, join.networks):
                raise PermissionDenied(
                    f"address: {plain(node.address)} is {ip}, and the agent of {node.name} calls "
                    f"from {source}: an agent gives the address that it calls from, or one of "
                    "join.networks, which can hold no link-local address",
                    reason="NOT_AUTHORISED",
                )

    async def order(self, name: str, principal: str, *, drain: bool | None) -> None:
        """Take a node out of use, or into use again.

        Args:
            name: The node.
            principal: Identity of the operator.
            drain: Whether to plan without the node now; None: the node may be used again.

        Raises:
            NotFound: There is no such node.
        """
        self.check_known(name)
        found = None if drain is None else NodeOrder(drain, principal, self._clock.now())
        async with self._writing:
            await self._store.save_node(name, self._fleet.settings.joined.get(name), found)
            self._fleet.order(name, found)
        self._changed.notify()
        order = {True: "drain", False: "cordon", None: "uncordon"}[drain]
        _log.info("node ordered", node=name, order=order, principal=principal)

    def check_known(self, name: str) -> None:
        """Check that a node exists.

        Raises:
            NotFound: There is none.
        """
        if name not in self._fleet.settings:
            known = some_of(self._fleet.settings)
            raise NotFound.at("node", f"no node {plain(name)!r}; there is {known}")

    async def forget(self, name: str) -> None:
        """Forget an unreachable node; of one that the deployment file names, its GPUs.

        Raises:
            NotFound: There is no such node.
            FailedPrecondition: It is connected, or the deployment file names it and it has no GPU.
        """
        self.check_known(name)
        if name not in self._fleet.settings.joined:
            await self._forget_gpus(name)
            return
        await self._account_writer.save()
        async with self._writing:
            if self._fleet.connected(name):
                raise FailedPrecondition.at("node", f"{name} is connected: stop its agent first")
            await self._store.save_node(name, None, None)
            self._fleet.forget(name)
            self._forgotten(name)
            self._seen_s.pop(name, None)
        await self.keep_owners()
        self._changed.notify()
        _log.info("node forgotten", node=name)

    async def _forget_gpus(self, name: str) -> None:
        """Release the GPUs of an unreachable node of the deployment file for others."""
        if self._fleet.connected(name):
            raise FailedPrecondition.at("node", f"{name} is connected: stop its agent first")
        if not self._fleet.disown(name):
            raise FailedPrecondition.at(
                "node", f"{name} is in the deployment file and has no GPU: remove it there"
            )
        await self.keep_owners()
        _log.info("GPUs of a node forgotten", node=name)

    async def keep(self) -> None:
        """Forget nodes that have been unreachable for too long, for ever."""
        while True:
            join = self._fleet.settings.join
            after_s = None if join is None else join.forget_after_s
            await self._clock.sleep(min(_LOOK_S, _LOOK_S if after_s is None else after_s / _LOOKS))
            now_s = self._clock.monotonic()
            for name in list(self._fleet.settings.joined):
                if self._fleet.connected(name):
                    self._seen_s[name] = now_s
                elif after_s is not None and now_s - self._seen_s.setdefault(name, now_s) > after_s:
                    try:
                        await self.forget(name)
                    except (FailedPrecondition, NotFound, Unavailable) as error:
                        _log.warning("node not forgotten", node=name, error=error.message)


async def _resolved(host: str) -> tuple[IpAddress, ...]:
    """Return the IP addresses of a host, a name or an address.

    Raises:
        OSError: The name has none, or its server does not answer in time.
    """
    async with asyncio.timeout(_RESOLVE_S):
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=SOCK_STREAM)
    return tuple(dict.fromkeys(plain_ip(str(place[4][0])) for place in found))
