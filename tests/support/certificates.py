"""Certificates for tests, from the authority that `cinquefoil pki` makes."""

from pathlib import Path

from services.kit.config import Tls
from services.local.pki import Authority, Identity

DOMAIN = "cinquefoil"
HERE = ("localhost", "127.0.0.1")


def issued(folder: Path, *bearers: str, days: float = 1, hosts: tuple[str, ...] = HERE) -> Tls:
    """Return the settings of certificates for "role" or "role/name"; use `Tls.of` to choose one.

    The authority of the folder is made where it is missing.
    """
    new = not (folder / "ca.key").exists()
    authority = Authority.made(folder, DOMAIN) if new else Authority(folder, DOMAIN)
    for bearer in bearers:
        role, _, name = bearer.partition("/")
        authority.issue(Identity(role, name, hosts), days)
    return Tls(
        certificate_file=folder / "{service}/{node}/tls.crt",
        key_file=folder / "{service}/{node}/tls.key",
        ca_file=folder / "{service}/{node}/ca.crt",
    )
