"""The other end of a connection, by the names that gRPC has for it."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence


def address(transport: asyncio.BaseTransport | None) -> str:
    """Return a peer's address: "ipv4:host:port", "ipv6:[host]:port" or "unix:"."""
    place = transport.get_extra_info("peername") if transport is not None else None
    if not isinstance(place, tuple):
        return "unix:"
    host, port = place[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def expires_s(transport: asyncio.BaseTransport | None) -> float | None:
    """Return when a peer's verified certificate expires, in Unix time; None: it showed none."""
    secure: ssl.SSLObject | None = (
        transport.get_extra_info("ssl_object") if transport is not None else None
    )
    certificate = secure.getpeercert() if secure is not None else None
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else None


def identity(transport: asyncio.BaseTransport | None) -> Mapping[str, Sequence[bytes]]:
    """Return the names in a peer's verified certificate, as grpc's auth_context has them."""
    secure: ssl.SSLObject | None = (
        transport.get_extra_info("ssl_object") if transport is not None else None
    )
    certificate = secure.getpeercert() if secure is not None else None
    if secure is None or not certificate:  # it was not required, or none was shown
        return {}
    names = [str(pair[1]).encode() for pair in certificate.get("subjectAltName", ())]
    common = [
        str(pair[1]).encode()
        for relative in certificate.get("subject", ())
        for pair in relative
        if pair[0] == "commonName"
    ]
    binary = secure.getpeercert(binary_form=True) or b""
    found = {
        "x509_pem_cert": [ssl.DER_cert_to_PEM_cert(binary).encode()],
        "peer_spiffe_id": [name for name in names if name.startswith(b"spiffe://")],
        "x509_subject_alternative_name": names,
        "x509_common_name": common,
    }
    return {key: value for key, value in found.items() if value}
