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

from services.gpuagent.core.gpu_types import GpuReading
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
            (self._labels(each) | _instance(entry.instance_id, entry.placement.profile), entry)
            for each in read
            for entry in each.slices
            if entry.used_bytes is not None
        ]
        drawn = [(labels, accounts[gpu.uuid]) for labels, gpu in gpus if gpu.uuid in accounts]
        yield _untyped(
            "DCGM_FI_DEV_POWER_USAGE",
            "Power of a GPU, W.",
            ((labels, account.power_w) for labels, account in drawn),
        )
        yield _untyped(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            "Energy of a GPU since its account began, mJ.",
            ((labels, account.total_j * 1e3) for labels, account in drawn),
        )
        yield _untyped(
            "DCGM_FI_DEV_SM_CLOCK",
            "SM clock of a GPU, MHz.",
            ((labels, gpu.clock_mhz) for labels, gpu in gpus),
        )
        yield _untyped(
            "DCGM_FI_DEV_FB_USED",
            "Memory in use, MiB.",
            ((labels, (entry.used_bytes or 0) / BYTES_PER_MIB) for labels, entry in slices),
        )
        yield _untyped(
            "DCGM_FI_DEV_FB_FREE",
            "Memory that is free, MiB.",
            (
                (labels, (entry.memory_bytes - (entry.used_bytes or 0)) / BYTES_PER_MIB)
                for labels, entry in slices
            ),
        )

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
        idle_w = [min(gpu.model.idle_power_w, account.power_w) for _, gpu, account in read]
        for name, watts, joules in (
            ("", [a.power_w for *_, a in read], [a.total_j for *_, a in read]),
            ("idle_", idle_w, [a.idle_j for *_, a in read]),
            (
                "active_",
                [a.power_w - idle for (*_, a), idle in zip(read, idle_w, strict=True)],
                [max(a.total_j - a.idle_j, 0.0) for *_, a in read],
            ),
        ):
            labels, what = [own for own, *_ in read], f"{name.removesuffix('_') or 'whole'} part"
            yield _untyped(
                f"kepler_node_gpu_{name}watts", f"Power, {what}.", zip(labels, watts, strict=True)
            )
            yield _untyped(
                f"kepler_node_gpu_{name}joules_total",
                f"Energy, {what}.",
                zip(labels, joules, strict=True),
            )

    def _labels(self, read: GpuReading) -> dict[str, str]:
        gpu = read.gpu
        return {
            "gpu": str(gpu.index),
            "gpu_uuid": gpu.uuid,
            "vendor": _VENDOR,
            "node_name": self.node,
        }


def _instance(number: int | None, profile: str) -> dict[str, str]:
    return {} if number is None else {"GPU_I_ID": str(number), "GPU_I_PROFILE": profile}


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
