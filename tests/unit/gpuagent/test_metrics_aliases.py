"""A node's GPUs under other exporters' names."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.parser import text_string_to_metric_families

from services.gpuagent.core import gpu_types
from services.gpuagent.core.gpu_types import GpuInfo, GpuReading, SliceReading
from services.gpuagent.energy.core.account import Account
from services.gpuagent.metrics_aliases import ALIASES
from services.kit.mig import Placement

TABLE = gpu_types.load("a100-40gb")
THIRD = SliceReading(Placement("3g.20gb", 4), "MIG-1", 2, 20 * 2**30, 2**30)
INFO = GpuInfo("GPU-1", 0, TABLE, True, ((THIRD.placement, THIRD.uuid),), 1410)
ACCOUNT = Account(total_j=500.0, idle_j=300.0, power_w=TABLE.idle_power_w + 20)


def scraped(alias: str) -> dict[str, tuple[dict[str, str], float]]:
    """Return labels and value of each sample of a scrape, by name."""
    collector = ALIASES[alias](
        lambda: {"GPU-1": ACCOUNT}, "node-0", lambda: (GpuReading(INFO, (THIRD,)),)
    )
    registry = CollectorRegistry()
    registry.register(collector)
    open_metrics: bytes = generate_open_metrics(registry)  # type: ignore[no-untyped-call]  # the library's
    assert b"GPU-1" in open_metrics, "OpenMetrics takes the names, too"
    text = generate_latest(registry).decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    assert len({each.name for each in samples}) == len(samples)
    return {each.name: (each.labels, each.value) for each in samples}


def test_dcgm_exporters_names_have_its_units_and_labels() -> None:
    """Its energy is in mJ, its memory in MiB and by slice, with number and profile of that."""
    found = scraped("dcgm")

    gpu = {
        "gpu": "0",
        "UUID": "GPU-1",
        "device": "nvidia0",
        "modelName": TABLE.product_name,
        "Hostname": "node-0",
    }
    third = gpu | {"GPU_I_ID": "2", "GPU_I_PROFILE": "3g.20gb"}
    assert found == {
        "DCGM_FI_DEV_POWER_USAGE": (gpu, ACCOUNT.power_w),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (gpu, 500e3),
        "DCGM_FI_DEV_SM_CLOCK": (gpu, 1410),
        "DCGM_FI_DEV_FB_USED": (third, 1024),
        "DCGM_FI_DEV_FB_FREE": (third, 19 * 1024),
    }


def test_keplers_idle_and_active_parts_add_up() -> None:
    found = scraped("kepler")

    gpu = {"gpu": "0", "gpu_uuid": "GPU-1", "vendor": "nvidia", "node_name": "node-0"}
    assert found.pop("kepler_node_gpu_info")[0] == gpu | {"gpu_name": TABLE.product_name}
    assert {name: value for name, (labels, value) in found.items() if labels == gpu} == {
        "kepler_node_gpu_watts": ACCOUNT.power_w,
        "kepler_node_gpu_idle_watts": TABLE.idle_power_w,
        "kepler_node_gpu_active_watts": 20,
        "kepler_node_gpu_joules_total": 500,
        "kepler_node_gpu_idle_joules_total": 300,
        "kepler_node_gpu_active_joules_total": 200,
    }
