"""Certificate files that an external process renews."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from services.kit.clock import Clock, RealClock
from services.kit.errors import FailedPrecondition
from services.kit.net import is_ip, split_address
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from services.kit.config import ClientTls, ExpectedServer, Tls

CHECK_INTERVAL_S: Final = 1.0
"""Minimum time between two looks at the files, s."""

_log = logs.get("tls")

_TRIES: Final = 5
_PAUSE_S: Final = 0.05
"""Wait of the first read for the other file of a pair, s: its writer may wait for a core."""

T = TypeVar("T")

_Stamp = tuple[tuple[int, int], ...]
"""When the files were written, ns, and their inodes."""

_Pair = tuple[bytes, bytes]
"""Key and certificate chain."""

_newest: Final[dict[tuple[Path | None, ...], tuple[_Pair | None, bytes | None]]] = {}
"""Newest pair and authority that this process read, by their files."""


def server_name(tls: Tls, address: str) -> str:
    """Return the name that the certificate of a peer must have.

    Args:
        tls: Of the side that dials.
        address: "host:port" by which the peer is dialled.
    """
    host, _ = split_address(address)
    return tls.ip_server_name if tls.ip_server_name and is_ip(host) else host


class CertificateFiles:
    """Certificates and key of one identity, all read at the same time.

    While they are being replaced they hold what they held before, also where they are first opened
    then: a process that reads certificates for each connection must not end for a renewal.

    Attributes:
        pair: Key and certificate chain, PEM; None: the side shows none.
        ca: Certificates of the authority, PEM; None: the system's.
    """

    def __init__(self, tls: Tls | ClientTls, clock: Clock | None = None) -> None:
        """Read the files.

        Raises:
            FailedPrecondition: One cannot be read, or they are no pair, and this process never
                read them before.
        """
        self._files = (tls.certificate_file, tls.key_file, tls.ca_file)
        self._clock = clock or RealClock()
        self._looked_s = self._clock.monotonic()
        self._stamp: _Stamp = ()
        before = _newest.get(self._files)
        try:
            self._stamp, self.pair, self.ca = self._read(0 if before else _TRIES)
        except OSError as error:  # also ssl.SSLError
            if before is None:
                raise _refusal(tls, error) from error
            self.pair, self.ca = before
            _note(error)

    def changed(self) -> bool:
        """Read the files again if they were replaced; return whether they hold anything new.

        Files that cannot be read, or are being replaced, change nothing until the next look.
        """
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < CHECK_INTERVAL_S:
            return False
        self._looked_s = now_s
        try:
            if self._stamped() == self._stamp:
                return False
            self._stamp, pair, ca = self._read()
        except OSError as error:  # also ssl.SSLError: one of a pair is still the old one
            _note(error)
            return False
        is_new = (pair, ca) != (self.pair, self.ca)
        self.pair, self.ca = pair, ca
        return is_new

    def following(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that returns `make` of the current files, cached until they change."""
        newest = make()

        def current() -> T:
            nonlocal newest
            if self.changed():
                newest = make()
            return newest

        return current

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the pair and the trusted authority into a TLS context."""
        if self.pair is not None:
            _load_pair(context, self.pair)
        if self.ca is not None:
            context.load_verify_locations(cadata=self.ca.decode("ascii", "replace"))

    def _stamped(self) -> _Stamp:
        stats = (file.stat() for file in self._files if file is not None)
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def _read(self, tries: int = 0) -> tuple[_Stamp, _Pair | None, bytes | None]:
        """Return the files' content, and a time not later than when they were written.

        Args:
            tries: How often to wait for the other file of a pair.

        Raises:
            OSError: One cannot be read.
            ssl.SSLError: They are no pair.
        """
        chain_file, key_file, ca_file = self._files
        stamp, pair = self._stamped(), None
        ca = None if ca_file is None else ca_file.read_bytes()
        if key_file is not None and chain_file is not None:
            pair = key_file.read_bytes(), chain_file.read_bytes()
            try:
                _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
            except ssl.SSLError:
                if not tries:
                    raise
                time.sleep(_PAUSE_S)
                return self._read(tries - 1)
        _newest[self._files] = pair, ca
        return stamp, pair, ca


def _load_pair(context: ssl.SSLContext, pair: _Pair) -> None:
    """Load a pair into a TLS context, by temporary files, as no renewal can part those."""
    with ExitStack() as files:
        paths = []
        for content in pair:
            file = files.enter_context(os.fdopen(os.memfd_create("tls"), "wb"))
            file.write(content)
            file.flush()
            paths.append(f"/proc/self/fd/{file.fileno()}")
        key, chain = paths
        context.load_cert_chain(chain, key)


def _refusal(tls: Tls | ClientTls, error: OSError) -> FailedPrecondition:
    if isinstance(error, ssl.SSLError):
        files = f"{tls.certificate_file} and {tls.key_file}"
        return FailedPrecondition(f"tls: {files} are no pair, PEM: {error.reason}")
    return FailedPrecondition(f"tls: {error.filename}: {error.strerror}")


def _note(error: OSError) -> None:
    _log.warning("cannot use a certificate: the one before stays", error=str(error))


def server_context(tls: Tls, protocol: str = "h2", *, required: bool = True) -> ssl.SSLContext:
    """Return a server's TLS context; each new connection uses the files as they are then.

    Args:
        tls: The files.
        protocol: Protocol that is spoken over it, by its ALPN name.
        required: Whether mutual TLS turns callers without a certificate away; otherwise they may
            show one.

    Raises:
        FailedPrecondition: A file is not given or cannot be read.
    """
    files = CertificateFiles(tls)
    if files.pair is None:
        raise FailedPrecondition("tls: a server needs certificate_file and key_file")

    def made() -> ssl.SSLContext:
        context = _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files, protocol)
        if tls.require_client_certificate:
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    current = files.following(made)

    def renew(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = current()

    first = made()
    first.sni_callback = renew  # called for every connection, also where it names no server
    return first


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in a verified certificate: SPIFFE ID, else SANs, else the common name.

    Args:
        certificate: As `ssl.SSLObject.getpeercert` gives it.
    """
    alternatives = certificate.get("subjectAltName", ())
    ids = tuple(name for kind, name in alternatives if kind == "URI")
    if ids:
        return ids
    if alternatives:
        return tuple(name for _, name in alternatives)
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    return tuple(name for key, name in subject if key == "commonName")


def _expecting(expected: ExpectedServer) -> type[ssl.SSLObject]:
    """Return TLS whose handshake ends only with a server of this role."""

    class Expecting(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            if fault := expected.fault(names_of(self.getpeercert() or {})):
                raise ssl.SSLCertVerificationError(fault)

    return Expecting


def client_context(
    tls: Tls | ClientTls, *protocols: str, expected: ExpectedServer | None = None
) -> ssl.SSLContext:
    """Return a client's TLS context, made of the files as they are now.

    Args:
        tls: The files; without an authority the system's are trusted.
        protocols: Protocols that are spoken over it, by their ALPN names; none: no ALPN.
        expected: Role that the server must have, beside its name; None: any.

    Raises:
        FailedPrecondition: A file cannot be read.
    """
    files = CertificateFiles(tls)
    made = ssl.create_default_context if files.ca is None else _bare_context
    context = _filled(made(), files, *protocols)
    if expected is not None:
        context.sslobject_class = _expecting(expected)
    return context


def _bare_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _filled(context: ssl.SSLContext, files: CertificateFiles, *protocols: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.set_alpn_protocols(protocols)
    files.load_into(context)
    return context
