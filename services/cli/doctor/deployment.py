"""Checks of a deployment on this machine: the file, certificates, ports and disks."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from services.cli.config.check import FETCHES, TRAINS, check
from services.cli.doctor.finding import Finding, bad, fine, note
from services.kit.conditions import control_off
from services.kit.config import Deployment
from services.kit.config.loader import ConfigError, load
from services.kit.errors import FailedPrecondition
from services.kit.units import BYTES_PER_MIB
from services.local.endpoints import endpoints
from services.local.up.ports import refuse_taken

_LOW_MIB: Final = 1024
_SOON: Final = timedelta(days=7)


def deployment_file(path: Path) -> tuple[Deployment | None, list[Finding]]:
    """Return the deployment, if its file is valid, and the finding on the file."""
    subject = "deployment file"
    if not path.exists():
        return None, [note(subject, f"no {path}", "cinquefoil init writes the example")]
    try:
        deployment = load(path)
    except ConfigError as error:
        return None, [bad(subject, str(mistake), "correct the file") for mistake in error.mistakes]
    found = [_mistake(subject, str(mistake)) for mistake in check(path, deployment)]
    return deployment, [*(found or [fine(subject, str(path))]), *_read_only(deployment)]


def _mistake(subject: str, text: str) -> Finding:
    if TRAINS in text:
        return note(subject, text, "cinquefoil up")
    if FETCHES in text:
        return note(subject, text, "cinquefoil models fetch")
    return bad(subject, text, "correct the file")


def _read_only(deployment: Deployment) -> Iterator[Finding]:
    for name, node in deployment.nodes.items():
        if not node.controlled:
            off = control_off(name)
            yield bad(f"node {name}", off.sentence, f"set {off.setting}: true (docs/rights.md)")


def surroundings(deployment: Deployment) -> Iterator[Finding]:
    """Yield findings on ports, disks and certificates."""
    try:
        refuse_taken(deployment)
        yield fine("ports", "every address of the file is free")
    except FailedPrecondition as error:
        yield note("ports", error.message, "fine while this deployment runs; else change the port")
    yield from _disks(deployment)
    yield from _certificates(deployment)


def _disks(deployment: Deployment) -> Iterator[Finding]:
    for folder in sorted({node.state_dir.absolute() for node in deployment.nodes.values()}):
        there = next(each for each in (folder, *folder.parents) if each.exists())
        free_mib = shutil.disk_usage(there).free // BYTES_PER_MIB
        found = f"{free_mib} MiB are free on the disk of {folder}"
        if free_mib < _LOW_MIB:
            yield bad("disk", found, "free space, or move nodes.<name>.state_dir")
        else:
            yield fine("disk", found)


def _certificates(deployment: Deployment) -> Iterator[Finding]:
    files = {
        tls.certificate_file
        for each in endpoints(deployment)
        if (tls := deployment.identity(each.role, each.node)) is not None
        and tls.certificate_file is not None
    }
    for file in sorted(files):
        yield _certificate(file)


def _certificate(file: Path) -> Finding:
    remedy = "cinquefoil pki writes new ones"
    try:
        ends = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        return bad("certificate", f"{file} cannot be read: {error}", remedy)
    left = ends - datetime.now(UTC)
    found = f"{file} is valid until {ends:%Y-%m-%d %H:%M} UTC"
    if left < timedelta():
        return bad("certificate", f"{file} ended on {ends:%Y-%m-%d}", remedy)
    return note("certificate", found, remedy) if left < _SOON else fine("certificate", found)
