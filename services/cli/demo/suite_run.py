"""One suite of the demo."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.cli.client import Clients
from services.cli.demo.sample import Reading
from services.kit.config import Deployment
from services.local.demo.load import Tally


@dataclass(slots=True)
class Side:
    """One suite through the day.

    Attributes:
        deployment: Its file.
        clients: Its services.
        tally: Its requests.
        readings: Its planner's, oldest first.
    """

    deployment: Deployment
    clients: Clients
    tally: Tally = field(default_factory=Tally)
    readings: list[Reading] = field(default_factory=list)
