"""One simulated GPU: state, clocks, MIG. Speaks Python; the `exports` modules speak C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices.fake_nvml.core import mig_rules
from services.gpuagent.devices.fake_nvml.core.gpu_state import (
    ComputeInstance,
    GpuInstance,
    GpuState,
    Incident,
)
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.core.sensors import ActivityMeter, Sensors
from services.gpuagent.devices.fake_nvml.core.utilization import (
    UtilizationSample,
    UtilizationSampler,
)
from services.gpuagent.state_store import Store
from services.kit.errors import FailedPrecondition
from services.kit.hardware.gpu_types import GpuTable

TDP_MHZ = 0xFFFFFF01
UNLIMITED_MHZ = 0xFFFFFF02
"""nvmlClockLimitId_t: symbolic clocks that nvmlDeviceSetGpuLockedClocks takes."""

LEAST_POWER_LIMIT = 0.3
"""Least power limit over the default: 100 of 400 W on an A100, 200 of 700 W on an H100."""

FELL_OFF_THE_BUS = 79
"""Xid 79, "GPU has fallen off the bus" (NVIDIA, Xid Errors)."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance with all that it belongs to."""

    gpu: FakeGpu
    instance: GpuInstance
    compute: ComputeInstance

    @property
    def kind(self) -> SliceProfile:
        """Size of the GPU instance."""
        return self.gpu.kind(self.instance)


@dataclass(frozen=True, slots=True)
class Environment:
    """The outside world of a simulated GPU.

    Attributes:
        store: Keeps its state.
        incidents: Keeps what befalls it.
        activity: The work on it.
        clock: Seconds that never go back while the machine runs, and all its processes share.
        wall_clock: Seconds since the epoch.
        boot: Identifies this run of the machine.
        new_uuid: A fresh UUID.
        passthrough: It is in a virtual machine, which cannot reset it to change its MIG mode.
    """

    store: Store[GpuState]
    incidents: Store[Incident]
    activity: ActivityMeter
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    boot: str
    new_uuid: Callable[[], UUID]
    passthrough: bool = False


class FakeGpu:
    """A GPU whose state is read from its store before each use, so readers see the writer's."""

    def __init__(self, uuid: str, index: int, table: GpuTable, environment: Environment) -> None:
        self.uuid = uuid
        self.index = index
        self.table = table
        self.sensors = Sensors(table, environment.activity, environment.clock)
        self._utilization = UtilizationSampler()
        self._environment = environment
        self._owned = False  # until it is switched on; only its owner writes its state

    def power_on(self) -> None:
        """Boot, if this is the first time, and bring the clock back to where it was locked."""
        self._owned = True
        state = self._switched_on()
        if state != self._environment.store.load():
            self._environment.store.save(state)
        self.sensors.start(self.state)
        self._report_clock()

    @property
    def state(self) -> GpuState:
        """The state now."""
        state = self._environment.store.load()
        if state is None:
            if self._owned:  # its file was removed under us
                raise Fault(Code.UNKNOWN)
            state = self._factory_state()  # not booted yet
        state = self._on_this_clock(state)
        incident = self._incident
        if incident.resets > state.resets:
            state = state.after_reset(incident.resets)
            if self._owned:
                self._save(state)
                self._report_clock()
        return state

    def _factory_state(self) -> GpuState:
        return GpuState(
            self.table.name,
            self._environment.wall_clock(),
            powered_at_s=self._environment.clock(),
            boot=self._environment.boot,
        )

    def _switched_on(self) -> GpuState:
        """Return the state it counts from: again 0 J where the machine was started."""
        state = self._environment.store.load()
        if state is None:
            return self._factory_state()
        if state.powered_at_s is not None and state.boot != self._environment.boot:
            state = self.sensors.begun(state)
        return replace(self._on_this_clock(state), boot=self._environment.boot)

    def _on_this_clock(self, state: GpuState) -> GpuState:
        """Return a state whose counter does not go by the wall clock; it shows what it showed."""
        if state.powered_at_s is not None:
            return state
        age_s = max(self._environment.wall_clock() - state.booted_at_s, 0.0)
        return replace(state, powered_at_s=self._environment.clock() - age_s)

    def _save(self, state: GpuState) -> None:
        self._environment.store.save(self.sensors.saved_state(state))

    # ---- incidents

    @property
    def _incident(self) -> Incident:
        return self._environment.incidents.load() or Incident()

    @property
    def lost(self) -> bool:
        """True once it has fallen off the bus."""
        return bool(self._incident.xid)

    def lose(self) -> None:
        """Make it fall off the bus."""
        self._environment.incidents.save(replace(self._incident, xid=FELL_OFF_THE_BUS))

    def reset(self) -> None:
        """Reset it: it is there again, a pending MIG mode is in force, all else is as new.

        Raises:
            FailedPrecondition: A process uses it, and it is not lost.
        """
        devices = (self.uuid, *(entry.compute.uuid for entry in self.mig_devices()))
        if not self.lost and any(map(self._environment.activity.busy, devices)):
            raise FailedPrecondition(f"{self.uuid} is in use; end its processes before a reset")
        self._environment.incidents.save(Incident(0, self._incident.resets + 1))

    # ---- processes

    def processes(self) -> tuple[ProcessActivity, ...]:
        """Return the processes with a CUDA context on it or its MIG devices, by number."""
        return tuple(sorted(self._environment.activity.processes(), key=lambda each: each.pid))

    def utilization_since(self, last_seen_us: int) -> list[UtilizationSample]:
        """Return the sample of process utilisation after a moment, of one process.

        Raises:
            Fault: NOT_SUPPORTED in MIG mode; NOT_FOUND where there is no new sample.
        """
        if self.state.mig_enabled:
            raise Fault(Code.NOT_SUPPORTED)
        now_s = self._environment.wall_clock()
        found = self._utilization.since(last_seen_us, now_s, self.processes())
        if not found:
            raise Fault(Code.NOT_FOUND)
        return found

    def instance_busy_s(self, instance_id: int) -> tuple[float, float]:
        """Return the time, and for how long a GPU instance's SMs were busy until now, s.

        Raises:
            Fault: NOT_FOUND: there is no such instance.
        """
        uuids = {
            entry.compute.uuid for entry in self.mig_devices() if entry.instance.id == instance_id
        }
        if not uuids:
            raise Fault(Code.NOT_FOUND)
        busy_s = sum(each.busy_s for each in self.processes() if each.slice_uuid in uuids)
        return self._environment.clock(), busy_s

    def busy_percent(self) -> int:
        """Return the share of the last sample period in which any kernel ran, %.

        Raises:
            Fault: NOT_SUPPORTED in MIG mode.
        """
        if self.state.mig_enabled:
            raise Fault(Code.NOT_SUPPORTED)
        now_s = self._environment.wall_clock()
        self._utilization.since(0, now_s, self.processes())
        return self._utilization.busy_percent

    # ---- clocks

    @property
    def clock_mhz(self) -> int:
        """SM clock now: the highest that is allowed. Idle GPUs keep it, unlike real ones."""
        locked_mhz = self.state.locked_mhz
        allowed_mhz = locked_mhz[1] if locked_mhz else self.table.max_clock_mhz
        limit_w = 1e-3 * self.power_limit_mw
        if limit_w >= self.table.max_power_w:
            return allowed_mhz
        return min(allowed_mhz, self._within_mhz(limit_w))

    def _within_mhz(self, limit_w: float) -> int:
        """Return the highest clock at which full load keeps a power limit, else the lowest.

        A real board lowers its clock only while its power would be above the limit.
        """
        table = self.table
        active_w = table.max_power_w - table.idle_power_w

        def keeps(clock_mhz: int) -> bool:
            ratio = table.clock_curve.power_ratio(clock_mhz / table.max_clock_mhz)
            return table.idle_power_w + active_w * ratio <= limit_w

        return max(filter(keeps, table.clocks_mhz), default=min(table.clocks_mhz))

    @property
    def power_limits_mw(self) -> tuple[int, int]:
        """Least and highest power limit that may be set, mW."""
        return round(1e3 * LEAST_POWER_LIMIT * self.table.max_power_w), round(
            1e3 * self.table.max_power_w
        )

    @property
    def power_limit_mw(self) -> int:
        """Power limit in force, mW."""
        limit_mw = self.state.power_limit_mw
        return self.power_limits_mw[1] if limit_mw is None else limit_mw

    def limit_power(self, limit_mw: int) -> None:
        """Set the power limit, within the board's constraints."""
        least_mw, most_mw = self.power_limits_mw
        if not least_mw <= limit_mw <= most_mw:
            raise Fault(Code.INVALID_ARGUMENT)
        self._save(replace(self.state, power_limit_mw=limit_mw))
        self._report_clock()

    def lock_clocks(self, min_mhz: int, max_mhz: int) -> None:
        """Lock the SM clock to a range, each end rounded to the nearest supported clock."""
        if not self.table.clock_lock:
            raise Fault(Code.NOT_SUPPORTED)
        symbols = (TDP_MHZ, UNLIMITED_MHZ)
        if min_mhz in symbols and max_mhz in symbols:
            self.reset_clocks()  # the model has no boost above the TDP clock to distinguish them
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
        self._report_clock()

    def _report_clock(self) -> None:
        if self._owned:
            self._environment.activity.set_clock_ratio(self.clock_mhz / self.table.max_clock_mhz)

    def _nearest_mhz(self, clock_mhz: int) -> int:
        return min(self.table.clocks_mhz, key=lambda supported: abs(supported - clock_mhz))

    # ---- MIG

    def need_mig(self) -> None:
        """Raise NOT_SUPPORTED unless MIG mode is in force."""
        if not (self.table.mig_capable and self.state.mig_enabled):
            raise Fault(Code.NOT_SUPPORTED)

    def set_mig_mode(self, *, enabled: bool) -> Code:
        """Request a MIG mode; return what became of it (`activationStatus`).

        The mode stays pending while a process holds the GPU or an instance exists (IN_USE), and
        in a virtual machine (RESET_REQUIRED): until it is requested again, or the GPU is reset.
        """
        if not self.table.mig_capable:
            raise Fault(Code.NOT_SUPPORTED)
        state, code = replace(self.state, mig_pending=enabled), Code.SUCCESS
        if enabled != state.mig_enabled:
            if self._environment.passthrough:
                code = Code.RESET_REQUIRED
            elif state.instances or self._environment.activity.busy(self.uuid):
                code = Code.IN_USE
            else:
                state = replace(state, mig_enabled=enabled)
        self._save(state)
        return code

    def kind(self, instance: GpuInstance) -> SliceProfile:
        """Return the size of a GPU instance."""
        return self.table.geometry.kind(instance.placement.profile)

    def create_instance(self, kind: SliceProfile, start: int) -> GpuInstance:
        """Create a GPU instance; see `mig_rules.create_instance`."""
        serial = str(self._environment.new_uuid())
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
        uuid = f"MIG-{self._environment.new_uuid()}"
        state, compute = mig_rules.create_compute(kind, self.state, instance, profile, uuid)
        self._save(state)
        return compute

    def destroy_compute(self, device: MigDevice) -> None:
        """Destroy a compute instance; see `mig_rules.destroy_compute`."""
        uuid = device.compute.uuid
        busy = self._environment.activity.busy(uuid)
        state = mig_rules.destroy_compute(self.state, device.instance, device.compute, busy=busy)
        self._save(state)

    def mig_devices(self) -> tuple[MigDevice, ...]:
        """Return the MIG devices, in NVML's order of index."""
        return tuple(
            MigDevice(self, instance, compute)
            for instance in self.state.instances
            for compute in instance.compute
        )
