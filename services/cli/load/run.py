"""`cinquefoil load`: sends, shows the progress, and closes the books."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from inference import grpc_service_pb2 as oip
from inference import grpc_service_pb2_grpc as oip_grpc
from services.cli.client import connected
from services.cli.console.output import print_json, table
from services.cli.console.quantities import carbon, energy, milliseconds, percent
from services.cli.load.books import PERCENTILES, Books
from services.cli.load.open_loop import send_each
from services.cli.load.profile import due_times_s
from services.cli.load.requests import Requests, requests_for
from services.cli.tensors import parameters_of
from services.kit.clock import Clock, RealClock
from services.kit.config.loader import load as load_file
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.plurals import counted
from services.kit.sketch import Sketch

_LINE_EVERY_S: Final = 5.0
_MOST_OPEN: Final = 10_000
_FULL: Final = f"{_MOST_OPEN} requests were open: not sent"


@dataclass(frozen=True, slots=True)
class Options:
    """Shape of a load.

    Attributes:
        rate_rps: Mean rate, req/s; None: the model's `demand_rps`.
        profile: "constant", "day", "bursts", or a CSV file.
        duration_s: Length, s.
        source: File of inputs; None: the demo's digits, or short prompts.
        seed: Of the arrivals.
    """

    rate_rps: float | None
    profile: str
    duration_s: float
    source: Path | None
    seed: int


async def load(config: Path, model: str, options: Options, *, as_json: bool) -> bool:
    """Send a load to a model of a suite that runs; return whether every request was answered.

    Raises:
        ConfigError: The file is wrong.
        InvalidArgument: The deployment has no such model, or the inputs do not fit it.
        ServiceError: The router does not answer.
    """
    deployment, console = load_file(config), Console(stderr=as_json)
    if model not in deployment.models:
        raise InvalidArgument(
            f"the deployment has no model {model!r}; it has {', '.join(deployment.models)}"
        )
    rate_rps = options.rate_rps or deployment.models[model].demand_rps or 1.0
    due_s = due_times_s(options.profile, rate_rps, options.duration_s, options.seed).tolist()
    async with connected(deployment) as clients:
        described = await clients.inference.ModelMetadata(oip.ModelMetadataRequest(name=model))
        sender = Sender(
            clients.inference,
            requests_for(described, options.source),
            Books(deployment.models[model].slo.latency_s),
            RealClock(),
            deployment.router.default_timeout_s,
        )
        count = counted(len(due_s), "request")
        console.print(
            f"{count} to {model} in {options.duration_s:g} s, {options.profile}", highlight=False
        )
        await send(console, sender, due_s)
    books = sender.books
    if as_json:
        print_json(books.document())
    else:
        console.print(render(model, books))
    return not books.lost


async def send(console: Console, sender: Sender, due_s: Iterable[float]) -> None:
    """Send requests when they are due, showing the progress; ctrl-c ends the load early."""
    progress = asyncio.create_task(_show(console, sender), name="load.show")
    try:
        await send_each(due_s, sender.send, sender.clock)
    except asyncio.CancelledError:
        # The border: ctrl-c is how a person ends a load, and its books are wanted.
        console.print("Stopped; requests that were open are not counted as lost.")
    finally:
        progress.cancel()


@dataclass(slots=True)
class Sender:
    """Sends requests to a router, and keeps their books."""

    inference: oip_grpc.GRPCInferenceServiceAsyncStub
    requests: Requests
    books: Books
    clock: Clock
    timeout_s: float

    async def send(self, number: int, planned_s: float) -> None:
        """Send one request and book its end."""
        if self.books.open >= _MOST_OPEN:
            self.books.sent += 1
            self.books.lose(_FULL)
            return
        self.books.sent += 1
        which = number % len(self.requests.messages)
        try:
            response: oip.ModelInferResponse = await self.inference.ModelInfer(
                self.requests.messages[which], timeout=self.timeout_s
            )
        except ServiceError as error:
            self.books.lose(f"{error.status}: {error.message}")
            return
        self.books.answer(self.clock.monotonic() - planned_s, parameters_of(response))
        right = self.requests.right(which, response)
        if right is not None:
            self.books.judge(right=right)


async def _show(console: Console, sender: Sender) -> None:
    """Print a line every few seconds, about these seconds."""
    books, before, answered = sender.books, sender.books.latencies(), 0
    seconds = 0.0
    while True:
        await sender.clock.sleep(_LINE_EVERY_S)
        seconds += _LINE_EVERY_S
        now = books.latencies()
        rate_rps = (books.answered - answered) / _LINE_EVERY_S
        console.print(Text(f"{seconds:4.0f} s  {_line(books, now - before, rate_rps)}"))
        before, answered = now, books.answered


def _line(books: Books, lately: Sketch, rate_rps: float) -> str:
    p95_s = lately.quantiles([95.0]).get(95.0)
    return (
        f"{rate_rps:.1f} answers/s, p95 {milliseconds(p95_s)} of "
        f"{milliseconds(books.objective_s)}, {books.open} open, {books.lost} lost"
    )


def render(model: str, books: Books) -> RenderableType:
    """Return the books as a table, with the reasons of losses."""
    quantiles = books.latencies().quantiles(PERCENTILES)
    answered, ended = max(books.answered, 1), books.answered + books.lost
    rows = [
        ("sent", f"{books.sent}"),
        ("answered / lost", f"{books.answered} / {books.lost}"),
        *((f"p{each:g}", milliseconds(quantiles.get(each))) for each in PERCENTILES),
        (
            f"within {milliseconds(books.objective_s)}",
            percent(books.in_time / ended) if ended else "-",
        ),
    ]
    if books.judged:
        rows.append(("accuracy, measured", f"{books.right / books.judged:.4f}"))
    if books.answered:
        methods = ", ".join(sorted(books.methods))
        rows += [
            (
                "variants",
                ", ".join(f"{n} {percent(c / answered)}" for n, c in books.variants.most_common()),
            ),
            ("energy per answer", f"{energy(books.energy_j / answered)} ({methods})"),
            ("carbon per answer", carbon(books.carbon_gco2e / answered)),
        ]
    reasons = [
        Text(f"lost {count}: {reason}", style="red")
        for reason, count in books.losses.most_common(3)
    ]
    return Group(table(f"Load on {model}", "", ">", rows=rows), *reasons)
