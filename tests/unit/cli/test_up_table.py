"""The table of addresses that `cinquefoil up` prints."""

import io

from rich.console import Console

from services.cli.up.run import endpoint_table
from services.kit.config.loader import load
from tests.support.paths import ROOT


def test_every_address_that_programs_may_use_is_in_the_table() -> None:
    """HTTP's, too: a client of the OpenAI API has no other way to know it."""
    deployment = load(ROOT / "cinquefoil.yaml")
    page = io.StringIO()
    Console(file=page, width=80).print(endpoint_table(deployment))

    services = (deployment.carbon, deployment.planner, deployment.router)
    for address in (*(each.listen for each in services), deployment.router.http_listen):
        assert address in page.getvalue()
