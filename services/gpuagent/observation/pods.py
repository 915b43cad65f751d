"""Pods that hold devices, as the kubelet says (PodResources, gRPC)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from podresources.podresources_pb2 import (
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from podresources.podresources_pb2_grpc import PodResourcesListerStub
from services.gpuagent.observation.workloads import Workload

SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
_TIMEOUT_S: Final = 5.0
_DRIVER: Final = "gpu.nvidia.com"
_REPLICA: Final = "::"
"""Before the number of a time-sliced device, in NVIDIA's device plugin."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods by what they hold; a pod is "namespace/name".

    Attributes:
        by_device: Pods by UUID of a GPU or a MIG device, or by the name of a claimed device.
        by_name: Pods with devices by their own name, without namespace.
    """

    by_device: Mapping[str, frozenset[str]] = field(default_factory=dict)
    by_name: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, workload: Workload, devices: Iterable[str]) -> str:
        """Return the pod of a workload; its name alone where the kubelet does not say more.

        Nothing where it is called as a pod whose devices are others.

        Args:
            workload: The workload.
            devices: UUIDs and names of the device that it runs on.
        """
        named = self.by_name.get(workload.pod, frozenset())
        holders = {pod for each in devices for pod in self.by_device.get(each, ())}
        if holders and named and not named & holders:
            return ""  # a container writes its hostname itself
        found = (named & holders) or named or (frozenset() if workload.pod else holders)
        return next(iter(found)) if len(found) == 1 else workload.pod


async def read(socket: Path = SOCKET) -> Pods | None:
    """Return the pods of this node; None: the kubelet does not answer.

    Args:
        socket: The kubelet's.
    """
    async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
        try:
            found = await PodResourcesListerStub(channel).List(
                ListPodResourcesRequest(), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return None
    return parse(found)


def parse(response: ListPodResourcesResponse) -> Pods:
    """Return the pods of a kubelet's answer."""
    by_device: dict[str, set[str]] = {}
    by_name: dict[str, set[str]] = {}
    for pod in response.pod_resources:
        devices = {each for container in pod.containers for each in _devices(container)}
        name = f"{pod.namespace}/{pod.name}"
        for device in devices:
            by_device.setdefault(device, set()).add(name)
        if devices:
            by_name.setdefault(pod.name, set()).add(name)
    return Pods(
        {device: frozenset(pods) for device, pods in by_device.items()},
        {name: frozenset(pods) for name, pods in by_name.items()},
    )


def _devices(container: ContainerResources) -> Iterable[str]:
    """Yield the devices of a container: of plugins, and of claims under DRA."""
    for devices in container.devices:
        if devices.resource_name.startswith("nvidia.com/"):
            for each in devices.device_ids:
                yield each.partition(_REPLICA)[0]
    for claim in container.dynamic_resources:
        for device in claim.claim_resources:
            if device.driver_name == _DRIVER:
                yield device.device_name
