"""The agent's readings under the names of NVIDIA's dcgm-exporter and of Kepler.

For dashboards and tools made for those, above all where GPUs are simulated: on real ones both see
the same GPUs themselves.
Sources: dcgm-exporter, etc/default-counters.csv; Kepler, docs on GPU power (EP-003).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from services.gpuagent.core.gpu_types import GpuReading, SliceReading
from services.gpuagent.energy.core.account import Account
from services.kit.units import BYTES_PER_MIB

Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]

_VENDOR: Final = "nvidia"


@dataclass(frozen=True, slots=True, eq=False)
class _Readings(Collector):
    """The GPUs of a node.

    Attributes:
        accounts: Returns the accounts of energy, by GPU.
        node: Name of the node.
        readings: Returns what the GPUs are now.
    """

    accounts: Callable[[], Mapping[str, Account]]
    node: str
    readings: Callable[[], tuple[GpuReading, ...]]


class DcgmCollector(_Readings):
    """Power, energy, clock and memory as dcgm-exporter has them, memory by slice."""

    def collect(self) -> Iterator[Metric]:
        """Yield the values as they are now."""
        accounts, read = self.accounts(), self.readings()
        gpus = [(self._labels(each), each.gpu) for each in read]
        slices = [
            (self._labels(each) | _instance(entry), entry.memory_bytes, entry.used_bytes)
            for each in read
            for entry in each.slices
            if entry.used_bytes is not None
        ]
        drawn = [(labels, accounts[gpu.uuid]) for labels, gpu in gpus if gpu.uuid in accounts]
        power = ((labels, account.power_w) for labels, account in drawn)
        yield _untyped("DCGM_FI_DEV_POWER_USAGE", "Power of a GPU, W.", power)
        yield _untyped(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            "Energy of a GPU since its account began, mJ.",
            ((labels, account.total_j * 1e3) for labels, account in drawn),
        )
        clocks = ((labels, gpu.clock_mhz) for labels, gpu in gpus)
        yield _untyped("DCGM_FI_DEV_SM_CLOCK", "SM clock of a GPU, MHz.", clocks)
        used = ((labels, used / BYTES_PER_MIB) for labels, _, used in slices)
        yield _untyped("DCGM_FI_DEV_FB_USED", "Memory in use, MiB.", used)
        free = ((labels, (total - used) / BYTES_PER_MIB) for labels, total, used in slices)
        yield _untyped("DCGM_FI_DEV_FB_FREE", "Memory that is free, MiB.", free)

    def _labels(self, read: GpuReading) -> dict[str, str]:
        gpu = read.gpu
        return {
            "gpu": str(gpu.index),
            "UUID": gpu.uuid,
            "device": f"nvidia{gpu.index}",
            "modelName": gpu.model.product_name,
            "Hostname": self.node,
        }


class KeplerCollector(_Readings):
    """Power and energy of GPUs as Kepler has them: idle, active, and both."""

    def collect(self) -> Iterator[Metric]:
        """Yield the values as they are now."""
        accounts = self.accounts()
        read = [
            (self._labels(each), each.gpu, accounts[each.gpu.uuid])
            for each in self.readings()
            if each.gpu.uuid in accounts
        ]
        info = (({**own, "gpu_name": gpu.model.product_name}, 1.0) for own, gpu, _ in read)
        yield _untyped("kepler_node_gpu_info", "1: a GPU.", info)
        split = [(own, _parts(gpu.model.idle_power_w, account)) for own, gpu, account in read]
        for part in ("", "idle_", "active_"):
            what = f"{part.removesuffix('_') or 'whole'} part"
            power = ((own, parts[part][0]) for own, parts in split)
            yield _untyped(f"kepler_node_gpu_{part}watts", f"Power, {what}.", power)
            energy = ((own, parts[part][1]) for own, parts in split)
            yield _untyped(f"kepler_node_gpu_{part}joules_total", f"Energy, {what}.", energy)

    def _labels(self, read: GpuReading) -> dict[str, str]:
        gpu = read.gpu
        return {
            "gpu": str(gpu.index),
            "gpu_uuid": gpu.uuid,
            "vendor": _VENDOR,
            "node_name": self.node,
        }


def _instance(of: SliceReading) -> dict[str, str]:
    if of.instance_id is None:
        return {}
    return {"GPU_I_ID": str(of.instance_id), "GPU_I_PROFILE": of.placement.profile}


def _parts(idle_power_w: float, account: Account) -> dict[str, tuple[float, float]]:
    """Return the power, W, and the energy, J, of a GPU and its idle and active parts."""
    idle_w = min(idle_power_w, account.power_w)
    active_w, active_j = account.power_w - idle_w, max(account.total_j - account.idle_j, 0.0)
    return {
        "": (account.power_w, account.total_j),
        "idle_": (idle_w, account.idle_j),
        "active_": (active_w, active_j),
    }


def _untyped(name: str, about: str, samples: Samples) -> Metric:
    """Return a metric without a type: the library would change the names of counters."""
    metric = Metric(name, about, "untyped")
    for labels, value in samples:
        metric.add_sample(name, dict(labels), value)
    return metric


ALIASES: Final[Mapping[str, Callable[..., Collector]]] = {
    "dcgm": DcgmCollector,
    "kepler": KeplerCollector,
}
"""By their names in `nodes.<n>.metrics_aliases`."""
