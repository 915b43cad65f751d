"""An authority for trying mutual TLS: certificates for every service of a deployment.

For production use SPIRE or cert-manager (docs/identities.md): they renew, and no key of an
authority lies on the disk of a machine that serves.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.kit.config import Deployment, Endpoint, Tls
from services.kit.errors import AlreadyExists, FailedPrecondition
from services.kit.net import split_address
from services.kit.whole_file import replacing
from services.local.endpoints import endpoints

CA_DAYS: Final = 3650
TRUST_DOMAIN: Final = "cinquefoil"
_PEM: Final = serialization.Encoding.PEM
_CLOCK_SKEW: Final = timedelta(minutes=5)
_HERE: Final = ("localhost", "127.0.0.1", "::1")
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a certificate's bearer.

    Attributes:
        role: planner, router, carbon, predictor, batch, agent, worker, operator, viewer, gateway,
            client.
        name: Of its bearer, where a role has many: the node of an agent; "": there is one.
        hosts: DNS names and IP addresses that others dial it by.
        place: Folder below the authority's; "": role and name.
    """

    role: str
    name: str = ""
    hosts: tuple[str, ...] = ()
    place: str = ""

    def spiffe_id(self, trust_domain: str) -> str:
        """Return the SPIFFE ID."""
        return f"spiffe://{trust_domain}/{self.role}" + (f"/{self.name}" if self.name else "")


def identities(deployment: Deployment) -> Iterator[Identity]:
    """Yield every service of a deployment, its region, an operator and a client."""
    for each in endpoints(deployment):
        yield Identity(each.role, each.node, _hosts(each.endpoint))
    for name, node in deployment.nodes.items():
        yield Identity("worker", name, _named((node.worker_host,)))
    if deployment.regions is not None:
        yield Identity("region", deployment.regions.name)
    yield Identity("operator", "local", place="operator")  # the command line's own
    yield Identity("client", "local")


class Authority:
    """A certificate authority in a folder: ca.crt, and ca.key, which must not leave it."""

    def __init__(self, folder: Path, trust_domain: str) -> None:
        """Open the authority of `folder`.

        Raises:
            FailedPrecondition: There is none, or it cannot be read.
        """
        self._folder, self._trust_domain = folder, trust_domain
        try:
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            self._certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        except FileNotFoundError as error:
            raise FailedPrecondition(
                f"{folder} has no authority; `cinquefoil pki init` makes one"
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise FailedPrecondition(f"{folder}: the authority cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise FailedPrecondition(f"{folder}/ca.key: must be an elliptic-curve key")
        self._key = key

    @classmethod
    def made(cls, folder: Path, trust_domain: str) -> Authority:
        """Make an authority in `folder`.

        Raises:
            AlreadyExists: The folder has one.
        """
        if (folder / "ca.key").exists():
            raise AlreadyExists(f"{folder} has an authority already; issue certificates with it")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{trust_domain} authority")])
        now = datetime.now(UTC)
        certificate = (
            _builder(name, key, now, CA_DAYS)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]
                ),
                critical=False,
            )
            .sign(key, hashes.SHA256())
        )
        # Services' users pass through it to their own folders; they can neither list nor read it.
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)
        _write(folder / "ca.key", _pem(key), 0o600)
        _write(folder / "ca.crt", certificate.public_bytes(_PEM), 0o644)
        return cls(folder, trust_domain)

    def issue(self, identity: Identity, days: float) -> Path:
        """Write tls.key, tls.crt and ca.crt, as cert-manager does; return their folder.

        Args:
            identity: Identity of its bearer.
            days: How long it is valid.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        common = x509.NameAttribute(NameOID.COMMON_NAME, identity.name or identity.role)
        spiffe_id = x509.UniformResourceIdentifier(identity.spiffe_id(self._trust_domain))
        certificate = (
            _builder(x509.Name([common]), key, datetime.now(UTC), days)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([spiffe_id, *map(_general_name, identity.hosts)]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        folder = self._folder / (identity.place or f"{identity.role}/{identity.name}")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.parent != self._folder:
            folder.parent.chmod(0o711)
        _write(folder / "tls.key", _pem(key), 0o600)
        _write(folder / "ca.crt", self._certificate.public_bytes(_PEM), 0o644)
        _write(folder / "tls.crt", certificate.public_bytes(_PEM), 0o644)
        return folder


def problem(tls: Tls, now: datetime) -> str:
    """Return the problem of a certificate now; "": none, or it is not on this machine.

    Args:
        tls: Files of one identity.
        now: The time.
    """
    file = tls.certificate_file
    if file is None or not file.is_file():
        return ""
    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
        trusted = tls.ca_file.read_bytes() if tls.ca_file else b""
        authorities = x509.load_pem_x509_certificates(trusted) if trusted else []
    except (OSError, ValueError) as error:
        return f"{file} cannot be read: {error}"
    begins, ends = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
    if now > ends:
        return f"{file} expired at {ends:%Y-%m-%d %H:%M} UTC"
    if now < begins:
        return f"{file} is valid from {begins:%Y-%m-%d %H:%M} UTC on"
    if authorities and not any(_issued(chain[-1], each) for each in authorities):
        return f"{file} is not signed by an authority of {tls.ca_file}"
    return ""


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def settings(folder: Path, trust_domain: str) -> str:
    """Return the sections of the deployment file that use the certificates of `folder`."""
    return (
        "tls:\n"
        f"  certificate_file: {folder}/{{service}}/{{node}}/tls.crt\n"
        f"  key_file: {folder}/{{service}}/{{node}}/tls.key\n"
        f"  ca_file: {folder}/{{service}}/{{node}}/ca.crt\n"
        "access:\n"
        f"  trust_domain: {trust_domain}\n"
    )


def _hosts(endpoint: Endpoint) -> tuple[str, ...]:
    return _named(split_address(address)[0] for address in (endpoint.listen, *endpoint.dials))


def _named(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for host in (*hosts, *_HERE) if host not in _ANY))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        _PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that belongs to its folder's owner: root renews what a service's user reads."""
    with replacing(path, mode=mode) as draft:
        draft.write_bytes(data)
        owner, mine = path.parent.stat(), draft.stat()
        if (owner.st_uid, owner.st_gid) != (mine.st_uid, mine.st_gid):
            os.chown(draft, owner.st_uid, owner.st_gid)
