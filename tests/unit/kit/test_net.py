"""Addresses are taken apart, or refused with what is allowed."""

import pytest

from services.kit.config.section import Address, Section
from services.kit.net import (
    address_of,
    host_of,
    is_host,
    is_loopback,
    may_name,
    plain_ip,
    source_of,
    split_address,
    without_password,
)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:8461", ("127.0.0.1", 8461)),
        ("carbon:0", ("carbon", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("fd00::5:8463", ("fd00::5", 8463)),  # as $(POD_IP):8463 becomes
    ],
)
def test_host_and_port_are_taken_apart(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


def test_an_ipv6_address_gets_its_brackets() -> None:
    """Without them gRPC takes the port for a part of the address; in deployment files as well."""
    assert address_of("fd00::5", 8463) == "[fd00::5]:8463"
    assert address_of("10.0.0.1", 0) == "10.0.0.1:0"
    assert NodeSettings.model_validate({"node": "fd00::5:8463"}).node == "[fd00::5]:8463"


class NodeSettings(Section):
    """A part of a deployment file."""

    node: Address


@pytest.mark.parametrize(
    "address",
    [
        *("", "carbon", ":8461", "carbon:", "carbon:http", "carbon:65536", "carbon:-1"),
        *("carbon:²", "carbon:\u0661", f"carbon:{'9' * 5000}"),
    ],
)
def test_an_address_without_a_host_or_a_proper_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        split_address(address)


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.1:50002", "ipv6:[::1]:1", "unix:/run/router"])
def test_a_host_is_distinguished_from_a_name(peer: str) -> None:
    assert is_host(host_of(peer))
    for identity in ("id:batch", "token:batch", "spiffe://cinquefoil/client/app", "app"):
        assert not is_host(identity)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("carbon:1", False),
    ],
)
def test_only_this_machines_own_addresses_are_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hunter2@db:5432/plans", "postgresql://u:***@db:5432/plans"),
        ("postgresql://u:s/hunter2@db/plans", "postgresql://u:***@db/plans"),
        ("postgresql://u:s@hunter2@db/plans", "postgresql://u:***@db/plans"),
        ("postgresql://u:%2Fhunter2@db/plans", "postgresql://u:***@db/plans"),
        (
            "postgresql://db/plans?password=hunter2&ssl=x",
            "postgresql://db/plans?password=***&ssl=x",
        ),
        ("https://:hunter2@x.org", "https://:***@x.org"),
        ("postgresql://u@db:5432/plans", "postgresql://u@db:5432/plans"),
        ("out/state/planner.sqlite3", "out/state/planner.sqlite3"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    """A password that its writer forgot to escape is hidden, too."""
    assert without_password(url) == shown


NEVER = [
    "0.0.0.0",
    "::",
    "127.0.0.1",
    "::1",
    "169.254.169.254",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "64:ff9b::169.254.169.254",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
]


@pytest.mark.parametrize("address", NEVER)
def test_no_network_lets_a_peer_name_addresses_without_a_service(address: str) -> None:
    """Neither a network of everything nor a call from a neighbour does."""
    source = source_of("ipv4:10.0.0.7:50002")
    assert not may_name(plain_ip(address), source, ("0.0.0.0/0", "::/0"))


@pytest.mark.parametrize(
    ("address", "peer", "networks", "may"),
    [
        ("10.0.0.7", "ipv4:10.0.0.7:50002", (), True),
        ("10.0.0.7", "ipv6:%5B::ffff:10.0.0.7%5D:50002", (), True),
        ("fd00::7", "ipv6:[fd00::7]:50002", (), True),
        ("10.1.2.3", "ipv4:10.0.0.7:50002", (), False),
        ("10.1.2.3", "ipv4:10.0.0.7:50002", ("10.1.0.0/16",), True),
        ("10.2.2.3", "ipv4:10.0.0.7:50002", ("10.1.0.0/16", "fd00::/8"), False),
        ("127.0.0.1", "ipv4:127.0.0.1:50002", (), True),
        ("127.0.0.1", "ipv6:[::1]:50002", (), True),
        ("127.0.0.1", "unix:", ("127.0.0.0/8",), False),
        ("10.0.0.7", "unix:", (), False),
    ],
)
def test_a_peer_names_its_own_address_or_one_of_its_networks(
    address: str, peer: str, networks: tuple[str, ...], may: bool
) -> None:
    assert may_name(plain_ip(address), source_of(peer), networks) is may
