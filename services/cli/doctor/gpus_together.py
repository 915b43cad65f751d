"""Checks of variants on several GPUs: whether this machine has so many, and NVLink between them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import pynvml

from services.cli.doctor.finding import Finding, bad, fine, note
from services.kit.config import Deployment
from services.kit.plurals import counted

_NO_NVLINK: Final = (
    "cinquefoil gpuagent profile MODEL measures it; nvidia-smi topo -m has the links"
)


@dataclass(slots=True)
class _Gpus:
    """The GPUs of one type on this machine.

    Attributes:
        uncut: Handles of those that are not in MIG mode, by index.
        cut: Number of those in MIG mode.
    """

    uncut: dict[int, Any] = field(default_factory=dict)
    cut: int = 0


def gpus_together(deployment: Deployment) -> Iterator[Finding]:
    """Yield a finding for each variant on several GPUs; the driver must answer.

    Args:
        deployment: The deployment; without a node of real GPUs there is nothing to find.
    """
    nodes = [each for each in deployment.nodes.values() if each.simulated is None and not each.cpu]
    wanted = {
        f"{model}/{name}": variant.gpus
        for model, settings in deployment.models.items()
        for name, variant in settings.variants.items()
        if variant.gpus > 1
    }
    if not nodes or not wanted:
        return
    named = {uuid for node in nodes for uuid in node.gpus or ()}
    found = _by_type(named if all(node.gpus for node in nodes) else None)
    for variant, count in wanted.items():
        yield _variant(variant, count, found, elsewhere=len(nodes) > 1)


def _by_type(named: set[str] | None) -> dict[str, _Gpus]:
    """Return this machine's GPUs by product. None for `named`: all of them."""
    found: dict[str, _Gpus] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            product = pynvml.nvmlDeviceGetName(device)
            if named is not None and pynvml.nvmlDeviceGetUUID(device) not in named:
                continue
        except pynvml.NVMLError:  # the check of each GPU says so
            continue
        gpus = found.setdefault(product, _Gpus())
        if _in_mig_mode(device):
            gpus.cut += 1
        else:
            gpus.uncut[index] = device
    return found


def _in_mig_mode(device: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(device)[0])
    except pynvml.NVMLError:
        return False


def _variant(variant: str, count: int, found: dict[str, _Gpus], *, elsewhere: bool) -> Finding:
    subject = f"variant {variant}"
    enough = {product: each for product, each in found.items() if len(each.uncut) >= count}
    if not enough:
        here = ", ".join(
            f"{len(each.uncut)} x {product}" + (f" and {each.cut} in MIG mode" if each.cut else "")
            for product, each in sorted(found.items())
        )
        lacking = f"needs {count} GPUs of one type without MIG mode; here: {here or 'none'}"
        remedy = "nvidia-smi -i <index> -mig 0, more GPUs, or a smaller variants.<v>.gpus"
        if elsewhere:
            return note(subject, lacking, f"fine where another node has them; else {remedy}")
        return bad(subject, lacking, remedy)
    product, gpus = next(iter(sorted(enough.items())))
    apart = [pair for pair in combinations(gpus.uncut, 2) if not _linked(gpus.uncut, *pair)]
    held = f"{count} of {counted(len(gpus.uncut), 'GPU')} ({product})"
    if not apart:
        return fine(subject, f"{held}, all with NVLink")
    first = " and ".join(map(str, apart[0]))
    without = (
        f"{held}; no NVLink between GPU {first}: parts pass over PCIe, slower than the profile"
    )
    return note(subject, without, _NO_NVLINK)


def _linked(gpus: dict[int, Any], one: int, other: int) -> bool:
    nvlink = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(gpus[one], gpus[other], nvlink)
    except pynvml.NVMLError:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)
