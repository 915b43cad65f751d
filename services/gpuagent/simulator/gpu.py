"""One simulated GPU: state, clocks, power and energy. Speaks Python; `exports` speaks C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from services.gpuagent.gpu_table import GpuTable
from services.gpuagent.simulator import mig_rules
from services.gpuagent.simulator.activity import ActivityMeter
from services.gpuagent.simulator.faults import Code, Fault
from services.gpuagent.simulator.state import ComputeInstance, GpuInstance, GpuState
from services.gpuagent.simulator.store import Store
from services.kit.mig import SliceKind

TDP_MHZ = 0xFFFFFF01
UNLIMITED_MHZ = 0xFFFFFF02
"""nvmlClockLimitId_t: symbolic clocks that nvmlDeviceSetGpuLockedClocks takes."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance with all that it belongs to."""

    gpu: SimulatedGpu
    instance: GpuInstance
    compute: ComputeInstance

    @property
    def kind(self) -> SliceKind:
        """Size of the GPU instance."""
        return self.gpu.kind(self.instance)


@dataclass(frozen=True, slots=True)
class Environment:
    """The outside world of a simulated GPU.

    Attributes:
        store: Keeps its state.
        activity: The work on it.
        clock: Seconds since the epoch.
        new_uuid: A fresh UUID.
    """

    store: Store
    activity: ActivityMeter
    clock: Callable[[], float]
    new_uuid: Callable[[], UUID]


class SimulatedGpu:
    """A GPU whose state is read from its store before each use, so readers see the writer's."""

    def __init__(self, uuid: str, index: int, table: GpuTable, world: Environment) -> None:
        self.uuid = uuid
        self.index = index
        self.table = table
        self._world = world
        self._base_j = 0.0  # active energy of meters before the present one
        self._last_energy_j = 0.0

    def power_on(self) -> None:
        """Boot, if this is the first time, and bring the clock back to where it was locked."""
        if self._world.store.load() is None:
            self._world.store.save(
                GpuState(self.table.name, self._world.clock(), self.table.max_power_w)
            )
        state = self.state
        is_new_meter = self._world.activity.energy_j() < state.active_seen_j
        self._base_j = state.active_base_j + (state.active_seen_j if is_new_meter else 0.0)
        self._world.activity.set_clock_ratio(self.clock_mhz / self.table.max_clock_mhz)

    @property
    def state(self) -> GpuState:
        """The state now."""
        state = self._world.store.load()
        if state is None:  # its file was removed under us
            raise Fault(Code.UNKNOWN)
        return state

    def _save(self, state: GpuState) -> None:
        seen_j = self._world.activity.energy_j()
        self._world.store.save(replace(state, active_base_j=self._base_j, active_seen_j=seen_j))

    # ---- power and energy

    @property
    def power_w(self) -> float:
        """Power of the whole GPU now, W."""
        return self.table.idle_power_w + self._world.activity.power_w()

    def energy_j(self) -> float:
        """Return the energy of the whole GPU since its first boot, J; it never goes back."""
        state = self.state
        idle_j = self.table.idle_power_w * max(self._world.clock() - state.booted_at_s, 0.0)
        saved_j = state.active_base_j + state.active_seen_j  # all that a mere reader can know
        active_j = max(saved_j, self._base_j + self._world.activity.energy_j())
        self._last_energy_j = max(self._last_energy_j, idle_j + active_j)
        return self._last_energy_j

    def set_power_limit_w(self, limit_w: float) -> None:
        """Keep a power limit within the board's range."""
        if not self.table.min_power_limit_w <= limit_w <= self.table.max_power_w:
            raise Fault(Code.INVALID_ARGUMENT)
        self._save(replace(self.state, power_limit_w=limit_w))

    # ---- clocks

    @property
    def clock_mhz(self) -> int:
        """SM clock now: the highest that is allowed. Idle GPUs keep it, unlike real ones."""
        locked = self.state.locked_mhz
        return locked[1] if locked else self.table.max_clock_mhz

    def lock_clocks(self, min_mhz: int, max_mhz: int) -> None:
        """Lock the SM clock to a range, each end moved to the nearest supported clock."""
        if not self.table.clock_lock:
            raise Fault(Code.NOT_SUPPORTED)
        symbols = (TDP_MHZ, UNLIMITED_MHZ)
        if min_mhz in symbols and max_mhz in symbols:
            self.reset_clocks()  # the model has no boost above the TDP clock to tell them apart
            return
        if min_mhz in symbols or max_mhz in symbols or min_mhz > max_mhz:
            raise Fault(Code.INVALID_ARGUMENT)
        self._set_lock((self._nearest_mhz(min_mhz), self._nearest_mhz(max_mhz)))

    def reset_clocks(self) -> None:
        """Unlock the SM clock."""
        if not self.table.clock_lock:
            raise Fault(Code.NOT_SUPPORTED)
        self._set_lock(None)

    def _set_lock(self, locked_mhz: tuple[int, int] | None) -> None:
        self._save(replace(self.state, locked_mhz=locked_mhz))
        self._world.activity.set_clock_ratio(self.clock_mhz / self.table.max_clock_mhz)

    def _nearest_mhz(self, clock_mhz: int) -> int:
        return min(self.table.clocks_mhz, key=lambda supported: abs(supported - clock_mhz))

    # ---- MIG

    def need_mig(self) -> None:
        """Raise NOT_SUPPORTED unless MIG mode is in force."""
        if not (self.table.mig_capable and self.state.mig_enabled):
            raise Fault(Code.NOT_SUPPORTED)

    def set_mig_mode(self, *, enabled: bool) -> Code:
        """Ask for a MIG mode; return what became of it (`activationStatus`).

        The mode stays pending (IN_USE) while a process holds the GPU, or an instance exists.
        """
        if not self.table.mig_capable:
            raise Fault(Code.NOT_SUPPORTED)
        state = replace(self.state, mig_pending=enabled)
        in_use = state.instances or self._world.activity.busy(self.uuid)
        if enabled == state.mig_enabled or not in_use:
            self._save(replace(state, mig_enabled=enabled))
            return Code.SUCCESS
        self._save(state)
        return Code.IN_USE

    def kind(self, instance: GpuInstance) -> SliceKind:
        """Return the size of a GPU instance."""
        return self.table.geometry.kind(instance.placement.profile)

    def create_instance(self, kind: SliceKind, start: int | None) -> GpuInstance:
        """Create a GPU instance; see `mig_rules.create_instance`."""
        serial = str(self._world.new_uuid())
        state, instance = mig_rules.create_instance(self.table, self.state, kind, start, serial)
        self._save(state)
        return instance

    def destroy_instance(self, instance: GpuInstance) -> None:
        """Destroy a GPU instance; see `mig_rules.destroy_instance`."""
        self._save(mig_rules.destroy_instance(self.state, instance))

    def create_compute(self, instance: GpuInstance, profile_id: int) -> ComputeInstance:
        """Create a compute instance, and with it a MIG device."""
        kind = self.kind(instance)
        profile = mig_rules.compute_profile(kind, profile_id)
        uuid = f"MIG-{self._world.new_uuid()}"
        state, compute = mig_rules.create_compute(kind, self.state, instance, profile, uuid)
        self._save(state)
        return compute

    def destroy_compute(self, device: MigDevice) -> None:
        """Destroy a compute instance; see `mig_rules.destroy_compute`."""
        busy = self._world.activity.busy(device.compute.uuid)
        self._save(
            mig_rules.destroy_compute(self.state, device.instance, device.compute, busy=busy)
        )

    def mig_devices(self) -> tuple[MigDevice, ...]:
        """Return the MIG devices, in NVML's order of index."""
        return tuple(
            MigDevice(self, instance, compute)
            for instance in self.state.instances
            for compute in instance.compute
        )
