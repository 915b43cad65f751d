"""Identities: certificates of the services, and permissions by role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from services.kit.config.section import Section
from services.kit.net import matches

Role = Literal[
    "planner",
    "agent",
    "worker",
    "router",
    "carbon",
    "predictor",
    "batch",
    "operator",
    "viewer",
    "gateway",
    "autoscaler",
    "region",
    "client",
]
Principal = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^*\s]*\*?$")]

_MANY = frozenset(
    {"agent", "worker", "operator", "viewer", "gateway", "autoscaler", "region", "client"}
)
"""Roles of more than one bearer: the last part of their identity names which."""


class Tls(Section):
    """Certificates, PEM: one identity for each service and node; read again when they change.

    `{service}` and `{node}` in the paths stand for planner, router, carbon, predictor, batch,
    region, agent, worker or operator (the command line), and for the node of an agent or worker.

    Attributes:
        certificate_file: Of this side; its SPIFFE ID, SANs or common name is its identity.
        key_file: Of the certificate.
        ca_file: Who signs the others' certificates.
        require_client_certificate: Mutual TLS: servers refuse clients without a certificate.
        ip_server_name: DNS name in the certificates of peers whose address is an IP address, as
            that of a pod is. Empty: their certificates have the address itself.
    """

    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    require_client_certificate: bool = True
    ip_server_name: Annotated[str, Field(pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$")] = ""

    def _problems(self) -> Iterator[str]:
        if self.require_client_certificate and self.ca_file is None:
            yield (
                "ca_file: needed to check the certificates of clients; without it, say "
                "require_client_certificate: false"
            )

    def of(self, service: str, node: str = "") -> Tls:
        """Return the files of one service."""
        names = ("certificate_file", "key_file", "ca_file")
        files: dict[str, Path | None] = {name: getattr(self, name) for name in names}
        return self.model_copy(
            update={
                name: Path(str(file).replace("{service}", service).replace("{node}", node))
                for name, file in files.items()
                if file is not None
            }
        )


class ClientTls(Section):
    """TLS to a third-party server, whose name must match its certificate.

    Attributes:
        ca_file: Authorities of the server's certificate, PEM. None: the machine's.
        certificate_file, key_file: Certificate to show, PEM. None: none.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def _problems(self) -> Iterator[str]:
        if (self.certificate_file is None) != (self.key_file is None):
            yield "give both certificate_file and key_file, or neither"


class Tokens(Section):
    """JSON Web Tokens that inference clients may show instead of a certificate (RFC 7519).

    Attributes:
        jwks_file: Public keys of the issuer (RFC 7517); read again when it changes.
        issuer: Required `iss`.
        audience: Required `aud`.
    """

    jwks_file: Path
    issuer: Annotated[str, Field(min_length=1)]
    audience: Annotated[str, Field(min_length=1)]


class Access(Section):
    """Permissions by role; calls that no role permits are refused.

    Attributes:
        trust_domain: SPIFFE trust domain. Roles that are not given have the identities that
            `cinquefoil pki` issues: spiffe://<trust_domain>/<role>, with a name after it where
            there are many (spiffe://cinquefoil/agent/node-a).
        roles: Identities by role, exact or with "*" at the end for a prefix. Of an agent the last
            part is its node's name. Only a gateway may speak for others by `x-client-id`.
        tokens: Tokens that clients may show at `router.token_listen`.
        insecure: Every caller may do everything.
        reflection: Whether servers describe their methods (gRPC reflection), to viewers and
            operators. Without TLS, on this machine only, they always do.
    """

    trust_domain: Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,255}$")] = "cinquefoil"
    roles: dict[Role, tuple[Principal, ...]] = Field(default_factory=dict)
    tokens: Tokens | None = None
    insecure: bool = False
    reflection: bool = False

    @property
    def principals(self) -> Mapping[str, tuple[str, ...]]:
        """Patterns of identities by role."""
        issued = {
            role: (f"spiffe://{self.trust_domain}/{role}{'/*' if role in _MANY else ''}",)
            for role in get_args(Role)
        }
        return {**issued, **self.roles}

    def _problems(self) -> Iterator[str]:
        if self.insecure and (self.roles or self.tokens is not None):
            yield "insecure: permits everything, so roles and tokens have no effect"


@dataclass(frozen=True, slots=True)
class ExpectedServer:
    """The role that a server must have.

    Attributes:
        role: The role's name.
        patterns: Identities that have it.
        node: The node that an agent must be of; "": any.
        lent: Patterns of identities that agents of several nodes share.
    """

    role: str
    patterns: Sequence[str]
    node: str = ""
    lent: Sequence[str] = ()

    def fault(self, names: Sequence[str]) -> str:
        """Return what is wrong with a server of these names; "": nothing."""
        if any(self._admits(name) for name in names):
            return ""
        place = f" of node {self.node}" if self.node else ""
        return (
            f"the server is {', '.join(names) or 'nobody'}, not {self.role}{place}: "
            f"access.roles.{self.role} permits {', '.join(self.patterns)}"
        )

    def _admits(self, name: str) -> bool:
        if not any(matches(pattern, name) for pattern in self.patterns):
            return False
        return (
            not self.node
            or name.rpartition("/")[2] == self.node
            or any(matches(pattern, name) for pattern in self.lent)
        )
