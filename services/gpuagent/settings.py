"""What the deployment file says, in the agent's words."""

import os
import pwd
from pathlib import Path

from services.gpuagent.core.worker_config import Variant, WorkerConfigBuilder
from services.gpuagent.core.worker_spec import (
    External,
    Generative,
    TextObjectives,
    TlsFiles,
    WorkerEnvironment,
)
from services.gpuagent.supervision.slice_sharing import SliceSharing
from services.kit import config
from services.kit.clock import Clock
from services.kit.config import (
    Deployment,
    ExternalRuntime,
    GenerativeRuntime,
    Mps,
    Node,
    OnnxRuntime,
    OpenAiRuntime,
    Runtime,
    ServerRuntime,
    Slo,
)
from services.kit.errors import FailedPrecondition
from services.kit.profiles.factory import clock_sensitivity, load_profile, load_stages
from services.kit.telemetry import logs

_log = logs.get("settings")


def config_builder_of(deployment: Deployment, node: Node) -> WorkerConfigBuilder:
    """Return the builder of the workers' configurations. Reads profiles: blocks."""
    variants = {
        (model_name, name): Variant(
            deployment.path_of(variant).absolute(),
            load_profile(variant.profile, clock_sensitivity(variant)),
            external_of(variant.runtime),
            generative_of(variant.runtime),
            text_objectives_of(model.slo),
            stages=stages_of(deployment, variant),
            provider=provider_of(variant.runtime),
            sha256=variant.sha256,
        )
        for model_name, model in deployment.models.items()
        for name, variant in model.variants.items()
    }
    return WorkerConfigBuilder(variants, simulated=node.simulated is not None)


def text_objectives_of(slo: Slo) -> TextObjectives | None:
    """Return what a model's texts were promised of their tokens; None: nothing."""
    if slo.ttft_s is None and slo.tpot_s is None:
        return None
    return TextObjectives(slo.latency_s, slo.ttft_s or 0.0, slo.tpot_s or 0.0)


def stages_of(deployment: Deployment, variant: config.Variant) -> tuple[Variant, ...]:
    """Return what runs of a pipeline; (): the variant is none. Reads profiles: blocks."""
    last = len(variant.stages) - 1
    return tuple(
        Variant(
            deployment.path_of(stage).absolute(),
            profile,
            passes_on=index < last,
            provider=provider_of(variant.runtime),
            sha256=stage.sha256,
        )
        for index, (stage, profile) in enumerate(
            zip(variant.stages, load_stages(variant), strict=True)
        )
    )


def provider_of(runtime: Runtime) -> str:
    """Return the execution provider of a variant on real GPUs."""
    return runtime.provider if isinstance(runtime, OnnxRuntime) else "cuda"


def generative_of(runtime: Runtime) -> Generative | None:
    """Return how a variant generates text; None: it does not."""
    if isinstance(runtime, GenerativeRuntime):
        own = {"resource": runtime.resource, "sha256": runtime.sha256}
    elif isinstance(runtime, OpenAiRuntime):
        own = {}
    else:
        return None
    return Generative(
        context_tokens=runtime.context_tokens or 0,
        slots=runtime.slots or 0,
        max_tokens=runtime.max_tokens,
        chat=runtime.chat,
        **own,
    )


def external_of(runtime: Runtime) -> External | None:
    """Return the server that runs a variant; None: the workers do."""
    if not isinstance(runtime, ServerRuntime):
        return None
    key_file = runtime.api_key_file if isinstance(runtime, OpenAiRuntime) else None
    return External(
        command=runtime.command,
        environment=tuple(runtime.environment.items()),
        environment_file=runtime.environment_file and runtime.environment_file.absolute(),
        address=runtime.address,
        tls=None if runtime.tls is None else TlsFiles(**dict(runtime.tls)),
        model_name=runtime.model_name,
        model_version=runtime.model_version if isinstance(runtime, ExternalRuntime) else "",
        api_key_file=key_file and key_file.absolute(),
    )


def worker_environment_of(deployment: Deployment, name: str) -> WorkerEnvironment:
    """Return what the workers of a node run with."""
    node, principals = deployment.nodes[name], deployment.principals
    tls = deployment.identity("worker", name)
    return WorkerEnvironment(
        orphan_timeout_s=node.orphan_timeout_s,
        log_level=deployment.log_level,
        message_bytes=deployment.router.worker_message_bytes,
        tls=None if tls is None else TlsFiles(**dict(tls)),
        node=name,
        principals=None if principals is None else dict(principals),
        lent=() if deployment.join is None else deployment.join.identities,
        user=worker_user_of(node, name),
        transport=deployment.rpc.transport,
    )


def worker_user_of(node: Node, name: str) -> tuple[int, int] | None:
    """Return the user and group that a node's workers run as; None: the agent's.

    Raises:
        FailedPrecondition: There is no such user, or the agent may not change to it.
    """
    wanted, root = node.worker_user, os.geteuid() == 0
    if wanted is None:
        if root and node.controlled:
            _log.warning("workers run as root; nodes.<n>.worker_user names another user", node=name)
        return None
    where = f"nodes.{name}.worker_user"
    if not root:
        raise FailedPrecondition.at(where, "only an agent that is root can start another's workers")
    try:
        found = pwd.getpwuid(int(wanted)) if wanted.isdigit() else pwd.getpwnam(wanted)
    except KeyError:
        if not wanted.isdigit():
            raise FailedPrecondition.at(where, f"there is no user {wanted!r}") from None
        return int(wanted), int(wanted)
    return found.pw_uid, found.pw_gid


def sharing_of(node: Node, folder: Path, clock: Clock) -> SliceSharing:
    """Return how processes share a slice, with the files of MPS in `folder`."""
    without = node.simulated is not None or node.cpu is not None
    return SliceSharing(clock, folder, node.mps or (None if without else Mps()))
