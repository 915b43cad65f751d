"""Follows the plans, through restarts of the planner."""

import asyncio
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import Clients, connected
from services.cli.console.output import as_line
from services.cli.console.quantities import carbon
from services.cli.plan.render import state
from services.kit.backoff import Backoff
from services.kit.config.loader import load
from services.kit.errors import Cancelled, Unavailable


async def follow(config: Path, *, after: int | None, as_json: bool) -> None:
    """Print every plan and every change of its state, for ever.

    Args:
        config: The deployment file.
        after: Begin with the plans after this version; None: with the newest.
        as_json: A line of JSON each.

    Raises:
        ServiceError: The planner refuses, or does not answer at first; later that is waited out.
    """
    reader = _Reader(after, as_json=as_json)
    backoff = Backoff(initial_s=0.2, maximum_s=5.0)
    async with connected(load(config)) as clients:
        while True:
            try:
                await reader.read(clients)
            except (Unavailable, Cancelled):
                if not reader.connected:
                    raise
            await asyncio.sleep(backoff.next_s())


class _Reader:
    """Printer of the plans, each state once. Attributes: connected (a response has come)."""

    def __init__(self, after: int | None, *, as_json: bool) -> None:
        self._after = after
        self._as_json = as_json
        self._printed: tuple[int, int] | None = None
        self._console = Console()
        self.connected = False

    async def read(self, clients: Clients) -> None:
        """Print the plans of a stream, until it ends."""
        request = planner_pb2.WatchRequest(after_version=self._after)
        async for response in clients.planner.Watch(request, timeout=None):
            self.connected = True
            if response.HasField("plan"):
                self._take(response.plan)

    def _take(self, plan: plan_pb2.Plan) -> None:
        self._after = plan.version
        if (plan.version, plan.state) != self._printed:
            self._printed = plan.version, plan.state
            if self._as_json:
                self._console.out(as_line(plan), highlight=False)
            else:
                self._console.print(_line(plan))


def _line(plan: plan_pb2.Plan) -> Text:
    expected = plan.prediction
    return Text.assemble(
        f"{plan.created_at.ToDatetime():%m-%d %H:%M:%S} ",
        (f"plan {plan.version} ", "bold"),
        state(plan),
        f" ({plan.strategy}, {expected.power_w:.0f} W, "
        f"{carbon(expected.carbon_gco2e_per_h)}/h): {plan.failure or plan.reason}",
    )
