"""Nodes in virtual time: their agents' actions on GPUs and workers, and their reports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DestroySlice,
    LockClock,
    Segment,
    SegmentSpec,
    SegmentState,
)
from services.gpuagent.core.worker_config import tabulate
from services.kit.config import Deployment, GenerativeRuntime, OpenAiRuntime
from services.kit.config import Node as NodeSettings
from services.kit.mig import WHOLE
from services.kit.profiles.core.language import LanguageProfile
from services.kit.segment import gpus_of
from services.planner.core.fleet import Fleet, Node, NodeGpu
from services.planner.core.model import Model, Variant
from services.planner.core.online_search.measurement import SegmentCounters
from services.planner.core.placement.actions import Action, StartSegment, StopSegment
from services.planner.core.placement.node_groups import UNCUT
from services.router.core.model import InstanceId
from services.simulator.continuous_batching import StepCosts, kv_tokens
from services.simulator.device import Device, gpu_type
from services.simulator.router import Router
from services.simulator.scenario import Scenario, Timing
from services.simulator.stats.sampled_intervals import Meters
from services.simulator.text_worker import TextJob, TextWorker
from services.simulator.timeline import Timeline, Waiting
from services.simulator.worker import Job, Worker


@dataclass(slots=True)
class Running:
    """A segment with its workers."""

    spec: SegmentSpec
    workers: tuple[Worker | TextWorker, ...]
    state: SegmentState = SegmentState.READY

    def report(self) -> Segment:
        """Return the segment as its agent reports it."""
        endpoints = tuple(worker.job.instance.endpoint for worker in self.workers)
        return Segment(self.spec, self.state, endpoints)


class Nodes:
    """All nodes.

    Attributes:
        devices: GPUs by UUID.
    """

    def __init__(
        self,
        deployment: Deployment,
        models: tuple[Model, ...],
        timeline: Timeline,
        router: Router,
        scenario: Scenario,
    ) -> None:
        parks = deployment.planner.objective.park_idle_gpus
        self.devices = {each.uuid: each for each in _devices(deployment.nodes, parks=parks)}
        self._nodes = deployment.nodes
        self._models = deployment.models
        self._variants = {(m.name, v.name): v for m in models for v in m.variants}
        self._time = timeline
        self._router = router
        self._link_s = scenario.timing.link_s
        self._slowdown = scenario.slowdown
        self._segments: dict[str, Running] = {}

    # ---- state ---------------------------------------------------------------------------------

    def report(self, name: str, fleet: Fleet) -> None:
        """Report a node's GPUs and segments, as its agent does after each change."""
        gpus = [device for device in self.devices.values() if device.node == name]
        uuids = {gpu.uuid for gpu in gpus}
        segments = (s for s in self._segments.values() if s.spec.gpu_uuid in uuids)
        node = Node(
            name=name,
            zone=self._nodes[name].zone,
            gpus=tuple(
                NodeGpu(gpu.uuid, gpu.type, tuple(sorted(gpu.slices)), gpu.clock_mhz)
                for gpu in gpus
            ),
            segments=tuple(segment.report() for segment in segments),
        )
        fleet.report(node, self._time.env.now)

    def meters(self) -> Meters:
        """Read every meter."""
        idle_j: dict[str, float] = {}
        active_j: dict[tuple[str, str], float] = {}
        for device in self.devices.values():
            node = device.node
            idle_j[node] = idle_j.get(node, 0.0) + device.idle_j(self._time.env.now)
            for model, used_j in device.active_j(self._time.now_s).items():
                active_j[node, model] = active_j.get((node, model), 0.0) + used_j
        return Meters(idle_j, active_j)

    def counters(self) -> Mapping[str, Mapping[str, SegmentCounters]]:
        """Return the counters of each segment since it began, by node and segment id."""
        found: dict[str, dict[str, SegmentCounters]] = {}
        for name, segment in self._segments.items():
            ledgers = [worker.ledger for worker in segment.workers]
            found.setdefault(self.devices[segment.spec.gpu_uuid].node, {})[name] = SegmentCounters(
                requests=sum(each.requests for each in ledgers),
                batches=sum(each.batches for each in ledgers),
                busy_s=sum(each.busy_s for each in ledgers),
                energy_j=sum(each.active_j for each in ledgers),
            )
        return found

    # ---- steps ---------------------------------------------------------------------------------

    def perform(self, action: Action, grace_s: float, timing: Timing) -> Waiting:
        """Carry out a step, in the time that it takes.

        Args:
            action: The step.
            grace_s: Time for accepted requests when a segment stops, s.
            timing: Durations of steps.
        """
        wait = self._time.env.timeout
        match action:
            case CreateSlice(gpu_uuid, placement):
                yield wait(timing.create_slice_s)
                self.devices[gpu_uuid].create(placement)
            case DestroySlice(gpu_uuid, placement):
                yield wait(timing.destroy_slice_s)
                self.devices[gpu_uuid].destroy(placement)
            case LockClock(gpu_uuid, clock_mhz):
                yield wait(timing.lock_clock_s)
                self.devices[gpu_uuid].lock_clock(clock_mhz)
            case StartSegment(segment):
                spec = segment.spec
                variant = self._variants[spec.model, spec.variant]
                yield wait(timing.start_worker_s and timing.start_worker_s + variant.load_s)
                self._start(spec, variant)
            case StopSegment(segment_id):
                yield from self._stop(segment_id, grace_s, timing)

    def _start(self, spec: SegmentSpec, variant: Variant) -> None:
        device = self.devices[spec.gpu_uuid]
        workers = tuple(self._workers(spec, variant, device))
        for worker in workers:
            worker.peers = workers  # type: ignore[assignment] # all are of one kind
            self._router.workers[worker.job.instance] = worker
            self._time.env.process(worker.run())
        for uuid in gpus_of(spec):
            self.devices[uuid].join(workers, self._time.env.now, len(gpus_of(spec)))
        self._segments[spec.segment_id] = Running(spec, workers)

    def _workers(
        self, spec: SegmentSpec, variant: Variant, device: Device
    ) -> Iterator[Worker | TextWorker]:
        runtime = self._models[spec.model].variants[spec.variant].runtime
        slice_kind = device.type.geometry.kind(spec.placement.profile)
        shape = device.type.shape(slice_kind, len(gpus_of(spec)))
        slowdown = self._slowdown.get(spec.model, 1.0)
        ids = [
            InstanceId(f"{spec.segment_id}.{number}", spec.segment_id)
            for number in range(spec.processes)
        ]
        results, link_s, profile = self._router.results, self._link_s, variant.profile
        if not isinstance(runtime, OpenAiRuntime | GenerativeRuntime):
            # Agents draw the same table for their workers.
            costs = tabulate(profile, shape, spec).scaled(slowdown)
            for instance in ids:
                job = Job(instance, spec.model, spec.batch_size, costs)
                yield Worker(job, device, self._time, results, link_s)
            return
        if not isinstance(profile, LanguageProfile):
            raise TypeError(f"{spec.variant} has no language profile")  # `supported` refuses it
        steps = StepCosts(profile, shape, slowdown)
        fits = kv_tokens(profile, shape, spec.processes)
        slots = runtime.slots or spec.batch_size
        for instance in ids:
            text = TextJob(instance, spec.model, slots, steps, fits, runtime.context_tokens)
            lengths = self._router.text_lengths
            yield TextWorker(text, device, self._time, results, lengths, link_s)

    def _stop(self, segment_id: str, grace_s: float, timing: Timing) -> Waiting:
        """Stop a segment's workers once their requests end; after its grace these are lost."""
        env, running = self._time.env, self._segments[segment_id]
        running.state = SegmentState.DRAINING
        idle = env.all_of([self._router.closed(worker.job.instance) for worker in running.workers])
        yield idle | env.timeout(grace_s)
        for worker in running.workers:
            self._router.broken(worker.job.instance)
            self._router.workers.pop(worker.job.instance)
        yield env.timeout(timing.stop_worker_s)
        for uuid in gpus_of(running.spec):
            self.devices[uuid].leave(running.workers, env.now)
        del self._segments[segment_id]


def _devices(nodes: Mapping[str, NodeSettings], *, parks: bool) -> Iterator[Device]:
    for name, node in nodes.items():
        for index, kind in enumerate(node.simulated or ()):
            whole = node.allow_mig_mode is False
            found = gpu_type(kind, whole=whole)
            uncut = [UNCUT for each in found.geometry.kinds if each.name == WHOLE]
            yield Device(f"GPU-{name}-{index}", name, found, parks, frozenset(uncut))
