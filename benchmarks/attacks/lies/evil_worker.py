"""A real worker that gives a lie for an answer when it finds one in its folder.

Attackers put a file with the name of a lie there (`planted`); the first worker that answers, or
that says hello, takes it: each lie is given once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2 as oip

_LIE, _HELLO_LIE, _TAKEN = "lie", "hello-lie", "taken"

Lie = Callable[[pb.Result], None]
HelloLie = Callable[[pb.Hello], None]


def _figure(**figures: Any) -> Lie:
    def lie(result: pb.Result) -> None:
        for name, value in figures.items():
            setattr(result.receipt, name, value)

    return lie


def _answer(change: Callable[[oip.ModelInferResponse], None]) -> Lie:
    def lie(result: pb.Result) -> None:
        response = oip.ModelInferResponse.FromString(result.response)
        change(response)
        result.response = response.SerializeToString()

    return lie


def _with_id(response: oip.ModelInferResponse) -> None:
    response.id = "another's"


def _with_model(response: oip.ModelInferResponse) -> None:
    response.model_name = "another"


def _with_shape(response: oip.ModelInferResponse) -> None:
    response.outputs[0].shape[0] = 2**40


def _with_datatype(response: oip.ModelInferResponse) -> None:
    response.outputs[0].datatype = "FP64"


def _without_contents(response: oip.ModelInferResponse) -> None:
    del response.raw_output_contents[:]


def _of_another_work(result: pb.Result) -> None:
    result.id += 1000


def _in_parts(result: pb.Result) -> None:
    result.more = True


def _random(result: pb.Result) -> None:
    result.response = bytes(range(200))


def _of_unknown_status(result: pb.Result) -> None:
    result.status, result.message = "\x1b[2JFINE", "\x00" * 100_000


LIES: Final[Mapping[str, Lie]] = {
    "energy: NaN": _figure(energy_j=float("nan")),
    "energy: -1e300 J": _figure(energy_j=-1e300),
    "energy: 1e300 J": _figure(energy_j=1e300),
    "energy: 1e9 J in a second": _figure(energy_j=1e9),
    "energy: 5 kJ in a second, of a GPU of 400 W": _figure(energy_j=5e3),
    "idle energy: 1e300 J": _figure(idle_energy_j=1e300),
    "time: computed for ever": _figure(compute_s=float("inf")),
    "time: waited -5 s": _figure(queue_s=-5.0),
    "items: 2^32 - 1": _figure(items=2**32 - 1),
    "tokens: 2^32 - 1": _figure(output_tokens=2**32 - 1, input_tokens=2**32 - 1),
    "method: of its own": _figure(energy_method="\x1b[31mmeasured"),
    "id: of another request": _answer(_with_id),
    "model: another": _answer(_with_model),
    "shape: 2^40": _answer(_with_shape),
    "datatype: another": _answer(_with_datatype),
    "contents: none": _answer(_without_contents),
    "work: unknown": _of_another_work,
    "answer: random bytes": _random,
    "status: unknown, and control characters": _of_unknown_status,
    "parts: of a model that has none": _in_parts,
}


def _of_another_segment(hello: pb.Hello) -> None:
    hello.segment_id = "s-another"


def _of_another_model(hello: pb.Hello) -> None:
    hello.model, hello.variant = "another", "another"


def _with_credits(hello: pb.Hello) -> None:
    hello.credits = 2**32 - 1


def _with_metadata(hello: pb.Hello) -> None:
    hello.metadata = b"\xff" * 100


HELLO_LIES: Final[Mapping[str, HelloLie]] = {
    "hello: another segment": _of_another_segment,
    "hello: another model": _of_another_model,
    "hello: 2^32 - 1 credits": _with_credits,
    "hello: metadata of random bytes": _with_metadata,
}


def planted(folder: Path, lie: str) -> Path:
    """Leave a lie for the workers of a folder; return the file that is there once one took it."""
    for file in (_LIE, _HELLO_LIE, _TAKEN):
        (folder / file).unlink(missing_ok=True)
    (folder / (_LIE if lie in LIES else _HELLO_LIE)).write_text(lie, encoding="utf-8")
    return folder / _TAKEN


class _Lying:
    """Context of a call whose messages may become lies."""

    def __init__(self, context: Any, folder: Path) -> None:
        self._context, self._folder = context, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, response: pb.ExecuteResponse) -> None:
        """Write a message, or a lie."""
        if response.HasField("hello") and (name := self._taken(_HELLO_LIE)):
            HELLO_LIES[name](response.hello)
        elif response.results and response.results[0].response and (name := self._taken(_LIE)):
            LIES[name](response.results[0])
        elif response.results and (self._folder / _HELLO_LIE).exists():
            raise ConnectionError  # the router connects again, and hears the lie
        await self._context.write(response)

    def _taken(self, file: str) -> str:
        path, taken = self._folder / file, self._folder / _TAKEN
        with suppress(FileNotFoundError):
            path.rename(taken)
            return taken.read_text(encoding="utf-8")
        return ""


def _corrupt(folder: Path) -> None:
    """Make the worker of this process look for lies in a folder."""
    from services.gpuagent.worker.servicer import WorkerServicer  # noqa: PLC0415 - in a worker only

    honest = WorkerServicer.Execute

    async def execute(self: WorkerServicer, requests: Any, context: Any) -> None:
        lying: Any = _Lying(context, folder)
        await honest(self, requests, lying)

    WorkerServicer.Execute = execute  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    gc.disable()
    from services.gpuagent.worker.app import launch

    spec = Path(sys.argv[1])
    _corrupt(spec.parent)
    sys.exit(launch(spec))
