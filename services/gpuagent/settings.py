"""The deployment file as values of the agent."""

import os
import pwd
from pathlib import Path

from services.gpuagent.core.worker_config import Network, WorkerConfigBuilder
from services.gpuagent.core.worker_spec import WorkerEnvironment
from services.gpuagent.supervision.slice_sharing import SliceSharing
from services.kit.clock import Clock
from services.kit.config import Deployment, Model, Mps, Node, Variant
from services.kit.errors import FailedPrecondition
from services.kit.profiles.factory import clock_sensitivity, load_profile, load_stages
from services.kit.telemetry import logs

_log = logs.get("settings")


def config_builder_of(deployment: Deployment, node: Node) -> WorkerConfigBuilder:
    """Return the builder of the workers' configurations. Reads profiles: blocks."""
    networks = {
        (model_name, name): networks_of(deployment, model, variant)
        for model_name, model in deployment.models.items()
        for name, variant in model.variants.items()
    }
    return WorkerConfigBuilder(networks, simulated=node.simulated is not None)


def networks_of(deployment: Deployment, model: Model, variant: Variant) -> tuple[Network, ...]:
    """Return the networks of a variant, one for each stage. Reads profiles: blocks."""
    files = variant.stages or (variant,)
    profiles = load_stages(variant) or (
        load_profile(variant.profile, clock_sensitivity(variant), variant.parallel),
    )
    return tuple(
        Network(
            deployment.path_of(file).absolute(),
            profile,
            variant.runtime,
            model.slo,
            passes_on=file is not files[-1],
            sha256=file.sha256,
        )
        for file, profile in zip(files, profiles, strict=True)
    )


def worker_environment_of(deployment: Deployment, name: str) -> WorkerEnvironment:
    """Return the settings common to the workers of a node."""
    node, principals = deployment.nodes[name], deployment.principals
    return WorkerEnvironment(
        orphan_timeout_s=node.orphan_timeout_s,
        log_level=deployment.log_level,
        message_bytes=deployment.router.worker_message_bytes,
        tls=deployment.identity("worker", name),
        node=name,
        principals=None if principals is None else dict(principals),
        lent=() if deployment.join is None else deployment.join.identities,
        user=worker_user_of(node, name),
        rpc=deployment.rpc,
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
    without = node.simulated is not None or node.cpu is not None or node.maker == "amd"
    return SliceSharing(clock, folder, node.mps or (None if without else Mps()))
