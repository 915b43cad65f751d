"""The words of mu-Serve (ATC'24, section 3.2): partitions of models, devices, groups of devices.

    models --groups--> which models each group serves --placing--> which device each partition is on

A cluster is homogeneous, as in the paper: devices differ in name and memory only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.kit.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a model that is placed as a whole: one or more operator clusters.

    Attributes:
        model: Name of the model.
        index: Place in the model's pipeline, 0..
        memory_bytes: Memory it takes on a device.
        latency_s: Part of one request, alone on a device at the highest clock, s, > 0.
        sensitivity: Of the latency to the SM clock: 0 (not at all) .. 1 (as most kernels; see
            `services.kit.hardware.clock_curve`).
        transfer_s: Time to hand a request on to a partition on another device, s.
    """

    model: str
    index: int
    memory_bytes: int
    latency_s: float
    sensitivity: float = 1.0
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        if self.latency_s <= 0:
            raise InvalidArgument(f"latency_s: must be > 0, got {self.latency_s}")
        if not 0 <= self.sensitivity <= 1:
            raise InvalidArgument(f"sensitivity: must be 0..1, got {self.sensitivity}")


@dataclass(frozen=True, slots=True)
class Served:
    """A model with its load and objective.

    Attributes:
        name: Unique.
        partitions: In order of its pipeline, at least one.
        rate_rps: Requests per second.
        slo_s: Latency objective, s.
        work: Mean work of a request relative to the request that latencies are given for.
    """

    name: str
    partitions: tuple[Partition, ...]
    rate_rps: float
    slo_s: float
    work: float = 1.0

    @property
    def latency_s(self) -> float:
        """Latency of one request alone at the highest clock, s."""
        return sum(each.latency_s for each in self.partitions)

    @property
    def memory_bytes(self) -> int:
        """Memory of one instance."""
        return sum(each.memory_bytes for each in self.partitions)

    def load(self, partition: Partition, instances: int = 1) -> float:
        """Return the share of a device that keeps busy with one instance of a partition."""
        return self.rate_rps * self.work * partition.latency_s / instances


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. Attributes: name, memory_bytes."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that serve together. Attributes: devices; names of the models, one instance each."""

    devices: tuple[Device, ...]
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """Requirements of a partition on its device.

    Attributes:
        partition: The partition.
        clock_ratio: Least clock of the device, over the highest: 0 < ratio <= 1.
        load: Share of the device that it keeps busy at the highest clock.
    """

    partition: Partition
    clock_ratio: float
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a placement must keep.

    Attributes:
        most_devices: CT: devices that the partitions of one model may be spread over, >= 1.
        most_load: Share of a device that its partitions may keep busy at the highest clock.
        idle_ratio: Clock that a device without partitions drops to, over the highest.
    """

    most_devices: int = 2
    most_load: float = 1.0
    idle_ratio: float = 0.3


LIMITS = Limits()

Placement = Mapping[Demand, Device]
"""Where each partition goes."""


def clock_ratios(
    placement: Placement, devices: tuple[Device, ...], limits: Limits = LIMITS
) -> dict[str, float]:
    """Return how low each device's clock may drop: as its most demanding partition says.

    Returns:
        By device name; their sum is what placements make small (mu-Serve, section 3.2).
    """
    ratios = {device.name: limits.idle_ratio for device in devices}
    for demand, device in placement.items():
        ratios[device.name] = max(ratios[device.name], demand.clock_ratio)
    return ratios


def problem(placement: Placement, limits: Limits = LIMITS) -> str:
    """Return what is wrong with a placement, or ""."""
    memory_bytes: dict[Device, int] = {}
    loads: dict[Device, float] = {}
    spread: dict[str, set[Device]] = {}
    for demand, device in placement.items():
        memory_bytes[device] = memory_bytes.get(device, 0) + demand.partition.memory_bytes
        loads[device] = loads.get(device, 0.0) + demand.load
        spread.setdefault(demand.partition.model, set()).add(device)
    for device, taken in memory_bytes.items():
        if taken > device.memory_bytes:
            return f"{device.name} has no memory for {taken} bytes"
        if loads[device] > limits.most_load + TINY:
            return f"{device.name} would be busy {loads[device]:.2f} of the time"
    for model, used in spread.items():
        if len(used) > limits.most_devices:
            return f"{model} is spread over {len(used)} devices"
    return ""


TINY = 1e-9
"""Error that floating point may add to a load."""
