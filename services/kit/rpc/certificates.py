"""Certificates in files that others renew."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.kit.clock import Clock, RealClock
from services.kit.errors import FailedPrecondition
from services.kit.net import is_ip, split_address
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from services.kit.config import Tls

CHECK_INTERVAL_S: Final = 1.0
"""Minimum time between two looks at the files, s."""

_log = logs.get("tls")

_Stamp = tuple[tuple[int, int], ...]
"""When the files were written, ns, and their inodes."""


def server_name(tls: Tls, address: str) -> str:
    """Return the name that the certificate of a peer must have.

    Args:
        tls: Of the side that dials.
        address: "host:port" by which the peer is dialled.
    """
    host, _ = split_address(address)
    return tls.ip_server_name if tls.ip_server_name and is_ip(host) else host


class CertificateFiles:
    """What the files of one identity hold, all read at the same time.

    Attributes:
        pair: Key and certificate chain, PEM; None: the side shows none.
        ca: Certificates of the authority, PEM; None: the system's.
    """

    def __init__(self, tls: Tls, clock: Clock | None = None) -> None:
        """Read the files.

        Raises:
            FailedPrecondition: One cannot be read.
        """
        self._tls = tls
        self._clock = clock or RealClock()
        self._looked_s = self._clock.monotonic()
        try:
            found = None
            while found is None:  # a renewal takes microseconds
                self._stamp = self._stamped()
                found = self._read(self._stamp)
            self.pair, self.ca = found
        except ssl.SSLError as error:
            raise FailedPrecondition(
                f"tls: {tls.certificate_file} and {tls.key_file} are no pair, PEM: {error.reason}"
            ) from error
        except OSError as error:
            raise FailedPrecondition(f"tls: {error.filename}: {error.strerror}") from error

    def changed(self) -> bool:
        """Read the files again if they were replaced; return whether they hold anything new.

        Files that cannot be read, or are being replaced, change nothing until the next look.
        """
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < CHECK_INTERVAL_S:
            return False
        self._looked_s = now_s
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return False
            found = self._read(stamp)
        except OSError as error:  # also ssl.SSLError: one of a pair is still the old one
            _log.warning("cannot use a certificate: the one before stays", error=str(error))
            return False
        if found is None:
            return False
        self._stamp = stamp
        if found == (self.pair, self.ca):
            return False
        self.pair, self.ca = found
        return True

    def _stamped(self) -> _Stamp:
        files = (self._tls.certificate_file, self._tls.key_file, self._tls.ca_file)
        stats = (file.stat() for file in files if file is not None)
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)

    def _read(self, stamp: _Stamp) -> tuple[tuple[bytes, bytes] | None, bytes | None] | None:
        """Return what the files hold; None: one was replaced since `stamp`.

        Then a key could have been read with the certificate of another.
        """
        key_file, chain_file = self._tls.key_file, self._tls.certificate_file
        ca = _bytes(self._tls.ca_file)
        pair = None
        if key_file is not None and chain_file is not None:
            pair = key_file.read_bytes(), chain_file.read_bytes()
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain_file, key_file)
        return (pair, ca) if self._stamped() == stamp else None


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return TLS for HTTP/2 that follows its files: the next connection has what these have.

    Raises:
        FailedPrecondition: A file is not given or cannot be read.
    """
    files = CertificateFiles(tls)
    if files.pair is None:
        raise FailedPrecondition("tls: a server needs certificate_file and key_file")

    def made() -> ssl.SSLContext:
        context = _http2(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files, tls)
        required = tls.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_NONE
        return context

    newest = made()

    def renew(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        nonlocal newest
        if files.changed():
            newest = made()
        connection.context = newest

    first = made()
    first.sni_callback = renew  # called for every connection, also where it names no server
    return first


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return TLS for HTTP/2 with what the files hold now.

    Raises:
        FailedPrecondition: A file cannot be read.
    """
    files = CertificateFiles(tls)
    if files.ca is None:
        return _http2(ssl.create_default_context(), files, tls)
    return _http2(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files, tls)


def _http2(context: ssl.SSLContext, files: CertificateFiles, tls: Tls) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if files.ca is not None:
        context.load_verify_locations(cadata=files.ca.decode("ascii", "replace"))
    if tls.certificate_file is not None and tls.key_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def _bytes(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
