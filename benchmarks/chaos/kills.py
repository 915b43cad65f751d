"""Every request has one end while workers, agent and planner are killed at random: the books.

A whole suite of real processes with simulated GPUs serves handwritten digits. Clients send N
requests, some one by one and some on streams; meanwhile `kill -9` meets workers, the agent and the
planner, each of which comes back. Every request is looked at by its id: answered with the label
that its variant gives to its image, or refused by the router with a reason. The rest is lost.
"""

import asyncio
import contextlib
import math
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psutil
import yaml

from benchmarks._secured import secure
from benchmarks.chaos.suite import VARIANTS, Digits, deployment, workers
from benchmarks.harness import Figures, Report
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Deployment, loader
from services.kit.net import free_port
from services.kit.rpc import dial
from services.kit.rpc.status import from_wire
from services.local.demo import model_family
from services.local.pki import Authority, identities
from services.local.up.health import until_answering
from services.local.up.suite import Suite

REQUESTS = 100_000
CALLERS, STREAMS, PER_STREAM = 24, 2, 8
TIMEOUT_S = 30.0
KILL_EVERY = 500
"""Requests from one kill to the next, on average: by time, a slow machine would only kill."""

LOOK_S = 0.01
KILLS = {"worker": 6, "gpuagent-node-0": 1, "planner": 1}


@dataclass
class Books:
    """Record of the clients.

    Attributes:
        ends: By request id, each end it had.
        kills: By what was killed.
        renewals: Number of renewals of all certificates.
    """

    ends: dict[str, list[str]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    renewals: int = 0

    def end(self, name: str, how: str) -> None:
        """Write an end down."""
        self.ends.setdefault(name, []).append(how)


# ---- clients -----------------------------------------------------------------------------------


async def call(infer: Any, digits: Digits, numbers: AsyncIterator[int], books: Books) -> None:
    """Send requests one after another."""
    async for number in numbers:
        try:
            answer = await infer(digits.request(number), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            reason = from_wire(error).reason
            books.end(str(number), "lost" if reason == "NO_ANSWER" else reason)
        else:
            how = digits.judge(answer) if answer.id == str(number) else "wrong"
            books.end(str(number), how)


async def converse(infer: Any, digits: Digits, numbers: AsyncIterator[int], books: Books) -> None:
    """Send requests on one stream, PER_STREAM at a time."""
    places = asyncio.Semaphore(PER_STREAM)

    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        async for number in numbers:
            await places.acquire()
            sent.append(str(number))
            yield digits.request(number)

    sent: list[str] = []
    try:
        async for answer in infer(requests()):
            found, parameters = answer.infer_response, answer.infer_response.parameters
            refused = parameters["cinquefoil_status"].string_param
            books.end(found.id, refused if answer.error_message else digits.judge(found))
            places.release()
    except grpc.aio.AioRpcError as error:
        books.kills[f"stream broken: {error.details()}"] += 1
    for name in set(sent) - books.ends.keys():
        books.end(name, "lost")


# ---- trouble -----------------------------------------------------------------------------------


async def kill(suite: Suite, folder: Path, rng: Random, books: Books) -> None:
    """Kill for ever."""
    while True:
        due = len(books.ends) + rng.expovariate(1 / KILL_EVERY)
        while len(books.ends) < due:  # noqa: ASYNC110 - ends are many, and set no event
            await asyncio.sleep(LOOK_S)
        (name,) = rng.choices(list(KILLS), list(KILLS.values()))
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if name != "worker":
                os.kill(suite.processes[name], signal.SIGKILL)
            elif not (found := await asyncio.to_thread(workers, folder)):
                continue
            else:
                rng.choice(found).kill()
            books.kills[name] += 1


async def renew(authority: Authority, deployment: Deployment, every_s: float, books: Books) -> None:
    """Issue new certificates for all again and again."""
    while math.isfinite(every_s):
        await asyncio.sleep(every_s)
        for identity in identities(deployment):
            await asyncio.to_thread(authority.issue, identity, 1)
        books.renewals += 1


# ---- the run -----------------------------------------------------------------------------------


async def run(
    folder: Path, requests: int, seed: int, *, tls: bool = False, rotate_s: float = math.inf
) -> Report:
    """Run it.

    Args:
        folder: For everything.
        requests: Number of requests.
        seed: Of the kills.
        tls: Mutual TLS among all services and clients.
        rotate_s: Time after which all have new certificates, again and again, s.
    """
    model_family.train(folder / "models", lambda _: None, list(VARIANTS))
    config, router = folder / "cinquefoil.yaml", f"127.0.0.1:{free_port()}"
    config.write_text(yaml.safe_dump(deployment(folder, router)))
    authority = secure(config, folder / "pki") if tls else None
    operator = loader.load(config).identity("operator")
    digits, books = Digits(folder / "models"), Books()
    async with Suite.of(config, folder / "logs") as suite, dial(router, operator) as channel:
        await asyncio.wait_for(until_answering(router, operator), 60)
        began_s = time.monotonic()
        work = [kill(suite, folder, Random(seed), books)]
        if authority is not None:
            work.append(renew(authority, loader.load(config), rotate_s, books))
        trouble = [asyncio.create_task(each, name="chaos.trouble") for each in work]
        try:
            await load(channel, digits, requests, books)
        finally:
            for task in trouble:
                task.cancel()
        took_s = time.monotonic() - began_s
        status = await RouterServiceStub(channel).GetStatus(router_pb2.GetStatusRequest())
    (model,) = status.models
    counted = {"accepted": model.accepted, "answered": model.answered, "failed": model.failed}
    return report(books, requests, took_s, counted)


async def load(channel: grpc.aio.Channel, digits: Digits, requests: int, books: Books) -> None:
    """Send all requests; return when each has an end."""
    unsent, stub = count(), GRPCInferenceServiceStub(channel)

    async def numbers() -> AsyncIterator[int]:
        while (number := next(unsent)) < requests:
            yield number

    async with asyncio.TaskGroup() as clients:
        for _ in range(CALLERS):
            clients.create_task(call(stub.ModelInfer, digits, numbers(), books))
        for _ in range(STREAMS):
            clients.create_task(converse(stub.ModelStreamInfer, digits, numbers(), books))


def report(books: Books, requests: int, took_s: float, counted: Mapping[str, int]) -> Report:
    """Return the table, and what must be zero."""
    ends = Counter(how for each in books.ends.values() for how in each)
    doubled = sum(len(each) > 1 for each in books.ends.values())
    lost = ends.pop("lost", 0) + requests - len(books.ends)
    wrong, answered = ends.pop("wrong", 0), ends.pop("answered", 0)
    row = {
        "requests": requests,
        "answered": answered,
        **{f"refused_{k}": v for k, v in ends.items()},
    }
    zero = {"lost": lost, "doubled": doubled, "wrong": wrong}
    kills = {**books.kills, "certificates_renewed": books.renewals, "took_s": took_s}
    router = {**counted, "answered_as_clients_saw": counted["answered"] == answered}
    tables = [
        Figures("requests, by how each ended", [{**row, **zero}]),
        Figures("killed meanwhile", [kills]),
        Figures("what the router counted", [router]),
    ]
    return Report(tables, {"benchmark": "chaos", **row, **zero, "kills": kills, "router": router})
