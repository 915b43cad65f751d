"""Pipelines on shared devices in virtual time, and the groups that they lead to."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.muserve.planning import groups, tuning
from benchmarks.muserve.planning.clocking import V100
from benchmarks.muserve.planning.deployment import Method, deploy
from benchmarks.muserve.planning.model import Device, Partition, Served
from benchmarks.muserve.planning.pipelines import Job, Pipeline, Simulation, Stage, pipeline
from services.kit.errors import FailedPrecondition
from tests.support.examples import examples

GB = 10**9
DEVICES = tuple(Device(f"gpu-{number}", 16 * GB) for number in range(4))


def model(name: str, latency_s: float, sensitivity: float, *, slo_scale: float = 4.0) -> Served:
    partitions = tuple(Partition(name, i, GB, latency_s / 4, sensitivity, 1e-4) for i in range(4))
    return Served(name, partitions, 0.5, slo_scale * latency_s)


MODELS = (
    model("seeing", 0.05, 1.0),
    model("reading", 0.2, 0.9),
    model("short talk", 0.4, 0.3),
    model("long talk", 1.2, 0.3),
)


def poisson(rate_rps: float, count: int, seed: int = 0) -> list[Job]:
    """Requests to all models in turn."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate_rps, count)).tolist()
    return [Job(at, MODELS[number % 4].name) for number, at in enumerate(at_s)]


def served(pipelines: list[Pipeline], jobs: list[Job], clock: float = 1.0) -> Simulation:
    names = {stage.device for each in pipelines for stage in each.stages}
    simulation = Simulation(pipelines, sorted(names))
    for name in names:
        simulation.set_clock(name, clock)
    simulation.run(jobs)
    return simulation


def test_alone_a_request_takes_the_sum_of_its_stages_and_transfers() -> None:
    one = Pipeline("m", (Stage("a", 0.3, transfer_s=0.01), Stage("b", 0.2)))
    (answer,) = served([one], [Job(1.0, "m", size=2.0)]).answers
    assert answer.latency_s == pytest.approx(2 * 0.5 + 0.01)


def test_two_models_on_one_device_share_it_evenly() -> None:
    """0.2 s and 0.5 s of work at once: the short one ends at 0.4 s, the long one at 0.7 s."""
    both = [Pipeline("m", (Stage("a", 0.2),)), Pipeline("n", (Stage("a", 0.5),))]
    simulation = served(both, [Job(0.0, "m"), Job(0.0, "n")])
    assert [each.latency_s for each in simulation.answers] == pytest.approx([0.4, 0.7])
    assert simulation.devices["a"].busy_s == pytest.approx(0.7)


def test_a_stage_serves_one_request_at_a_time_in_order_of_rank() -> None:
    jobs = [Job(0.0, "m"), Job(0.1, "m", rank=5.0), Job(0.2, "m", rank=1.0)]
    simulation = served([Pipeline("m", (Stage("a", 1.0),))], jobs)
    assert [each.latency_s for each in simulation.answers] == pytest.approx([1.0, 1.8, 2.9])


def test_a_lower_clock_stretches_work_by_its_sensitivity_and_cuts_power() -> None:
    """A clock that changes half way counts from then on."""
    simulation = Simulation([Pipeline("m", (Stage("a", 1.0, sensitivity=0.5),))], ["a"])
    simulation.run(
        [Job(0.0, "m")], every_s=0.5, until_s=0.5, look=lambda each: each.set_clock("a", 0.6)
    )
    (answer,) = simulation.answers
    later_s = 0.5 * V100.stretch(0.5, 0.6)
    assert answer.latency_s == pytest.approx(0.5 + later_s)
    assert simulation.devices["a"].power_s == pytest.approx(0.5 + later_s * V100.power_ratio(0.6))


def test_neighbours_on_one_device_become_one_stage_without_transfer() -> None:
    parts = MODELS[0].partitions
    where = dict(zip(parts, (DEVICES[0], DEVICES[0], DEVICES[1], DEVICES[0]), strict=True))
    stages = pipeline(MODELS[0], where).stages
    assert [each.device for each in stages] == ["gpu-0", "gpu-1", "gpu-0"]
    assert [each.transfer_s for each in stages] == [1e-4, 1e-4, 0.0]
    assert sum(each.latency_s for each in stages) == pytest.approx(0.05)


@examples(0.5)
@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 3)), min_size=1, max_size=40),
    st.sampled_from([1, 2, 4]),
    st.floats(0.3, 1.0),
)
def test_every_request_is_answered_once_and_work_is_conserved(
    drawn: list[tuple[float, int]], size: int, clock: float
) -> None:
    """Whatever groups and clock: devices are busy for just the work there was, stretched."""
    jobs = [Job(at_s, MODELS[which].name) for at_s, which in sorted(drawn)]
    cut = [replace(g, models=tuple(m.name for m in MODELS)) for g in groups.cut(DEVICES, size)]
    running = groups.pipelines(MODELS, cut[:1])
    simulation = served(running, jobs, clock)
    assert len(simulation.answers) == len(jobs)
    work_s = {
        m.name: m.latency_s * V100.stretch(m.partitions[0].sensitivity, clock) for m in MODELS
    }
    shared = sum(device.busy_s for device in simulation.devices.values())
    assert shared <= sum(work_s[job.model] for job in jobs) + 1e-6
    for answer in simulation.answers:
        assert answer.latency_s >= work_s[answer.model] - 1e-9


def test_every_model_is_served_and_more_instances_come_where_requests_are_late() -> None:
    """At four times the load that one instance of each can bear, the search adds instances."""
    easy = groups.choose(MODELS, DEVICES, poisson(1.0, 200), (1,))
    hard = groups.choose(MODELS, DEVICES, poisson(6.0, 600), (1,))
    assert easy.complete
    assert easy.attainment > 0.98
    assert sum(hard.instances(m.name) for m in MODELS) > sum(easy.instances(m.name) for m in MODELS)


def test_a_model_that_no_group_has_memory_for_is_reported() -> None:
    huge = replace(MODELS[0], partitions=(Partition("seeing", 0, 40 * GB, 1.0),))
    assert not groups.choose((huge,), DEVICES, poisson(1.0, 8)).complete
    with pytest.raises(FailedPrecondition, match="memory"):
        tuning.tune((huge,), DEVICES, poisson(1.0, 8))


@pytest.mark.parametrize("method", ["alpaserve", "muserve", "exact"])
def test_a_deployment_hosts_every_model_of_every_group(method: Method) -> None:
    grouping = groups.choose(MODELS, DEVICES, poisson(1.0, 200), (2,))
    found = deploy(MODELS, grouping, method)
    wanted = sorted(name for group in grouping.groups for name in group.models)
    assert sorted(each.model for each in found.pipelines) == wanted
    assert found.clock_ratios.keys() == {device.name for device in DEVICES}


def test_what_is_tuned_keeps_the_sample_in_time_with_less_energy_than_full_clocks() -> None:
    """The clocks that it plans hold on the sample; the full clocks of the same groups cost more."""
    sample = poisson(1.0, 400)
    deployment = tuning.tune(MODELS, DEVICES, sample)
    planned = tuning.judge(MODELS, deployment, sample)
    full = replace(deployment, clock_ratios=dict.fromkeys(deployment.clock_ratios, 1.0))
    assert planned.p99_over_slo <= tuning.MARGIN
    assert planned.energy_s < 0.85 * tuning.judge(MODELS, full, sample).energy_s


def test_where_nothing_is_in_time_clocks_stay_at_the_highest() -> None:
    tight = tuple(replace(each, slo_s=0.5 * each.latency_s) for each in MODELS)
    deployment = tuning.tune(tight, DEVICES, poisson(1.0, 200))
    assert set(deployment.clock_ratios.values()) == {1.0}
