"""Servers of a pool in Kubernetes: a selector's pods, or a Service's endpoints, listed and watched.

Sources: Kubernetes, "EndpointSlices"; Gateway API Inference Extension, "InferencePool" v1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from services.kit.clock import Clock
from services.kit.config.servers import ServerPool
from services.kit.kubernetes import Cluster, Objects, Query, reconnector
from services.kit.net import address_of

_POOLS: Final = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/{}"
_SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
_PODS: Final = "/api/v1/namespaces/{}/pods"

Addresses = Callable[[Iterable[Mapping[str, Any]]], tuple[str, ...]]


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


async def follow(
    cluster: Cluster,
    pool: ServerPool,
    use: Callable[[tuple[str, ...]], None],
    name: str,
    clock: Clock,
) -> None:
    """Report a pool's addresses, now and after each change, until cancelled.

    Args:
        cluster: The API server.
        pool: The pool.
        use: Takes its addresses.
        name: Of the pool, for the log.
        clock: Time.
    """
    api = reconnector(name, clock)

    async def session() -> None:
        while True:
            query, addresses = await _query(cluster, pool)

            def changed(found: Objects, of: Addresses = addresses) -> None:
                use(of(found.values()))

            await cluster.follow(query, changed, api.connected)

    await api.run(session)


async def _query(cluster: Cluster, pool: ServerPool) -> tuple[Query, Addresses]:
    namespace = pool.namespace or cluster.namespace
    if pool.service:
        label = f"kubernetes.io/service-name={pool.service}"
        return Query(_SLICES.format(namespace), label, _slice), endpoints(pool.port)
    selector: Mapping[str, str] = pool.selector
    port = pool.port or 0
    if pool.inference_pool:
        found = await cluster.get(_POOLS.format(namespace, pool.inference_pool))
        selector = found["spec"]["selector"]["matchLabels"]
        port = int(found["spec"]["targetPorts"][0]["number"])
    labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    return Query(_PODS.format(namespace), labels, _pod), pods(port)


def _pod(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what `pods` reads of a pod."""
    state = found.get("status", {})
    return {"metadata": _metadata(found), "status": _some(state, ("podIP", "conditions"))}


def _slice(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what `endpoints` reads of an EndpointSlice."""
    ready = [_some(each, ("addresses", "conditions")) for each in found.get("endpoints") or ()]
    return {"metadata": _metadata(found), "ports": found.get("ports"), "endpoints": ready}


def _metadata(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return _some(found["metadata"], ("uid", "name", "creationTimestamp", "deletionTimestamp"))


def _some(found: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    return {name: found[name] for name in names if name in found}
