"""The broker in the deployment file: what may be said of it, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from services.cli.config.check import check
from services.kit.config.loader import ConfigError
from tests.conftest import Deploy


def test_there_is_no_broker_unless_one_is_named(deployment: Deploy) -> None:
    assert deployment({}).mqtt is None


def test_files_are_found_beside_the_deployment_file(deployment: Deploy, tmp_path: Path) -> None:
    broker = {"broker": "b:8883", "username": "u", "password_file": "pw", "tls": {"ca_file": "ca"}}
    mqtt = deployment({"mqtt": broker}).mqtt

    assert mqtt is not None
    assert mqtt.tls is not None
    assert (mqtt.password_file, mqtt.tls.ca_file) == (tmp_path / "pw", tmp_path / "ca")


def test_files_that_are_missing_are_reported_before_the_start(
    deployment: Deploy, tmp_path: Path
) -> None:
    broker = {"broker": "b:8883", "username": "u", "password_file": "pw", "tls": {"ca_file": "ca"}}
    found = check(tmp_path / "cinquefoil.yaml", deployment({"mqtt": broker}))

    assert {each.where for each in found} >= {"mqtt.password_file", "mqtt.tls.ca_file"}


@pytest.mark.parametrize(
    ("mqtt", "why"),
    [
        ({}, "broker: required"),
        ({"broker": "b"}, "host:port"),
        ({"broker": "b:0"}, "port of 1..65535"),
        ({"broker": "b:1883", "prefix": "$SYS"}, "prefix"),
        ({"broker": "b:1883", "prefix": "a/#"}, "prefix"),
        ({"broker": "b:1883", "prefix": "a/"}, "prefix"),
        ({"broker": "b:1883", "password_file": "pw"}, "needs username"),
        ({"broker": "b:1883", "tls": {"key_file": "k"}}, "both certificate_file and key_file"),
    ],
)
def test_what_no_broker_understands_is_refused(
    deployment: Deploy, mqtt: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        deployment({"mqtt": mqtt})


def test_a_zone_that_comes_by_topic_needs_a_broker(deployment: Deploy) -> None:
    zone = {"source": {"kind": "mqtt", "topic": "grid/de"}}

    with pytest.raises(ConfigError, match="a topic needs a broker"):
        deployment({"carbon": {"zones": {"DE": zone}}})


def test_a_pattern_of_topics_is_no_zone(deployment: Deploy) -> None:
    zone = {"source": {"kind": "mqtt", "topic": "grid/#"}}

    with pytest.raises(ConfigError, match="topic"):
        deployment({"carbon": {"zones": {"DE": zone}}, "mqtt": {"broker": "b:1883"}})
