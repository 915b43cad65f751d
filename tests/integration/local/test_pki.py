"""The authority for trying mutual TLS."""

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
