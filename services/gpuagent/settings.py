"""What the deployment file says, in the agent's words."""

from __future__ import annotations

from pathlib import Path

from services.gpuagent.blueprint import Drafter, Variant
from services.gpuagent.mps.legacy import LegacyMps
from services.gpuagent.mps.sharing import MpsSharing, Sharing, Unshared
from services.gpuagent.patience import Patience
from services.gpuagent.places import Home
from services.gpuagent.worker.spec import External, TlsFiles
from services.kit.clock import Clock
from services.kit.deployment import Deployment, ExternalRuntime, Mps, Node, Runtime, Workers
from services.kit.profiles.load import load_profile
from services.kit.units import BYTES_PER_MIB


def drafter_of(deployment: Deployment, node: Node) -> Drafter:
    """Return what draws the blueprints of the deployment's variants. Reads profiles: blocks."""
    variants = {
        (model_name, name): Variant(
            variant.file.absolute(), load_profile(variant.profile), external_of(variant.runtime)
        )
        for model_name, model in deployment.models.items()
        for name, variant in model.variants.items()
    }
    return Drafter(variants, simulated=node.simulated is not None)


def external_of(runtime: Runtime) -> External | None:
    """Return the server that runs a variant; None: the workers do."""
    if not isinstance(runtime, ExternalRuntime):
        return None
    return External(
        command=runtime.command,
        environment=tuple(runtime.environment.items()),
        address=runtime.address,
        model_name=runtime.model_name,
        model_version=runtime.model_version,
    )


def patience_of(workers: Workers) -> Patience:
    """Return what is borne of a worker."""
    return Patience(
        load_timeout_s=workers.load_timeout_s,
        memory_limit_bytes=int((workers.memory_limit_mib or 0) * BYTES_PER_MIB),
        max_failures=workers.max_failures,
        window_s=workers.failure_window_s,
    )


def home_of(deployment: Deployment, node: Node, folder: Path) -> Home:
    """Return where and how workers run, with their files in `folder`."""
    tls = deployment.tls
    return Home(
        folder=folder,
        host=node.worker_host,
        orphan_timeout_s=node.orphan_timeout_s,
        log_level=deployment.log_level,
        tls=None if tls is None else TlsFiles(**dict(tls)),
    )


def sharing_of(node: Node, folder: Path, clock: Clock) -> Sharing:
    """Return how processes share a slice, with the files of MPS in `folder`."""
    mps = node.mps
    if mps is None:
        if node.simulated is not None:
            return Unshared()
        mps = Mps()
    driver = LegacyMps(mps.control_binary, mps.timeout_s)
    return MpsSharing(driver, folder, clock, mps.check_interval_s)
