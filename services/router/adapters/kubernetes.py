"""Servers of a pool in Kubernetes: a selector's pods, or a Service's endpoints, listed and watched.

Sources: Kubernetes, "API concepts" (efficient detection of changes), "EndpointSlices"; Gateway API
Inference Extension, "InferencePool" v1.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import aiohttp

from services.kit.clock import Clock
from services.kit.config.servers import MOST_ADDRESSES, ServerPool
from services.kit.errors import FailedPrecondition
from services.kit.net import address_of
from services.kit.rpc.reconnect import ConnectionLost, Reconnector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, the API server's authority and its namespace."""

_WATCH_S: Final = 300
_LINE_BYTES: Final = 2**21
_GONE: Final = 410
_POOLS: Final = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/{}"
_SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
_PODS: Final = "/api/v1/namespaces/{}/pods"

Objects = Mapping[str, Mapping[str, Any]]
Addresses = Callable[[Iterable[Mapping[str, Any]]], tuple[str, ...]]


class Query(NamedTuple):
    """Objects to follow. Attributes: path, labels (a selector), addresses (of the objects)."""

    path: str
    labels: str
    addresses: Addresses


def pods(port: int) -> Addresses:
    """Return what reads the addresses of pods that are ready and stay."""

    def addresses(found: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        return tuple(
            address_of(str(pod["status"]["podIP"]), port)
            for pod in found
            if _is_ready(pod) and pod.get("status", {}).get("podIP")
        )

    return addresses


def endpoints(port: int | None) -> Addresses:
    """Return what reads the ready addresses of EndpointSlices, at one port or at their first."""

    def addresses(found: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        ready = []
        for each in found:
            ports = [int(one["port"]) for one in each.get("ports") or () if one.get("port")]
            wanted = next((one for one in ports if port in (None, one)), 0)
            for endpoint in (each.get("endpoints") or ()) if wanted else ():
                conditions = endpoint.get("conditions") or {}
                if conditions.get("ready", True) and not conditions.get("terminating"):
                    ready += [address_of(str(one), wanted) for one in endpoint["addresses"][:1]]
        return tuple(ready)

    return addresses


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return ready and not pod.get("metadata", {}).get("deletionTimestamp")


class Cluster:
    """The API server, as a pod reaches it.

    Args:
        session: Connections.
        url: "https://host:port".
        folder: With `token`, which is read at each request, and `namespace`.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, folder: Path) -> None:
        self._session, self._url, self._folder = session, url, folder

    @classmethod
    @asynccontextmanager
    async def reached(cls, folder: Path = MOUNT, url: str = "") -> AsyncIterator[Self]:
        """Keep connections while the block runs.

        Args:
            folder: The ServiceAccount's folder.
            url: Of the API server; "": as the environment of a pod has it.

        Raises:
            FailedPrecondition: This is no pod, or it has no token.
        """
        if not url:
            host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host or not (folder / "token").exists():
                raise FailedPrecondition(
                    "models.*.servers: inference_pool, selector and service are found from inside"
                    f" a cluster, with the token of a ServiceAccount at {folder}; give addresses"
                    " elsewhere"
                )
            url = f"https://{address_of(host, int(port))}"
        context: ssl.SSLContext | bool = True
        if url.startswith("https"):
            context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        connector = aiohttp.TCPConnector(ssl=context)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_S + 30)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, read_bufsize=_LINE_BYTES
        ) as session:
            yield cls(session, url, folder)

    async def follow(
        self, pool: ServerPool, use: Callable[[tuple[str, ...]], None], name: str, clock: Clock
    ) -> None:
        """Report a pool's addresses, now and after each change, until cancelled.

        Args:
            pool: The pool.
            use: Takes its addresses.
            name: Of the pool, for the log.
            clock: Time.
        """
        api = Reconnector(
            f"kubernetes: {name}",
            clock,
            errors=(aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError),
        )

        async def session() -> None:
            while True:  # the API server ends each watch after a while
                query = await self._query(pool)
                objects, version = await self._list(query)
                api.connected()
                use(query.addresses(objects.values()))
                await self._watch(query, objects, version, use)

        await api.run(session)

    async def _query(self, pool: ServerPool) -> Query:
        namespace = pool.namespace or (self._folder / "namespace").read_text().strip()
        if pool.service:
            label = f"kubernetes.io/service-name={pool.service}"
            return Query(_SLICES.format(namespace), label, endpoints(pool.port))
        selector: Mapping[str, str] = pool.selector
        port = pool.port or 0
        if pool.inference_pool:
            found = await self._get(_POOLS.format(namespace, pool.inference_pool))
            selector = found["spec"]["selector"]["matchLabels"]
            port = int(found["spec"]["targetPorts"][0]["number"])
        labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        return Query(_PODS.format(namespace), labels, pods(port))

    async def _list(self, query: Query) -> tuple[dict[str, Mapping[str, Any]], str]:
        found = await self._get(query.path, labelSelector=query.labels, limit=str(MOST_ADDRESSES))
        return {_key(each): each for each in found["items"]}, found["metadata"]["resourceVersion"]

    async def _watch(
        self,
        query: Query,
        objects: dict[str, Mapping[str, Any]],
        version: str,
        use: Callable[[tuple[str, ...]], None],
    ) -> None:
        """Follow changes until the API server ends the watch: the objects are to be listed again.

        Raises:
            ConnectionLost: It refuses, or does not know the version any more.
        """
        given = {
            "watch": "1",
            "labelSelector": query.labels,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        async with self._session.get(self._at(query.path, given), headers=self._token()) as answer:
            _check(answer, query.path)
            while line := await answer.content.readline():
                event = json.loads(line)
                kind, found = event["type"], event["object"]
                if kind == "ERROR":
                    raise ConnectionLost(f"{found.get('code', _GONE)}: {found.get('message', '')}")
                if kind == "DELETED":
                    objects.pop(_key(found), None)
                elif kind in ("ADDED", "MODIFIED") and len(objects) < MOST_ADDRESSES:
                    objects[_key(found)] = found
                if kind != "BOOKMARK":
                    use(query.addresses(objects.values()))

    async def _get(self, path: str, **given: str) -> Any:
        async with self._session.get(self._at(path, given), headers=self._token()) as answer:
            _check(answer, path)
            return await answer.json()

    def _at(self, path: str, given: Mapping[str, str]) -> str:
        return f"{self._url}{path}?{urlencode(given)}"

    def _token(self) -> Mapping[str, str]:
        token = self._folder / "token"
        return {"Authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else {}


def _check(answer: aiohttp.ClientResponse, path: str) -> None:
    """Raise ConnectionLost where the API server refuses, with what it would take."""
    status = answer.status
    if status in (401, 403):
        raise ConnectionLost(
            f"{status} at {path}: the router's ServiceAccount needs get, list and watch there"
            " (chart: router.picker.rbac)"
        )
    if status == 404:
        raise ConnectionLost(f"404 at {path}: there is no such object, or its CRD is not installed")
    if status >= 400:
        raise ConnectionLost(f"HTTP {status} at {path}")


def _key(found: Mapping[str, Any]) -> str:
    return str(found["metadata"].get("uid") or found["metadata"]["name"])
