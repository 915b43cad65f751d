"""What clients may ask of a model repository and of a server's settings, where a planner decides.

Pure answers and refusals; wire <-> these words is the servicer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServiceError,
    Unimplemented,
)
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model_registry import VERSION, ModelRegistry

READY: Final = "READY"
UNAVAILABLE: Final = "UNAVAILABLE"

Setting = bool | int | str


class Entry(NamedTuple):
    """A model in the index. Attributes: name, version, state, reason ("" where READY)."""

    name: str
    version: str
    state: str
    reason: str


def index(registry: ModelRegistry, repository: str, *, ready_only: bool) -> Iterator[Entry]:
    """Yield the models that clients may name, by name.

    Args:
        registry: The router's models.
        repository: The repository asked for; "": all.
        ready_only: Leave out those that take no requests.

    Raises:
        InvalidArgument: A repository is named.
    """
    if repository:
        raise InvalidArgument(
            f"no repository {repository!r}: the deployment file is the only one; leave"
            " repository_name empty",
            field="repository_name",
        )
    for dispatcher in sorted(registry, key=lambda dispatcher: dispatcher.routes.model):
        why = _why_not_ready(registry, dispatcher)
        if not (why and ready_only):
            yield Entry(dispatcher.routes.model, VERSION, UNAVAILABLE if why else READY, why)


def _why_not_ready(registry: ModelRegistry, dispatcher: Dispatcher) -> str:
    if dispatcher.ready:
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
        model: The one to be changed.
        verb: What is asked, for the message: "load" or "unload".

    Raises:
        ServiceError: As `Switchboard.model`: there is no such model.
    """
    registry.model(model)
    return FailedPrecondition(
        f"cannot {verb} {model!r}: the planner decides what runs. To change it, edit"
        " models in the deployment file, or use `cinquefoil plan dry-run --apply` and"
        " `cinquefoil plan pin`",
        reason="PLANNER_DECIDES",
        field="model_name",
    )


def shared_memory(kind: str) -> ServiceError:
    """Return the refusal to register a region of shared memory."""
    return Unimplemented(
        f"no {kind} shared memory: clients and GPUs need not share a machine; send tensors in"
        " the request, as raw_input_contents",
        reason="NO_SHARED_MEMORY",
    )


def check_region(name: str) -> None:
    """Refuse to tell about one region of shared memory; no region is ever registered.

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


def log_settings(level: str) -> dict[str, Setting]:
    """Return Triton's names for how this process logs: JSON lines to standard error.

    Args:
        level: "debug", "info", "warning" or "error".
    """
    return {
        "log_file": "",
        "log_info": level in ("debug", "info"),
        "log_warnings": level != "error",
        "log_errors": True,
        "log_verbose_level": int(level == "debug"),
        "log_format": "ISO8601",
    }


def trace_settings(*, recording: bool) -> dict[str, tuple[str, ...]]:
    """Return Triton's names for how requests are traced.

    Args:
        recording: This process records spans; otherwise callers' traces are only passed on.
    """
    return {
        "trace_level": ("TIMESTAMPS" if recording else "OFF",),
        "trace_mode": ("opentelemetry",),
    }
