"""Differences between two profiles, and the grid that the command line requests."""

from dataclasses import replace

import pytest

from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu
from services.cli.profile.compare import differences
from services.cli.profile.request import Request, chosen_gpus, grid
from services.kit.config import Planner
from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Measurement

ROWS = [
    Measurement("t4", "whole", size, 1, latency_s=0.1 * size, energy_j=1.0 * size, batches=9)
    for size in (1, 2, 4)
]


def test_equal_tables_do_not_differ() -> None:
    assert differences(ROWS, ROWS, 0.0) == []


def test_only_points_beyond_the_tolerance_are_shown() -> None:
    """Slower, leaner, missing and not running any more; 4 % slower is within 5 %."""
    other = [
        replace(ROWS[0], latency_s=0.104),
        replace(ROWS[1], latency_s=0.4, energy_j=1.0),
        replace(ROWS[2], latency_s=0.0),
        replace(ROWS[0], batch_size=8),
    ]
    found = differences(ROWS, other, 0.05)

    assert [(each.at.batch_size, each.latencies_s) for each in found] == [
        (2, (0.2, 0.4)),
        (4, (0.4, 0.0)),
        (8, (None, 0.1)),
    ]
    assert (found[0].latency_ratio, found[0].energy_ratio) == (2.0, 0.5)
    assert (found[1].latency_ratio, found[2].latency_ratio) == (None, None)


GPU = Gpu(uuid="GPU-1", clock_lockable=True)
GPU.type.name, GPU.type.max_clock_mhz = "t4", 1000
GPU.type.profiles.add(name="whole", starts=[0])


def test_options_left_out_are_the_planners_own() -> None:
    planner = Planner(batch_sizes=(1, 8), max_processes=2, clock_ratios=(1.0, 0.7))
    found = grid(Request(("m",)), planner, GPU)
    assert (found.profiles, found.batch_sizes) == (("whole",), (1, 8))
    assert (found.processes, found.clocks_mhz) == ((1, 2), (0, 700))


def test_clocks_that_cannot_be_held_are_refused_only_on_request() -> None:
    fixed = Gpu()
    fixed.CopyFrom(GPU)
    fixed.clock_lockable = False
    planner = Planner(clock_ratios=(1.0, 0.7))
    assert grid(Request(("m",)), planner, fixed).clocks_mhz == (0,)
    with pytest.raises(InvalidArgument, match="allow_clocks"):
        grid(Request(("m",), clock_ratios=(0.5,)), planner, fixed)
    with pytest.raises(InvalidArgument, match=r"in \(0, 1\]"):
        grid(Request(("m",), clock_ratios=(1.5,)), planner, GPU)


def test_of_several_gpus_one_must_be_named() -> None:
    assert chosen_gpus("", [GPU], 1) == ("GPU-1",)
    assert chosen_gpus("GPU-2", [GPU, GPU], 1) == ("GPU-2",)
    with pytest.raises(InvalidArgument, match="--gpu: say which"):
        chosen_gpus("", [GPU, GPU], 1)


def test_a_model_on_several_gpus_is_measured_on_as_many_whole_ones_of_a_type() -> None:
    """All of the node, or as many as named; nothing is guessed."""
    first, second, other = (Gpu(uuid=f"GPU-{number}") for number in range(3))
    for gpu in (first, second):
        gpu.type.name = "h100-80gb"
    other.type.name = "t4"

    assert chosen_gpus("", [first, second], 2) == ("GPU-0", "GPU-1")
    assert chosen_gpus("GPU-1,GPU-0", [first, second, other], 2) == ("GPU-1", "GPU-0")
    for named in ("", "GPU-0", "GPU-0,GPU-0"):
        with pytest.raises(InvalidArgument, match="--gpu: say which 2 GPUs"):
            chosen_gpus(named, [first, second, other], 2)
    with pytest.raises(InvalidArgument, match="of one type"):
        chosen_gpus("GPU-0,GPU-2", [first, second, other], 2)
    second.mig_enabled = True
    with pytest.raises(InvalidArgument, match="GPU-1 in MIG mode"):
        chosen_gpus("", [first, second], 2)
