"""What simulated hardware remembers, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from services.kit.mig import Placement

VERSION = 1


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance; the CUDA program's view of it is the MIG device `uuid`.

    Attributes:
        id: Unique within its GPU instance.
        profile_id: Hardware id of its compute-instance profile.
        start: First compute slice within the GPU instance.
        size: Compute slices.
        uuid: "MIG-..."; never used twice.
    """

    id: int
    profile_id: int
    start: int
    size: int
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance.

    Attributes:
        id: Unique on its GPU; may be used again.
        serial: Never used again: tells a stale handle from a fresh one.
        placement: Where it lies.
        compute: Its compute instances, by id.
    """

    id: int
    serial: str
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of one GPU, which outlives every process.

    Attributes:
        model: GPU type.
        booted_at_s: First boot, seconds since the epoch.
        power_limit_w: Power limit, W. It is kept and reported, and limits nothing.
        mig_enabled: MIG mode in force.
        mig_pending: MIG mode asked for.
        locked_mhz: Range the SM clock is locked to, MHz, or None.
        instances: GPU instances, by id.
        active_base_j: Active energy counted by meters before the present one, J.
        active_seen_j: What the present activity meter showed when last looked at, J.
    """

    model: str
    booted_at_s: float
    power_limit_w: float
    mig_enabled: bool = False
    mig_pending: bool = False
    locked_mhz: tuple[int, int] | None = None
    instances: tuple[GpuInstance, ...] = ()
    active_base_j: float = 0.0
    active_seen_j: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the state that `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: It is not such a state.
        """
        fields = dict(data)
        if fields.pop("version") != VERSION:
            raise ValueError(f"version must be {VERSION}")
        locked = fields.pop("locked_mhz")
        instances = fields.pop("instances")
        return cls(
            **fields,
            locked_mhz=(locked[0], locked[1]) if locked else None,
            instances=tuple(map(_instance, instances)),
        )


def _instance(data: Mapping[str, Any]) -> GpuInstance:
    return GpuInstance(
        id=data["id"],
        serial=data["serial"],
        placement=Placement(**data["placement"]),
        compute=tuple(ComputeInstance(**entry) for entry in data["compute"]),
    )
