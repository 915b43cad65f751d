"""Settings of an agent that announces itself, from file and environment."""

from pathlib import Path
from typing import Any

import pytest

from services.gpuagent.node_place import joining, place_of
from services.kit import config
from services.kit.errors import InvalidArgument
from tests.support.fake_agent import deployment


def joined(here: dict[str, Any], **join: Any) -> tuple[config.Deployment, str]:
    section = config.Join.model_validate({"listen": "0.0.0.0:8463", "pue": 1.3, **join})
    file = deployment(Path("out"), 1, (), config.Join())
    update = {"join": section, "node": config.ThisNode.model_validate(here)}
    return joining(file.model_copy(update=update))


def test_name_address_and_zone_are_the_nodes_own_and_the_rest_is_the_templates() -> None:
    found, name = joined({"name": "a", "address": "10.0.0.7:8463", "zone": "Z"})
    place = place_of(found, name)

    assert (place.name, place.settings.zone, place.settings.dial) == ("a", "Z", "10.0.0.7:8463")
    assert (place.settings.worker_host, place.settings.pue) == ("10.0.0.7", 1.3)
    assert place.others, "others may have joined, and take over what runs here"


@pytest.mark.parametrize(
    ("here", "zone"),
    [({"topology_zone": "eu-1a"}, "Z"), ({"topology_zone": "eu-1a", "zone": "X"}, "X"), ({}, "Y")],
    ids=["by topology", "its own", "of all others"],
)
def test_the_topology_zone_gives_the_electricity_zone_unless_the_node_does(
    here: dict[str, Any], zone: str
) -> None:
    """A cloud's availability zone is what a pod knows of its place."""
    address = {"name": "a", "address": "10.0.0.7:8463"}
    try:
        found, name = joined({**address, **here}, zone="Y", zone_of_topology={"eu-1a": "Z"})
        seen = place_of(found, name).settings.zone
    except InvalidArgument as error:  # the file has the zone Z only
        seen = str(error).partition("got '")[2].partition("'")[0]

    assert seen == zone


@pytest.mark.parametrize(
    ("here", "join", "what"),
    [
        ({"name": "a", "zone": "Z"}, {}, "node.address: required, since others cannot dial"),
        ({"name": "a", "address": "10.0.0.7:1"}, {}, "must be one of carbon.zones, Z; got ''"),
        ({"name": "a"}, {"names": ["b*"]}, r"join.names has b\*, got 'a'"),
        (
            {"name": "a", "zone": "Z", "address": "10.0.0.7:1"},
            {"listen": "127.0.0.1:8463"},
            "is not where the agent listens",
        ),
    ],
)
def test_what_would_not_work_is_refused_before_anything_starts(
    here: dict[str, Any], join: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidArgument, match=what):
        joined(here, **join)


def test_a_template_that_gives_each_node_the_same_address_is_refused() -> None:
    with pytest.raises(ValueError, match="address: differs from node to node"):
        config.Join.model_validate({"address": "10.0.0.7:8463"})
