"""Machines with GPUs, and the agents on them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from services.kit.config.access import Principal
from services.kit.config.section import (
    Address,
    ClockRatio,
    Endpoint,
    Name,
    NonNegative,
    Positive,
    Section,
)
from services.kit.net import matches, split_address

CoreId = Annotated[int, Field(ge=0)]


def _network(given: str) -> str:
    """Return a network in CIDR as it was given.

    Raises:
        ValueError: It is none.
    """
    return str(ipaddress.ip_network(given))


Network = Annotated[str, AfterValidator(_network)]


def _yaml_off(value: object) -> object:
    """Return "off" for false: YAML 1.1 reads unquoted off as false."""
    return "off" if value is False else value


class Workers(Section):
    """Limits of a node's worker processes.

    Attributes:
        load_timeout_s: Time from a worker's start to its first answer, s.
        memory_limit_mib: Resident memory of a worker and its children, MiB. None: no limit.
        max_failures: Failures within `failure_window_s` after which a worker is not restarted until
            a new plan or an operator requests its segment.
        failure_window_s: Time for which a failure counts, s.
    """

    load_timeout_s: Positive = 60.0
    memory_limit_mib: Positive | None = None
    max_failures: Annotated[int, Field(ge=1)] = 5
    failure_window_s: Positive = 600.0


class Mps(Section):
    """CUDA MPS: lets several processes compute on one slice at the same time.

    Attributes:
        control_binary: NVIDIA's control program, path or name.
        check_interval_s: Interval of the health checks of a control daemon, s.
        timeout_s: Timeout of a control daemon's answer, s.
    """

    control_binary: Path = Path("nvidia-cuda-mps-control")
    check_interval_s: Positive = 5.0
    timeout_s: Positive = 10.0


class Cpu(Section):
    """The machine's cores as a device: slices are sets of cores. No simulation, no GPU.

    Energy is RAPL's where the agent may read it, of all that runs on the machine; else modelled as
    `idle_w` and `core_w` for every busy core, and labelled so.

    Attributes:
        cores: Number of cores, or the numbers of the cores.
        idle_w: Idle power, W. None: 0.74 W per core, an assumption for servers.
        core_w: Power that a busy core adds, W; its default is an assumption, too.
    """

    cores: Annotated[int, Field(ge=1)] | Annotated[tuple[CoreId, ...], Field(min_length=1)]
    idle_w: NonNegative | None = None
    core_w: Positive = 2.76

    def _problems(self) -> Iterator[str]:
        if isinstance(self.cores, tuple) and len(set(self.cores)) < len(self.cores):
            yield f"cores: each core once, got {list(self.cores)}"


def _maker(value: Any) -> Any:
    if isinstance(value, str) and value.lower() not in {"nvidia", "amd"}:
        raise ValueError("must be nvidia or amd: GPUs of Intel, and TPUs, are not served")
    return value


class SteeredServer(Section):
    """A server that others run, whose GPUs' clocks may be lowered while its objectives hold.

    Attributes:
        model: Name under which the server serves, as its metrics have it.
        ttft_s, tpot_s, latency_s: Objectives of the first token, of the time between tokens and of
            whole answers, s; at least one.
        percentile: Share of the requests, or tokens, that must be in time, percent.
    """

    model: Annotated[str, Field(min_length=1, max_length=200)]
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    latency_s: Positive | None = None
    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95.0

    def _problems(self) -> Iterator[str]:
        if self.ttft_s is None and self.tpot_s is None and self.latency_s is None:
            yield "ttft_s, tpot_s or latency_s: at least one is required"


class Node(Endpoint):
    """A machine with GPUs, or with CPU cores that serve, and its agent.

    Attributes:
        listen: Address of the agent.
        zone: Electricity zone, a key of carbon.zones.
        simulated: GPU types to simulate, for example ["a100-40gb", "a100-40gb"]. None: real GPUs.
        maker: Whose driver the GPUs have: nvidia or amd (whole GPUs only). None: that of the
            simulated types, else nvidia.
        cpu: Offer cores instead of GPUs; for both, describe two nodes.
        gpus: UUIDs of the GPUs that the agent manages. None: all of the node's.
        control: Whether the agent may change slices, segments and clocks. None: yes for simulated
            GPUs and cores; of real GPUs it only reads inventory and energy (docs/rights.md).
        observe: Whether the agent also reports energy of processes that it did not start, and of
            their servers by their metrics (docs/observe.md). None: of real GPUs without control.
        pue: Power usage effectiveness: wall energy per device energy.
        state_dir: Journal, meters and (simulated) hardware state.
        worker_host: Address that workers bind and routers connect to.
        worker_user: User that workers run as, by name or number, where the agent is root: it must
            be able to read models and the workers' certificates. None: the agent's.
        allow_mig_mode: Whether the agent may enable MIG mode on an idle GPU. None: of simulated
            ones. False: these stay whole, as segments on several GPUs need them.
        allow_clocks: Whether the agent may lock SM clocks (always for simulated GPUs).
        allow_power_limits: Whether the agent may set GPUs' power limits, where lower clocks do not
            keep a site's power budget (always for simulated GPUs); they are given back.
        clock_loop: "miad": the agent lowers SM clocks below the plan's while requests meet the
            SLO; it must be allowed to lock clocks. "off": only plans set clocks.
        steer_clocks: Servers that others run on a node without control, whose GPUs' clocks the
            agent may lower while their metrics keep these objectives (docs/beside.md); needs
            allow_clocks, and is bounded by clock_floor.
        clock_floor: Minimum clock of that loop over a GPU's highest. From a half, one doubling
            reaches the top. The loop stays above the clock of the least energy in any case.
        orphan_timeout_s: Time without an agent after which workers end themselves, s.
        leave_timeout_s: Time that the planner has, after SIGTERM, to move what runs here to other
            nodes before the agent stops it, s, also where another planner must take over first;
            0: it is stopped at once.
        workers: Limits of worker processes.
        idle_share: How idle energy is reported by segment, beside active energy: "by_slice": by
            the SMs of its slice; "by_busy": by activity; "none": not at all.
        mps: How several processes share a slice. None: CUDA MPS of the driver on real GPUs;
            simulated ones need none.
    """

    listen: Address = "127.0.0.1:8463"
    zone: Name
    simulated: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    maker: Annotated[Literal["nvidia", "amd"] | None, BeforeValidator(_maker)] = None
    cpu: Cpu | None = None
    gpus: tuple[str, ...] | None = None
    control: bool | None = None
    observe: bool | None = None
    pue: Annotated[float, Field(ge=1)] = 1.0
    state_dir: Path = Path("out/state")
    worker_host: str = "127.0.0.1"
    worker_user: Annotated[str, Field(pattern=r"^[a-z0-9_][a-z0-9_.-]{0,31}$")] | None = None
    allow_mig_mode: bool | None = None
    allow_clocks: bool = False
    allow_power_limits: bool = False
    clock_loop: Annotated[Literal["off", "miad"], BeforeValidator(_yaml_off)] = "off"
    steer_clocks: Annotated[tuple[SteeredServer, ...], Field(max_length=64)] = ()
    clock_floor: ClockRatio = 0.5
    orphan_timeout_s: Positive = 60.0
    leave_timeout_s: NonNegative = 30.0
    workers: Workers = Workers()
    idle_share: Literal["none", "by_slice", "by_busy"] = "none"
    mps: Mps | None = None

    @property
    def controlled(self) -> bool:
        """True if the agent may change the node."""
        if self.control is not None:
            return self.control
        return self.simulated is not None or self.cpu is not None

    @property
    def observed(self) -> bool:
        """True if the agent observes what others run on its GPUs."""
        real = self.simulated is None and self.cpu is None and self.maker != "amd"
        return (real and not self.controlled) if self.observe is None else self.observe

    @property
    def may_hold_clocks(self) -> bool:
        """True if the agent may lock SM clocks."""
        rights = self.controlled or bool(self.steer_clocks)
        return rights and (self.simulated is not None or self.allow_clocks)

    @property
    def may_limit_power(self) -> bool:
        """True if the agent may set power limits."""
        return self.controlled and (self.simulated is not None or self.allow_power_limits)

    def _problems(self) -> Iterator[str]:
        of_gpus = (
            *("simulated", "gpus", "mps"),
            *("allow_mig_mode", "allow_clocks", "allow_power_limits"),
        )
        given = [name for name in of_gpus if getattr(self, name) not in (None, False)]
        if self.cpu is not None and given:
            yield f"cpu: the node offers cores, and {given[0]} is of GPUs"
        if self.observe and self.cpu is not None:
            yield "observe: the node offers cores, and processes are observed on GPUs"
        if self.observe and self.maker == "amd":
            yield "observe: processes are observed on GPUs of NVIDIA"
        if self.steer_clocks:
            if self.controlled:
                yield "steer_clocks: needs control: false; clock_loop is for the agent's workers"
            elif not self.observed:
                yield "steer_clocks: needs observe: true, on GPUs of NVIDIA"
            elif not self.may_hold_clocks:
                yield "steer_clocks: needs allow_clocks: true"
            models = [each.model for each in self.steer_clocks]
            twice = sorted({each for each in models if models.count(each) > 1})
            yield from (f"steer_clocks: {each} is named twice" for each in twice)
        if self.clock_loop != "off" and not self.may_hold_clocks:
            yield (
                f"clock_loop: {self.clock_loop!r} locks clocks, which on real GPUs needs control "
                "and allow_clocks"
            )


class Join(Node):
    """Lets agents join that `nodes` does not list, with these settings for each of them.

    An agent that joins says its name, address and zone (`node`). Its workers listen at the host of
    its address.

    Attributes:
        zone: Electricity zone of agents that name none; empty: each must name its own.
        zone_of_topology: Electricity zone by the topology zone that agents give, such as a cloud's
            availability zone; before `zone`.
        names: Names that may join, exact or with "*" at the end for a prefix.
        identities: Identities, besides spiffe://<trust_domain>/agent/<name>, whose bearers may join
            under any of `names`: of one certificate that many agents share.
        networks: Networks, CIDR, whose addresses agents may give as their own, beside the one that
            they call from; where they are behind NAT or have several. Never link-local ones.
        forget_after_s: Time out of reach after which a node that joined is forgotten, s.
    """

    zone: Name | Literal[""] = ""
    zone_of_topology: dict[str, Name] = Field(default_factory=dict)
    names: Annotated[tuple[Principal, ...], Field(min_length=1)] = ("*",)
    identities: tuple[Principal, ...] = ()
    networks: tuple[Network, ...] = ()
    forget_after_s: Positive = 86_400.0

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        for name in ("address", "worker_host", "gpus"):
            if name in self.model_fields_set:
                yield f"{name}: differs from node to node, so it cannot be given here"

    def permits(self, name: str) -> bool:
        """Return whether a node of this name may join."""
        return any(matches(pattern, name) for pattern in self.names)

    def lends_to(self, identity: str) -> bool:
        """Return whether an identity may join under any of the names."""
        return any(matches(pattern, identity) for pattern in self.identities)

    def node(self, zone: str, address: str) -> Node:
        """Return the settings of a node that joins.

        Args:
            zone: Its electricity zone.
            address: Of its agent, "host:port".
        """
        own = {"zone": zone, "address": address, "worker_host": split_address(address)[0]}
        common = {name: getattr(self, name) for name in Node.model_fields}
        return Node.model_construct(**{**common, **own})


class ThisNode(Section):
    """The node of `gpuagent serve --join`; usually set by environment variables.

    Attributes:
        name: Its name (CINQUEFOIL_NODE__NAME). Empty: the machine's host name.
        address: "host:port" of its agent, as others reach it (CINQUEFOIL_NODE__ADDRESS). Empty:
            `join.listen`.
        zone: Its electricity zone (CINQUEFOIL_NODE__ZONE). Empty: by `zone_file`.
        zone_file: File that has its electricity zone (CINQUEFOIL_NODE__ZONE_FILE), such as
            `cinquefoil gpuagent zone` writes. None, or an empty file: by `topology_zone`.
        topology_zone: Where it is, as its cloud or cluster says (CINQUEFOIL_NODE__TOPOLOGY_ZONE):
            `join.zone_of_topology` has its electricity zone. Empty: `join.zone`.
    """

    name: Name | Literal[""] = ""
    address: Address = ""
    zone: Name | Literal[""] = ""
    zone_file: Path | None = None
    topology_zone: str = ""
