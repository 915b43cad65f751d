"""Mutual TLS for a deployment that is measured or tested."""

from pathlib import Path

from services.kit.config.loader import load
from services.local.pki import TRUST_DOMAIN, Authority, identities, settings


def secure(config: Path, folder: Path, days: float = 1) -> Authority:
    """Make an authority in `folder`, and have a deployment file use mutual TLS with it.

    Args:
        config: The file; has neither `tls` nor `access`.
        folder: Of the authority and the certificates of every service.
        days: Validity of the certificates, days.

    Raises:
        AlreadyExists: The folder has an authority.
        ConfigError: The file is wrong.
    """
    authority = Authority.made(folder, TRUST_DOMAIN)
    with config.open("a", encoding="utf-8") as file:
        file.write(settings(folder, TRUST_DOMAIN))
    for identity in identities(load(config)):
        authority.issue(identity, days)
    return authority
