"""One suite of the demo."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.cli.client import Clients
from services.cli.demo.load import Tally
from services.cli.demo.reading import Reading
from services.kit.config import Deployment


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
