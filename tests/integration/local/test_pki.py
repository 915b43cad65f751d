"""The authority for trying mutual TLS."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from cryptography import x509

from services.kit.errors import AlreadyExists, FailedPrecondition
from services.local.pki import Authority, Identity


def test_a_certificate_names_its_bearer_and_where_it_is_dialled(tmp_path: Path) -> None:
    folder = Authority.made(tmp_path, "example").issue(
        Identity("agent", "node-1", ("gpu-1.example", "10.0.0.1")), days=1
    )
    certificate = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    certificate.verify_directly_issued_by(authority)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://example/agent/node-1"
    ]
    assert names.get_values_for_type(x509.DNSName) == ["gpu-1.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


def test_keys_are_their_owner_s_alone(tmp_path: Path) -> None:
    folder = Authority.made(tmp_path, "example").issue(Identity("router"), days=1)
    for key in (tmp_path / "ca.key", folder / "tls.key"):
        assert key.stat().st_mode & 0o777 == 0o600


def test_an_authority_is_never_replaced_by_mistake(tmp_path: Path) -> None:
    Authority.made(tmp_path, "example")
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(AlreadyExists):
        Authority.made(tmp_path, "example")
    assert (tmp_path / "ca.key").read_bytes() == before


def test_without_an_authority_nothing_is_issued_and_the_way_is_shown(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="pki init"):
        Authority(tmp_path, "example")
    (tmp_path / "ca.key").write_text("damaged")
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        Authority(tmp_path, "example")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_service_s_user_reads_its_own_certificate_also_renewed_and_no_other(
    tmp_path: Path,
) -> None:
    """Root makes and renews them; each folder was given to its service's user."""
    stranger = 65534
    for each in (tmp_path, *tmp_path.parents):
        if each.is_relative_to(tempfile.gettempdir()) and str(each) != tempfile.gettempdir():
            each.chmod(0o711)  # pytest's own
    folder = Authority.made(tmp_path / "pki", "example").issue(Identity("agent", "rack-7"), days=1)
    for each in (folder, *folder.iterdir()):
        os.chown(each, stranger, stranger)
    Authority(tmp_path / "pki", "example").issue(Identity("agent", "rack-7"), days=1)

    def readable(path: Path) -> bool:
        command = ["setpriv", f"--reuid={stranger}", f"--regid={stranger}", "--clear-groups", "cat"]
        return subprocess.run([*command, path], capture_output=True, check=False).returncode == 0

    assert readable(folder / "tls.key")
    assert readable(folder / "ca.crt")
    assert not readable(tmp_path / "pki" / "ca.key")


def test_a_second_server_of_a_role_has_a_certificate_of_its_own(tmp_path: Path) -> None:
    """The same identity at another host, beside the first one's."""
    authority = Authority.made(tmp_path, "example")
    first = authority.issue(Identity("router", hosts=("a",)), days=1)
    before = (first / "tls.crt").read_bytes()
    second = authority.issue(Identity("router", hosts=("b",), place="router-2"), days=1)

    assert second == tmp_path / "router-2"
    assert (first / "tls.crt").read_bytes() == before
