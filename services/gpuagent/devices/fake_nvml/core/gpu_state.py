"""State of simulated hardware, as immutable values."""

from dataclasses import dataclass, replace
from typing import Self

from cinquefoil.gpuagent.v1.records import Placement


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
        serial: Never used again: distinguishes a stale handle from a fresh one.
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
        booted_at_s: First boot, seconds since the epoch; only agents from before `powered_at_s`
            count energy from it.
        mig_enabled: MIG mode in force.
        mig_pending: MIG mode requested.
        locked_mhz: Range the SM clock is locked to, MHz, or None.
        power_limit_mw: Power limit that was set, mW; None: the default.
        instances: GPU instances, by id.
        resets: Resets that the GPU has been through.
        active_base_j: Active energy counted by meters before the present one, J.
        active_seen_j: What the present activity meter showed when last looked at, J.
        powered_at_s: Where the energy counter began, on the clock of the machine's present run, s;
            None: an agent that counted by the wall clock wrote this.
        boot: The run of the machine that `powered_at_s` is of.
    """

    model: str
    booted_at_s: float
    mig_enabled: bool = False
    mig_pending: bool = False
    locked_mhz: tuple[int, int] | None = None
    power_limit_mw: int | None = None
    instances: tuple[GpuInstance, ...] = ()
    resets: int = 0
    active_base_j: float = 0.0
    active_seen_j: float = 0.0
    powered_at_s: float | None = None
    boot: str = ""

    def after_reset(self, resets: int) -> Self:
        """Return the state after a reset: the pending MIG mode in force, all settings cleared."""
        return replace(
            self,
            mig_enabled=self.mig_pending,
            locked_mhz=None,
            power_limit_mw=None,
            instances=(),
            resets=resets,
        )


@dataclass(frozen=True, slots=True)
class Incident:
    """An external incident of a GPU; any process may write it, while one process owns the state.

    Attributes:
        xid: The driver's number for what made it fall off the bus (79); 0: it is there.
        resets: Resets requested so far.
    """

    xid: int = 0
    resets: int = 0
