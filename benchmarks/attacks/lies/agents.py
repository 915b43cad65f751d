"""Lies of an agent about its node, other nodes, GPUs, energy and terms."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from copy import deepcopy
from typing import Final

import grpc

from benchmarks.attacks.lies.seen import seen
from benchmarks.attacks.target import Attack, Target, until
from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.rpc import dial

_HOLD_S: Final = 1.2
_JOINS_S: Final = 10.0
_REJOIN_S: Final = 20.0
_TOO_OFTEN: Final = "RESOURCE_EXHAUSTED: node node-evil has joined"
_OWN_GPU: Final = "GPU-evil-0"
_NAN, _INF = float("nan"), float("inf")

Lie = Callable[[Target, planner_pb2.JoinRequest], None]


def lying(*lies: Lie, first: bool = True) -> Attack:
    """Return the attack that joins as node-evil and says something wrong.

    Args:
        lies: Each changes an honest message.
        first: Whether the first message is wrong; else a later one.
    """

    async def attack(target: Target) -> str:
        before, honest = await seen(target), await _honest(target)
        status = await _joined(target, honest, lies, first=first)
        if status.startswith(_TOO_OFTEN):
            await asyncio.sleep(_JOINS_S)
            status = await _joined(target, honest, lies, first=first)
        after = await seen(target)
        await until(_healed(target), _REJOIN_S)
        before.check(after)
        return status

    return attack


async def _joined(
    target: Target, honest: planner_pb2.JoinRequest, lies: tuple[Lie, ...], *, first: bool
) -> str:
    """Join with lies, stay for a while, return how that ended."""
    wrong = deepcopy(honest)
    for lie in lies:
        lie(target, wrong)

    async def said() -> AsyncIterator[planner_pb2.JoinRequest]:
        if not first:
            yield honest
        for _ in range(3):
            yield wrong
            await asyncio.sleep(_HOLD_S / 3)

    try:
        async with dial(target.planner, target.tls("agent", "node-evil")) as channel:
            async with asyncio.timeout(_HOLD_S):
                async for _ in PlannerServiceStub(channel).Join(said()):
                    pass
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"[:90]
    except TimeoutError:
        return "without effect"
    return "ended"


async def _honest(target: Target) -> planner_pb2.JoinRequest:
    """Return a message of a node with one GPU like that of node-0."""
    there = (await target.node()).gpus[0]
    gpu = inventory_pb2.Gpu(uuid=_OWN_GPU, type=there.type, mig_enabled=True)
    node = inventory_pb2.Node(name="node-evil", zone="US-CAL", simulated=True, gpus=[gpu])
    return planner_pb2.JoinRequest(node=node)


def _healed(target: Target) -> Callable[[], Awaitable[bool]]:
    async def healed() -> bool:
        nodes = (await target.fleet()).nodes
        return any(each.connected for each in nodes if each.node.name == "node-0")

    return healed


def _its_gpu(target: Target, message: planner_pb2.JoinRequest) -> None:
    message.node.gpus[0].uuid = target.gpu


def _its_name(_: Target, message: planner_pb2.JoinRequest) -> None:
    message.node.name = "node-0"


def _unknown_name(_: Target, message: planner_pb2.JoinRequest) -> None:
    message.node.name = "node-unknown"


def _other_zone(_: Target, message: planner_pb2.JoinRequest) -> None:
    message.node.zone = "FR"


def _segment(endpoint: str, of_another: bool = False) -> Lie:
    def lie(target: Target, message: planner_pb2.JoinRequest) -> None:
        node = message.node
        profile = node.gpus[0].type.profiles[0]
        placement = inventory_pb2.Placement(profile=profile.name, start=profile.starts[0])
        node.gpus[0].slices.add(placement=placement, uuid="MIG-evil")
        segment = node.segments.add(
            state=inventory_pb2.SEGMENT_STATE_READY, endpoints=[endpoint or target.worker]
        )
        segment.spec.segment_id = target.segment if of_another else "s-evil"
        segment.spec.model, segment.spec.variant = "digits", "linear"
        segment.spec.batch_size = segment.spec.processes = 1
        segment.spec.gpu_uuid = _OWN_GPU
        segment.spec.placement.CopyFrom(placement)

    return lie


def _energy(gpu: str = _OWN_GPU, since_s: int = 1_700_000_000, **figures: float) -> Lie:
    def lie(target: Target, message: planner_pb2.JoinRequest) -> None:
        found = message.energy.add(gpu_uuid=gpu or target.gpu, method="counter", total_j=1.0)
        for name, value in figures.items():
            setattr(found, name, value)
        found.since.FromSeconds(since_s)

    return lie


def _pue(value: float) -> Lie:
    def lie(_: Target, message: planner_pb2.JoinRequest) -> None:
        message.node.pue = value

    return lie


def _capacity(**figures: float) -> Lie:
    def lie(_: Target, message: planner_pb2.JoinRequest) -> None:
        for name, value in figures.items():
            setattr(message.node.gpus[0].type, name, value)

    return lie


def _memory(_: Target, message: planner_pb2.JoinRequest) -> None:
    for profile in message.node.gpus[0].type.profiles:
        profile.memory_bytes = 2**63


def _many_gpus(_: Target, message: planner_pb2.JoinRequest) -> None:
    gpu = deepcopy(message.node.gpus[0])
    for number in range(2000):
        gpu.uuid = f"GPU-evil-{number}"
        message.node.gpus.append(gpu)


def _term(term: int) -> Lie:
    def lie(_: Target, message: planner_pb2.JoinRequest) -> None:
        message.term = term

    return lie


def _step_result(_: Target, message: planner_pb2.JoinRequest) -> None:
    message.step_result.step_id = "1"
    message.step_result.ok = True


def _drifts(_: Target, message: planner_pb2.JoinRequest) -> None:
    message.drifts.drifts.add(
        model="digits", variant="linear", gpu="a100-40gb", latency_ratio=_NAN, energy_ratio=1e300
    )


def _scale_out(target: Target, message: planner_pb2.JoinRequest) -> None:
    message.scale_out.add(gpu_uuid=target.gpu, models=["digits"] * 1000, reason="\x1b[2J" * 1000)


def _conditions(_: Target, message: planner_pb2.JoinRequest) -> None:
    for number in range(5000):
        message.node.conditions.add(
            kind=number % 50, subject="node/node-0", sentence=f"{number}\x1b[31m" + "x" * 100
        )


def _digest(_: Target, message: planner_pb2.JoinRequest) -> None:
    message.config_digest = "\x00" * 100_000


def _address(_: Target, message: planner_pb2.JoinRequest) -> None:
    message.address = "169.254.169.254:80"


async def while_it_restarts(target: Target) -> str:
    """Claim the GPU of node-0 while its agent is away; it has to have it when it is back."""
    before, honest = await seen(target), await _honest(target)
    os.kill(target.process("gpuagent-node-0"), signal.SIGKILL)
    status = await _joined(target, honest, (_its_gpu,), first=True)

    async def back() -> bool:
        return bool(await target.node()) and await _healed(target)()

    await until(back, _REJOIN_S)
    before.check(await seen(target))
    return status


def lies() -> Iterator[tuple[str, Attack]]:
    """Yield the lies of an agent."""
    yield "GPU: that of node-0", lying(_its_gpu)
    yield "GPU: that of node-0, while its agent restarts", while_it_restarts
    yield "GPUs: 2,000", lying(_many_gpus)
    yield "name: node-0", lying(_its_name)
    yield "name: node-0, later", lying(_its_name, first=False)
    yield "name: unknown", lying(_unknown_name)
    yield "zone: another", lying(_other_zone)
    yield "address: 10.1.2.3", lying(_segment("10.1.2.3:20000"))
    yield "address: 169.254.169.254", lying(_segment("169.254.169.254:80"))
    yield "address: no port, and a path", lying(_segment("/etc/passwd"))
    yield "address of the agent: 169.254.169.254", lying(_address)
    yield "segment: that of node-0, worker of node-0", lying(_segment("", of_another=True))
    yield "energy: NaN", lying(_energy(total_j=_NAN), first=False)
    yield "energy: -1e300 J", lying(_energy(total_j=-1e300), first=False)
    yield "energy: 1e300 J", lying(_energy(total_j=1e300, power_w=_INF), first=False)
    yield "energy: of the GPU of node-0", lying(_energy("", total_j=1e12), first=False)
    yield "clock: account that begins in 2100", lying(_energy(since_s=4_102_444_800), first=False)
    yield "clock: account that began in 1970", lying(_energy(since_s=1, total_j=1e9), first=False)
    yield "PUE: NaN", lying(_pue(_NAN))
    yield "PUE: 1e9", lying(_pue(1e9))
    yield "capacity: memory of 2^63 bytes", lying(_memory)
    yield "capacity: 2^31 multiprocessors", lying(_capacity(sm_count=2**31))
    yield "capacity: -1 W", lying(_capacity(idle_power_w=-1.0))
    yield "term: 2^64 - 1", lying(_term(2**64 - 1))
    yield "term: 2^63 - 2", lying(_term(2**63 - 2))
    yield "result of a step that it was not sent", lying(_step_result, first=False)
    yield "drift: NaN and 1e300", lying(_drifts, first=False)
    yield "scale-out: of another's GPU", lying(_scale_out, first=False)
    yield "conditions: 5,000 with control characters", lying(_conditions)
    yield "version: digest of 100,000 NUL", lying(_digest)
