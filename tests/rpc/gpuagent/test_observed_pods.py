"""Pods of processes on GPUs: by the kubelet's own interface, and by control groups."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from podresources import podresources_pb2 as pb
from podresources.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from services.gpuagent.observation import pods
from services.gpuagent.observation.workloads import Workload, Workloads

MIG = "MIG-4a5d0d2c-0000-0000-0000-000000000001"
POD_UID = "0f2b6f0c-7a3e-4f68-9d0f-0d5b6a3c1e11"
CONTAINERD = (
    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
    f"{POD_UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope"
)


class Kubelet(PodResourcesListerServicer):
    """A kubelet: a GPU shared in time by two pods, a MIG device, a claim, and no device."""

    async def List(
        self, request: pb.ListPodResourcesRequest, context: object
    ) -> pb.ListPodResourcesResponse:
        def pod(namespace: str, name: str, **container: object) -> pb.PodResources:
            held = pb.ContainerResources(name="main", **container)  # type: ignore[arg-type]
            return pb.PodResources(namespace=namespace, name=name, containers=[held])

        def plugin(resource: str, device: str) -> list[pb.ContainerDevices]:
            return [pb.ContainerDevices(resource_name=resource, device_ids=[device])]

        claim = pb.DynamicResource(
            claim_name="gpu",
            claim_resources=[
                pb.ClaimResource(
                    driver_name="gpu.nvidia.com", pool_name="node", device_name="gpu-3"
                )
            ],
        )
        return pb.ListPodResourcesResponse(
            pod_resources=[
                pod("chat", "vllm-0", devices=plugin("nvidia.com/gpu", "GPU-1::0")),
                pod("batch", "vllm-0", devices=plugin("nvidia.com/gpu", "GPU-1::1")),
                pod("chat", "small", devices=plugin("nvidia.com/mig-3g.20gb", MIG)),
                pod("chat", "claims", dynamic_resources=[claim]),
                pod("net", "sriov", devices=plugin("intel.com/sriov", "GPU-1")),
                pod("kube-system", "proxy"),
            ]
        )


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Path]:
    server, socket = grpc.aio.server(), tmp_path / "kubelet.sock"
    add_PodResourcesListerServicer_to_server(Kubelet(), server)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    yield socket
    await server.stop(None)


async def test_the_kubelet_names_the_pods_of_devices(kubelet: Path) -> None:
    """Devices of plugins, time-sliced ones, MIG devices and claims; two pods stay apart."""
    found = await pods.read(kubelet)
    assert found is not None

    def pod(name: str, *devices: str) -> str:
        return found.of(Workload("pod:1", name, name), devices)

    assert pod("", MIG) == "chat/small"
    assert pod("", "GPU-9", "gpu-3") == "chat/claims"
    assert pod("small", MIG) == "chat/small"
    assert pod("small", "GPU-1") == "", "another pod's name, at a device that it does not have"
    assert pod("vllm-0", "GPU-1") == "vllm-0"  # two namespaces have it: not guessed
    assert pod("", "GPU-1") == ""
    assert pod("unknown", "GPU-1") == "unknown"


async def test_without_a_kubelet_there_are_no_pods(tmp_path: Path) -> None:
    assert await pods.read(tmp_path / "none.sock") is None


@pytest.mark.parametrize(
    ("group", "key", "name"),
    [
        (
            CONTAINERD,
            f"pod:{POD_UID}",
            "vllm-0",
        ),
        (f"5:cpu:/kubepods/besteffort/pod{POD_UID}/{'b' * 64}", f"pod:{POD_UID}", "vllm-0"),
        (f"0::/system.slice/docker-{'c' * 64}.scope", f"container:{'c' * 12}", None),
        ("0::/system.slice/vllm.service", "unit:vllm.service", "vllm.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope", f"process:{os.getpid()}", None),
        ("0::/", f"process:{os.getpid()}", None),
        ("no control group at all", f"process:{os.getpid()}", None),
    ],
)
def test_a_process_belongs_to_its_control_groups_workload(
    tmp_path: Path, group: str, key: str, name: str | None
) -> None:
    """Forms of containerd, cgroup version 1, Docker, systemd and sessions."""
    folder = tmp_path / "proc" / str(os.getpid())
    (folder / "root/etc").mkdir(parents=True)
    (folder / "root/etc/hostname").write_text("vllm-0\n")
    (folder / "cgroup").write_text(f"{group}\n")
    found = Workloads(tmp_path).of(os.getpid())
    assert found.key == key or (key.startswith("process:") and found.key.startswith("process:"))
    assert name is None or found.name == name


def test_a_hostname_that_is_none_names_no_pod(tmp_path: Path) -> None:
    """A container may write anything there."""
    folder = tmp_path / "proc" / str(os.getpid())
    (folder / "root/etc").mkdir(parents=True)
    (folder / "root/etc/hostname").write_bytes(b"\x1b[31m" + b"a" * 10_000)
    (folder / "cgroup").write_text(f"0::/kubepods/pod{POD_UID}/x\n")
    assert Workloads(tmp_path).of(os.getpid()).pod == ""


@pytest.mark.parametrize("kind", ["pipe", "link", "link to a pipe"])
def test_a_hostname_is_read_from_a_file_of_the_container(tmp_path: Path, kind: str) -> None:
    """At a pipe the GPUs' own thread waited for ever; a link is the host's."""
    etc = tmp_path / "proc" / str(os.getpid()) / "root/etc"
    etc.mkdir(parents=True)
    other = tmp_path / "other"
    if kind == "link":
        other.write_text("another")
    else:
        os.mkfifo(other)
    if kind == "pipe":
        other.rename(etc / "hostname")
    else:
        (etc / "hostname").symlink_to(other)
    (etc.parents[1] / "cgroup").write_text(f"0::/kubepods/pod{POD_UID}/x\n")
    found: list[str] = []
    reading = threading.Thread(
        target=lambda: found.append(Workloads(tmp_path).of(os.getpid()).pod), daemon=True
    )
    reading.start()
    reading.join(timeout=20)
    assert found == [""]


def test_a_process_that_has_ended_is_itself() -> None:
    assert Workloads().of(2**22 + 5).key == f"process:{2**22 + 5}"
