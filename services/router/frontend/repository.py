"""Answers about a model repository and a server's settings, where the planner decides."""

from collections.abc import Iterable

from inference import grpc_service_pb2 as pb
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServiceError,
    Unimplemented,
)
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model_registry import VERSION, ModelRegistry


def index(
    registry: ModelRegistry, repository: str, *, ready_only: bool
) -> pb.RepositoryIndexResponse:
    """Return the models that clients may name, by name.

    Args:
        registry: The router's models.
        repository: Name of the repository; "": all.
        ready_only: Leave out models that take no requests.

    Raises:
        InvalidArgument: A repository is named.
    """
    if repository:
        raise InvalidArgument(
            f"no repository {repository!r}: the deployment file is the only one; leave"
            " repository_name empty",
            field="repository_name",
        )
    found = pb.RepositoryIndexResponse()
    for dispatcher in sorted(registry, key=lambda dispatcher: dispatcher.routes.model):
        reason = _why_not_ready(registry, dispatcher)
        if not (reason and ready_only):
            found.models.add(
                name=dispatcher.routes.model,
                version=VERSION,
                state="UNAVAILABLE" if reason else "READY",
                reason=reason,
            )
    return found


def _why_not_ready(registry: ModelRegistry, dispatcher: Dispatcher) -> str:
    if registry.accepts(dispatcher):
        return ""
    if registry.table.revision == 0:
        return "no routing table has come from the planner yet"
    states = [state for state in dispatcher.states.values() if not state.leaving]
    if not states:
        return "the plan gives it no instance"
    if not any(state.up for state in states):
        return f"none of its {len(states)} instances can be reached"
    return "its instances drain"


def fixed(registry: ModelRegistry, model: str, verb: str) -> ServiceError:
    """Return the refusal to load or unload a model.

    Args:
        registry: The router's models.
        model: The model to change.
        verb: For the message: "load" or "unload".

    Raises:
        ServiceError: As `ModelRegistry.model`: there is no such model.
    """
    registry.model(model)
    return FailedPrecondition(
        f"cannot {verb} {model!r}: the planner decides what runs. To change it, edit"
        " models in the deployment file, or use `cinquefoil plan dry-run --apply` and"
        " `cinquefoil plan pin`",
        reason="PLANNER_DECIDES",
        field="model_name",
    )


def shared_memory(request: object) -> ServiceError:
    """Return the refusal to register a region of shared memory, of the system or of CUDA."""
    kind = "CUDA" if isinstance(request, pb.CudaSharedMemoryRegisterRequest) else "system"
    return Unimplemented(
        f"no {kind} shared memory: clients and GPUs need not share a machine; send tensors in"
        " the request, as raw_input_contents",
        reason="NO_SHARED_MEMORY",
    )


def check_region(name: str) -> None:
    """Refuse to report a region of shared memory; none is ever registered.

    Raises:
        NotFound: A region is named.
    """
    if name:
        raise NotFound(f"no shared memory region {name!r}", field="name")


def check_unchanged(settings: Iterable[str]) -> None:
    """Refuse changed settings.

    Raises:
        FailedPrecondition: There are any.
    """
    names = ", ".join(sorted(settings))
    if names:
        raise FailedPrecondition(
            f"cannot change {names}: settings come from the deployment file; see"
            " `cinquefoil config schema`",
            reason="SETTINGS_IN_FILE",
            field="settings",
        )


def log_settings(level: str) -> pb.LogSettingsResponse:
    """Return Triton's names for how this process logs: JSON lines to standard error.

    Args:
        level: "debug", "info", "warning" or "error".
    """
    value = pb.LogSettingsResponse.SettingValue
    return pb.LogSettingsResponse(
        settings={
            "log_file": value(string_param=""),
            "log_info": value(bool_param=level in ("debug", "info")),
            "log_warnings": value(bool_param=level != "error"),
            "log_errors": value(bool_param=True),
            "log_verbose_level": value(uint32_param=int(level == "debug")),
            "log_format": value(string_param="ISO8601"),
        }
    )


def trace_settings(*, recording: bool) -> pb.TraceSettingResponse:
    """Return Triton's names for how requests are traced.

    Args:
        recording: This process records spans; otherwise callers' traces are only passed on.
    """
    value = pb.TraceSettingResponse.SettingValue
    return pb.TraceSettingResponse(
        settings={
            "trace_level": value(value=["TIMESTAMPS" if recording else "OFF"]),
            "trace_mode": value(value=["opentelemetry"]),
        }
    )
