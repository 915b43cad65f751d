"""Authorisation of calls: identities from certificates and tokens, roles from the deployment.

A method that the table does not name is refused to every caller: a new rpc is closed until it is
listed.
Principals match as in gRFC A43 (gRPC authorisation): exactly, or by prefix
("spiffe://example/agent/*").
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from services.kit.errors import PermissionDenied, Unauthenticated
from services.kit.h2.admission import KNOWN, OPERATOR, UNKNOWN, Payer
from services.kit.net import host_of, matches
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from services.kit.config import Deployment

_audit = logs.get("audit")

_SEE: Final = frozenset({"viewer", "operator"})
_CHANGE: Final = frozenset({"operator"})
_INFER: Final = frozenset({"client", "gateway", "operator", "batch"})
_REGIONS: Final = frozenset({"region"})
_BATCH: Final = frozenset({"client", "gateway", "operator", "router"})
"""Routers pass on what clients want of the batch service."""
_SCALE: Final = frozenset({"autoscaler", "planner"})
"""A planner that stands by passes on what KEDA calls."""
_LOOK: Final = _INFER | {"viewer"}
_ANYBODY: Final = frozenset({"*"})

_BY_SERVICE: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "cinquefoil.planner.v1.PlannerService": {
        "Join": frozenset({"agent"}),
        "ReportLoad": frozenset({"router"}),
        "ReportWaiting": frozenset({"batch"}),
        "Watch": _SEE | {"router"},
        "GetPlan": _SEE,
        "ListPlans": _SEE,
        "DryRun": _SEE,
        "Sweep": _SEE,
        "Explain": _SEE,
        "Diff": _SEE,
        "GetFleet": _SEE,
        "ReadAccount": _SEE,
        "ReadHistory": _SEE,
        "Apply": _CHANGE,
        "Pin": _CHANGE,
        "Unpin": _CHANGE,
        "Rollback": _CHANGE,
        "Freeze": _CHANGE,
        "Unfreeze": _CHANGE,
        "ChangeSettings": _CHANGE,
        "ListChangedSettings": _SEE,
        "SetObjective": _CHANGE,
        "CordonNode": _CHANGE,
        "UncordonNode": _CHANGE,
        "ForgetNode": _CHANGE,
        "SetPolicy": _CHANGE,
        "SetGridEvent": _CHANGE,
        "CancelGridEvent": _CHANGE,
        "ListGridEvents": _SEE,
        "ReportGridEvent": _SEE,
    },
    "cinquefoil.gpuagent.v1.GpuAgentService": {
        "GetNode": _SEE,
        "GetEnergy": _SEE,
        "Reconfigure": _CHANGE,
        "Reserve": _CHANGE,
    },
    "cinquefoil.gpuagent.v1.WorkerService": {"Execute": frozenset({"router", "agent", "operator"})},
    "cinquefoil.carbon.v1.CarbonService": {
        "ListZones": _SEE | {"planner", "router"},
        "GetIntensity": _SEE | {"planner", "router"},
        "GetHistory": _SEE | {"planner", "router"},
        "GetForecast": _SEE | {"planner", "router"},
        "Watch": _SEE | {"planner", "router"},
    },
    "cinquefoil.predictor.v1.PredictorService": {
        "Predict": frozenset({"router", "operator"}),
        "Observe": frozenset({"router"}),
        "Forget": _CHANGE,
        "GetStatistics": _SEE,
    },
    "cinquefoil.batch.v1.BatchService": {
        "Upload": _BATCH,
        "ListFiles": _BATCH,
        "GetFile": _BATCH,
        "Download": _BATCH,
        "DeleteFile": _BATCH,
        "Submit": _BATCH,
        "Get": _BATCH,
        "List": _BATCH,
        "Cancel": _BATCH,
        "Watch": _BATCH,
        "Results": _BATCH,
        "ReadAccount": _BATCH | _SEE,
        "GetReleases": _BATCH | _SEE,
    },
    "cinquefoil.regions.v1.RegionService": {
        "Exchange": _REGIONS,
        "ListRegions": _SEE,
        "DrainRegion": _CHANGE,
    },
    "cinquefoil.router.v1.RouterService": {"GetStatus": _SEE, "WatchReceipts": _SEE},
    "inference.GRPCInferenceService": {
        "ServerLive": _LOOK | _REGIONS,
        "ServerReady": _LOOK,
        "ModelReady": _LOOK,
        "ServerMetadata": _LOOK,
        "ModelMetadata": _LOOK,
        "ModelConfig": _LOOK,
        "ModelStatistics": _SEE,
        "RepositoryIndex": _LOOK,
        "ModelInfer": _INFER | _REGIONS,
        "ModelStreamInfer": _INFER | _REGIONS,
        "SystemSharedMemoryStatus": _INFER,
        "SystemSharedMemoryRegister": _INFER,
        "SystemSharedMemoryUnregister": _INFER,
        "CudaSharedMemoryStatus": _INFER,
        "CudaSharedMemoryRegister": _INFER,
        "CudaSharedMemoryUnregister": _INFER,
        "RepositoryModelLoad": _CHANGE,
        "RepositoryModelUnload": _CHANGE,
        "TraceSetting": _CHANGE,
        "LogSettings": _CHANGE,
    },
    "envoy.service.ext_proc.v3.ExternalProcessor": {"Process": frozenset({"gateway"})},
    "externalscaler.ExternalScaler": {
        "IsActive": _SCALE,
        "StreamIsActive": _SCALE,
        "GetMetricSpec": _SCALE,
        "GetMetrics": _SCALE,
    },
    "grpc.health.v1.Health": {"Check": _ANYBODY, "List": _ANYBODY, "Watch": _ANYBODY},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _SEE},
}

METRICS: Final = "/metrics"
"""Name of reading a service's metrics, which is not a call."""

ALLOWED: Final[Mapping[str, frozenset[str]]] = {METRICS: _SEE} | {
    f"/{service}/{method}": roles
    for service, methods in _BY_SERVICE.items()
    for method, roles in methods.items()
}
"""Roles by method, "/package.Service/Method"."""

ON_BEHALF_OF: Final = "cinquefoil-on-behalf-of"
"""Metadata of an operator's order: name of the person who gave it, percent-encoded."""

_LONGEST_PERSON: Final = 100
_MOST_KNOWN: Final = 4096
_PLACED: Final = frozenset({"agent", "worker", "region"})
_BEARER: Final = "token:"
_BY_TOKEN: Final = frozenset({"client", "gateway", "viewer"})
"""Roles that a token can bring: services show certificates."""


class Token(NamedTuple):
    """A valid bearer token. Attributes: subject, until_s (when it expires, Unix time)."""

    subject: str
    until_s: float


Verify = Callable[[str], Token]
"""Reads a bearer token; raises Unauthenticated for one that is not valid."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a method.

    Attributes:
        name: The SPIFFE ID, else a SAN, else the common name of its certificate, or "token:" and
            its token's subject; "": unknown, where identities are not checked.
        roles: Roles of the caller; None: all.
        node: The node that an agent or worker belongs to, or the region of a region; "": of none.
        payer: Whose share of the server its calls take; None: that of its host.
        until_s: When its token expires, Unix time; a certificate ends its connection.
    """

    name: str = ""
    roles: frozenset[str] | None = None
    node: str = ""
    payer: Payer | None = None
    until_s: float = math.inf

    def may_be(self, role: str) -> bool:
        """Return whether the caller has a role."""
        return self.roles is None or role in self.roles


ANYBODY: Final = Caller()

_CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


caller: Final = _CALLER.get
"""Returns the caller of the call that is being answered."""


@asynccontextmanager
async def valid_until(until_s: float) -> AsyncIterator[None]:
    """Raise Unauthenticated where the block outlasts the identity of its caller.

    Args:
        until_s: When the identity expires, Unix time.
    """
    try:
        left_s = None if until_s == math.inf else until_s - time.time()
        async with asyncio.timeout(left_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unauthenticated("the caller's token or certificate has expired") from None


class Access:
    """The roles of a deployment, applied to calls."""

    def __init__(
        self,
        principals: Mapping[str, tuple[str, ...]],
        verify: Verify | None = None,
        *,
        node: str = "",
        lent: Sequence[str] = (),
        reflection: bool = False,
    ) -> None:
        """Apply patterns of identities by role.

        Args:
            principals: Patterns by role: exact, or a prefix that ends in "*".
            verify: Checks bearer tokens; None: no caller may show one.
            node: Of agents, only this node's may call; "": any.
            lent: Patterns of identities that agents of several nodes share, and that may call, too.
            reflection: Whether the server describes its methods.
        """
        self._principals = principals
        self._verify = verify
        self._node, self._lent = node, lent
        self.reflection = reflection
        self._known: dict[tuple[str, ...], Caller] = {}
        self._refusals: set[tuple[str, str]] = set()

    @classmethod
    def of(cls, deployment: Deployment, verify: Verify | None = None) -> Access | None:
        """Return the access rules of a service of a deployment; None: all calls are permitted."""
        principals, settings = deployment.principals, deployment.access
        if principals is None:
            return None
        shown = settings is not None and settings.reflection
        return cls(principals, verify, reflection=shown)

    def admit(self, method: str, context: Any) -> None:
        """Record the caller, and refuse one without permission, unless the transport has.

        Args:
            method: "/package.Service/Method".
            context: The call's ServicerContext.

        Raises:
            PermissionDenied: No role of the caller is permitted the method.
            Unauthenticated: The caller shows no identity, or a token that is not valid.
        """
        _CALLER.set(getattr(context, "caller", None) or self.identify(method, context))

    def payer(self, method: str, context: Any) -> Payer:
        """Return whose share a call takes, and note who calls at `context.caller`.

        The method "" stands for connecting, which every caller may do.

        Raises:
            PermissionDenied, Unauthenticated: As `admit`.
        """
        known = self.identify(method, context) if method else self._caller(_certified(context))
        context.caller = known
        return known.payer or Payer(host_of(context.peer()), UNKNOWN)

    def identify(self, method: str, context: Any) -> Caller:
        """Return who calls, as `admit`."""
        allowed = ALLOWED.get(method, frozenset())
        names, until_s = _certified(context), math.inf
        if not names and (token := self._token(context)) is not None:
            names, until_s = (_BEARER + token.subject,), token.until_s
        known = self._caller(names)
        if until_s < math.inf:
            known = replace(known, until_s=until_s)
        if allowed is _CHANGE and known.may_be("operator"):
            known = _on_behalf(known, context)
        if allowed is _ANYBODY or (known.roles and not allowed.isdisjoint(known.roles)):
            if allowed is _CHANGE:
                _audit.info("operator call", method=method, principal=known.name)
            return known
        self._log_refusal(method, known.name or host_of(context.peer()))
        if not names:
            other = "" if self._verify is None else " or a bearer token"
            raise Unauthenticated(f"{method}: no identity was shown; show a certificate{other}")
        raise PermissionDenied(
            f"{known.name} may not call {method}; access.roles permits "
            f"{', '.join(sorted(allowed)) or 'no role'}",
            reason="NOT_AUTHORISED",
        )

    def _caller(self, names: tuple[str, ...]) -> Caller:
        known = self._known.get(names)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[names] = self._found(names)
        return known

    def _found(self, names: tuple[str, ...]) -> Caller:
        matched = [
            (role, name)
            for role, patterns in self._principals.items()
            for pattern in patterns
            for name in names
            if matches(pattern, name) and (role != "agent" or self._is_ours(name))
        ]
        roles = frozenset(role for role, _ in matched)
        if names and names[0].startswith(_BEARER):  # issuers of tokens admit clients, not services
            roles = roles & _BY_TOKEN | {"client"}
        nodes = [name.rpartition("/")[2] for role, name in matched if role in _PLACED]
        name = matched[0][1] if matched else next(iter(names), "")
        rank = OPERATOR if "operator" in roles else KNOWN
        return Caller(name, roles, nodes[0] if nodes else "", Payer(name, rank) if name else None)

    def _is_ours(self, agent: str) -> bool:
        if not self._node or agent.rpartition("/")[2] == self._node:
            return True
        return any(matches(pattern, agent) for pattern in self._lent)

    def _token(self, context: Any) -> Token | None:
        if self._verify is None:
            return None
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                scheme, _, token = str(value).partition(" ")
                if scheme.lower() != "bearer":
                    raise Unauthenticated('authorization: must be "Bearer" and a token')
                return self._verify(token.strip())
        return None

    def _log_refusal(self, method: str, name: str) -> None:
        """Log a refusal; only the first of its kind as a warning, as floods would fill the disk."""
        kind = (method, name)
        if kind in self._refusals:
            _audit.debug("refused", method=method, principal=name)
            return
        if len(self._refusals) >= _MOST_KNOWN:
            self._refusals.clear()
        self._refusals.add(kind)
        _audit.warning("refused; again without a line", method=method, principal=name)


def _certified(context: Any) -> tuple[str, ...]:
    """Return the names in a verified certificate: SPIFFE ID, else SANs, else the CN."""
    found: Mapping[str, Any] = context.auth_context()
    for key in ("peer_spiffe_id", "x509_subject_alternative_name", "x509_common_name"):
        names = found.get(key)
        if names:
            return tuple(name.decode(errors="replace") for name in names)
    return ()


def _on_behalf(known: Caller, context: Any) -> Caller:
    """Return an operator's name with that of the person it acts for: "ada via NAME"."""
    for key, value in context.invocation_metadata() or ():
        if key == ON_BEHALF_OF and value:
            person = "".join(filter(str.isprintable, unquote(str(value))))[:_LONGEST_PERSON]
            return replace(known, name=f"{person} via {known.name}")
    return known
