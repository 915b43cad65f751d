"""Groups and clocks that a simulation of recent requests bears out.

mu-Serve maximises attainment first and leaves clocks to the loop at run time, which must see
requests come late before it knows how low is too low. Here groups of every size are tried on a
sample of requests, and clocks between the highest and the lowest that objectives alone would allow;
of all that keep the sample in time the one with the least energy wins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.muserve.planning import groups
from benchmarks.muserve.planning.deployment import Deployment, deploy
from benchmarks.muserve.planning.model import Device, Served
from benchmarks.muserve.planning.pipelines import Job, Simulation
from services.kit.errors import FailedPrecondition

WAITINGS: Final = (0.0, 0.5)
"""Shares of the objectives that may be left for waiting; they decide which partitions are alike."""

DROPS: Final = (1.0, 0.8, 0.6, 0.4, 0.2)
"""Drops of the clocks over the largest allowed: the first with the sample in time is taken."""

PERCENTILE: Final = 99.0
MARGIN: Final = 0.85
"""The sample's percentile may take this share of the objective: the future is not the sample."""

TIME_LIMIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Judged:
    """Figures of a sample for a deployment at its planned clocks.

    Attributes:
        deployment: The deployment.
        p99_over_slo: The percentile of all requests' latencies over their objectives.
        energy_s: Active energy, in s of one device at full power.
    """

    deployment: Deployment
    p99_over_slo: float
    energy_s: float


def tune(models: Sequence[Served], devices: Sequence[Device], sample: Sequence[Job]) -> Deployment:
    """Return the deployment of least energy that keeps the sample's requests in time.

    Where none does, the one that comes nearest, at the highest clocks.

    Args:
        models: The models to serve.
        devices: Alike.
        sample: Recent requests, at least a few hundred.

    Raises:
        FailedPrecondition: The devices have no memory for all models.
    """
    found = [
        lowered(models, candidate, sample) for candidate in _candidates(models, devices, sample)
    ]
    if not found:
        raise FailedPrecondition("the devices have no memory for all models")
    in_time = [each for each in found if each.p99_over_slo <= MARGIN]
    if in_time:
        return min(in_time, key=lambda each: each.energy_s).deployment
    return min(found, key=lambda each: each.p99_over_slo).deployment


def lowered(models: Sequence[Served], deployment: Deployment, sample: Sequence[Job]) -> Judged:
    """Return a deployment at the lowest clocks that keep a sample in time; else at the highest."""
    for drop in DROPS:
        judged = judge(models, _dropped(deployment, drop), sample)
        if judged.p99_over_slo <= MARGIN:
            return judged
    return judge(models, _dropped(deployment, 0.0), sample)


def judge(models: Sequence[Served], deployment: Deployment, sample: Sequence[Job]) -> Judged:
    """Serve a sample at the planned clocks."""
    simulation = Simulation(deployment.pipelines, deployment.clock_ratios)
    for name, ratio in deployment.clock_ratios.items():
        simulation.set_clock(name, ratio)
    simulation.run(sample)
    slos_s = {model.name: model.slo_s for model in models}
    late = [answer.latency_s / slos_s[answer.model] for answer in simulation.answers]
    energy_s = sum(device.power_s for device in simulation.devices.values())
    return Judged(deployment, float(np.percentile(late, PERCENTILE)), energy_s)


def _candidates(
    models: Sequence[Served], devices: Sequence[Device], sample: Sequence[Job]
) -> Iterator[Deployment]:
    for size in groups.SIZES:
        grouping = groups.choose(models, devices, sample, (min(size, len(devices)),))
        for waiting in WAITINGS if grouping.complete else ():
            yield deploy(models, grouping, "exact", waiting=waiting, time_limit_s=TIME_LIMIT_S)


def _dropped(deployment: Deployment, drop: float) -> Deployment:
    ratios = {name: 1.0 - drop * (1.0 - low) for name, low in deployment.clock_ratios.items()}
    return replace(deployment, clock_ratios=ratios)
