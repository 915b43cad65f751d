"""A mix of real ONNX networks: the light models inside PyPI's `onnx`, MiniLM, the demo's family.

`services.planner.core.partitioning` cuts each into as many of four stages as its legal cuts allow.
Times and sensitivities are the V100's roofline. A request is 512 items in batches of 8: thousands
of short requests a second would give the same results, and take hours to simulate.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from benchmarks.harness import Row
from benchmarks.muserve import arrivals, mix
from benchmarks.muserve.planning.cut_networks import partitions
from benchmarks.muserve.planning.model import Partition, Served
from benchmarks.muserve.planning.pipelines import Job
from benchmarks.muserve.replay import POLICIES, Policy, Span
from benchmarks.muserve.study import SAMPLE, Study, compared
from benchmarks.partitioning import GPU, SIZES, everything
from services.kit.errors import FailedPrecondition
from services.kit.operators.onnx_reader import read
from services.planner.core.partitioning.partition import PartitionRequest, partition

BATCHES: Final = 64
STAGES: Final = (4, 3, 2, 1)
PCIE_BYTES_PER_S: Final = 12e9
DEVICES: Final = 4
LOAD: Final = 0.3
"""Share of the devices' time that the networks keep busy at the highest clock."""

TRACE: Final = "azure"
POLICIES_HERE: Final = tuple(each for each in POLICIES if each.name != "alpaserve_sched")

Networks = tuple[tuple[Partition, ...], ...]


def names(*, quick: bool) -> tuple[str, ...]:
    """Return the networks; quick: some that are read in a second."""
    if quick:
        return ("squeezenet", "shufflenet", "inception_v1", "conv-128")
    return tuple(everything())


def cut(name: str) -> tuple[Partition, ...]:
    """Return a network's stages."""
    graph = read(everything()[name](), name, SIZES)
    costs = [GPU.cost(each) for each in graph.operators]
    for stages in STAGES[:-1]:
        try:
            found = partition(graph, costs, PartitionRequest(stages))
        except FailedPrecondition:
            continue
        break
    else:
        found = partition(graph, costs, PartitionRequest(STAGES[-1]))
    return partitions(found, batches=BATCHES, link_bytes_per_s=PCIE_BYTES_PER_S)


def described(networks: Networks) -> list[Row]:
    """Return one row per network."""
    return [
        {
            "network": stages[0].model,
            "request_ms": sum(each.latency_s for each in stages) * 1e3,
            "memory_mib": sum(each.memory_bytes for each in stages) / 2**20,
            "sensitivities": " ".join(f"{each.sensitivity:.2f}" for each in stages),
        }
        for stages in networks
    ]


def rows_of(networks: Networks, slo_scale: float, span: Span) -> list[Row]:
    """Return one row per policy on four V100s; ratios are over AlpaServe's power."""
    mean_s = sum(each.latency_s for stages in networks for each in stages) / len(networks)
    rate_rps = LOAD * DEVICES / mean_s
    models = tuple(_served(stages, slo_scale, rate_rps / len(networks)) for stages in networks)
    known = [model.name for model in models]

    def jobs(since: int, length_s: float) -> list[Job]:
        return arrivals.dealt(known, TRACE, rate_rps, since, length_s)

    study = Study(models, mix.devices(DEVICES), jobs(0, SAMPLE / rate_rps), span)
    sample = jobs(SAMPLE, span.length_s)
    setting: Row = {"networks": len(networks), "slo_scale": slo_scale, "rate_rps": rate_rps}
    return compared(study, setting, _in_order(POLICIES_HERE), lambda _: sample)


def _in_order(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return first-come, first-served policies: they need no predicted lengths."""
    return tuple(replace(each, shortest_first=False) for each in policies)


def _served(stages: tuple[Partition, ...], slo_scale: float, rate_rps: float) -> Served:
    alone_s = sum(each.latency_s + each.transfer_s for each in stages)
    return Served(stages[0].model, stages, rate_rps, slo_scale * alone_s)
