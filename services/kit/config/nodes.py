"""Machines with GPUs, and the agents on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from services.kit.config.section import (
    Address,
    ClockRatio,
    Endpoint,
    Name,
    NonNegative,
    Positive,
    Section,
)

CoreId = Annotated[int, Field(ge=0)]


def _yaml_off(value: object) -> object:
    """To YAML 1.1, off without quotes is false."""
    return "off" if value is False else value


class Workers(Section):
    """What a node's worker processes may take and do before they are started again, or given up.

    Attributes:
        load_timeout_s: Time from a worker's start to its first answer, s.
        memory_limit_mib: Resident memory of a worker, with what it starts, MiB. None: no bound.
        max_failures: Failures within `failure_window_s` after which a worker is not started again
            until a new plan, or an operator, asks for its segment.
        failure_window_s: How long a failure counts, s.
    """

    load_timeout_s: Positive = 60.0
    memory_limit_mib: Positive | None = None
    max_failures: Annotated[int, Field(ge=1)] = 5
    failure_window_s: Positive = 600.0


class Mps(Section):
    """CUDA MPS: lets several processes compute on one slice at the same time.

    Attributes:
        control_binary: NVIDIA's control program, by path or by name.
        check_interval_s: How often a control daemon is asked whether it lives, s.
        timeout_s: Time a control daemon has to answer, s.
    """

    control_binary: Path = Path("nvidia-cuda-mps-control")
    check_interval_s: Positive = 5.0
    timeout_s: Positive = 10.0


class Cpu(Section):
    """The machine's cores as a device: slices are sets of cores. No simulation, no GPU.

    Energy is RAPL's where the agent may read it, of all that runs on the machine; else modelled as
    `idle_w` and `core_w` for every busy core, and labelled so.

    Attributes:
        cores: How many, the first that the agent may run on; or which, by number.
        idle_w: Power with nothing running, W. None: 0.74 W per core, an assumption for servers.
        core_w: Power that a busy core adds, W; its default is an assumption, too.
    """

    cores: Annotated[int, Field(ge=1)] | Annotated[tuple[CoreId, ...], Field(min_length=1)]
    idle_w: NonNegative | None = None
    core_w: Positive = 2.76

    @model_validator(mode="after")
    def _each_core_once(self) -> Cpu:
        if isinstance(self.cores, tuple) and len(set(self.cores)) < len(self.cores):
            raise ValueError(f"cores: each core once, got {list(self.cores)}")
        return self


class Node(Endpoint):
    """A machine with GPUs, or with cores to serve on, and the agent on it.

    Attributes:
        listen: Where the agent listens.
        zone: Electricity zone, a key of carbon.zones.
        simulated: GPU types to simulate, for example ["a100-40gb", "a100-40gb"]. None: real GPUs.
        cpu: Offer cores instead of GPUs; for both, describe two nodes.
        gpus: UUIDs the agent may touch. None: all of the node's.
        control: The agent may change the node: slices, segments, clocks. None: yes where GPUs are
            simulated, and of cores; of real GPUs it reads inventory and energy only
            (docs/rights.md).
        pue: Power usage effectiveness: wall energy per device energy.
        state_dir: Journal, meters and (simulated) hardware state.
        worker_host: Address workers bind and routers dial.
        allow_mig_mode: The agent may enable MIG mode on an idle GPU.
        allow_clocks: The agent may hold SM clocks (simulated GPUs: it always may).
        clock_loop: "miad": the agent lowers SM clocks for as long as requests stay in time, below
            what the plan says; it must be allowed to hold clocks. "off": plans alone set clocks.
        clock_floor: Least clock of that loop over a GPU's highest. From a half, one doubling
            reaches the top. The loop keeps above the clock at which work takes the least energy
            anyway.
        orphan_timeout_s: Workers end themselves when no agent looked after them for so long, s.
        workers: Bounds of worker processes.
        idle_share: How agents tell idle energy by segment, beside their active energy: "by_slice":
            by the SMs that a segment's slice holds; "by_busy": by activity; "none": not at all.
        mps: How several processes share a slice. None: CUDA MPS as it comes with the driver, for
            real GPUs; simulated ones share without.
    """

    listen: Address = "127.0.0.1:8463"
    zone: Name
    simulated: tuple[Name, ...] | None = None
    cpu: Cpu | None = None
    gpus: tuple[str, ...] | None = None
    control: bool | None = None
    pue: Annotated[float, Field(ge=1)] = 1.0
    state_dir: Path = Path("out/state")
    worker_host: str = "127.0.0.1"
    allow_mig_mode: bool = False
    allow_clocks: bool = False
    clock_loop: Annotated[Literal["off", "miad"], BeforeValidator(_yaml_off)] = "off"
    clock_floor: ClockRatio = 0.5
    orphan_timeout_s: Positive = 60.0
    workers: Workers = Workers()
    idle_share: Literal["none", "by_slice", "by_busy"] = "none"
    mps: Mps | None = None

    @property
    def controlled(self) -> bool:
        """Whether the agent may change the node."""
        if self.control is not None:
            return self.control
        return self.simulated is not None or self.cpu is not None

    @property
    def may_hold_clocks(self) -> bool:
        """Whether the agent may hold SM clocks."""
        return self.controlled and (self.simulated is not None or self.allow_clocks)

    @model_validator(mode="after")
    def _cores_or_gpus(self) -> Node:
        of_gpus = ("simulated", "gpus", "mps", "allow_mig_mode", "allow_clocks")
        given = [name for name in of_gpus if getattr(self, name) not in (None, False)]
        if self.cpu is not None and given:
            raise ValueError(f"cpu: the node offers cores, and {given[0]} is of GPUs")
        return self

    @model_validator(mode="after")
    def _loop_may_hold_clocks(self) -> Node:
        if self.clock_loop != "off" and not self.may_hold_clocks:
            raise ValueError(
                f"clock_loop: {self.clock_loop!r} holds clocks; the agent of real GPUs may where "
                "control and allow_clocks are true"
            )
        return self
