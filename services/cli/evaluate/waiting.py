"""Questions of `cinquefoil eval` as waiting work: a batch that the running deployment answers.

Each variant that answers is counted for itself: the receipt names it. A question's `custom_id` has
all that its answer is read with, so that results can be read at any later time.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from pydantic_core import from_json, to_json

from cinquefoil.batch.v1 import batch_pb2 as pb
from services.cli.batch.orders import batch_stub, begun
from services.cli.client import connected
from services.cli.console.durations import seconds
from services.cli.evaluate.items import Item, items, prompt
from services.cli.evaluate.run import ANSWER, SHOWN, Result, keep, render, variants_of
from services.kit.config.loader import load
from services.kit.errors import FailedPrecondition, InvalidArgument

ENDPOINT: Final = "/v1/completions"
_NAME: Final = re.compile(r"eval-(\d{1,9})-(\d{1,4})-(\d{1,4})")
_LONG_S: Final = 3600.0


async def submit(config: Path, model: str, within: str, *, count: int, seed: int) -> None:
    """Begin a batch of the questions, and print how its results are read.

    Raises:
        InvalidArgument: The window cannot be, or the model generates no text.
        ServiceError: The deployment has no batch service, or it refuses the batch.
    """
    deployment = load(config)
    variants_of(deployment, model, ())
    try:
        window_s = seconds(within)
    except ValueError as error:
        raise InvalidArgument(f"--wait: {error}") from error
    async with connected(deployment) as clients:
        with tempfile.TemporaryDirectory(prefix="cinquefoil-eval-") as folder:
            file = Path(folder) / f"eval-{model}.jsonl"
            file.write_bytes(b"".join(lines(model, count, seed)))
            batch = await begun(batch_stub(clients), file, ENDPOINT, window_s)
    typer.echo(batch.id)
    typer.echo(f"Its accuracy, once answered: cinquefoil eval {model} --batch {batch.id}")


def lines(model: str, count: int, seed: int) -> Iterator[bytes]:
    """Yield the questions as lines of a batch."""
    shown, posed = _questions(count, seed)
    for number, item in enumerate(posed):
        body = {
            "model": model,
            "prompt": prompt(item, shown),
            "max_tokens": ANSWER.max_tokens,
            "temperature": ANSWER.temperature,
            "seed": ANSWER.seed,
            "stop": [ANSWER.stop],
        }
        name = f"eval-{seed}-{count}-{number}"
        yield to_json({"custom_id": name, "method": "POST", "url": ENDPOINT, "body": body}) + b"\n"


def _questions(count: int, seed: int) -> tuple[list[Item], list[Item]]:
    found = items(count + SHOWN, seed)
    return found[:SHOWN], found[SHOWN:]


async def show(config: Path, model: str, id_: str, *, save: bool, as_json: bool) -> None:
    """Print the accuracy of each variant that answered a batch of questions.

    Raises:
        FailedPrecondition: The batch has not ended.
        InvalidArgument: It has no questions of `eval`, or another model answered them; or nothing
            can be saved.
    """
    deployment = load(config)
    async with connected(deployment) as clients:
        stub = batch_stub(clients)
        batch = (await stub.Get(pb.GetRequest(id=id_))).batch
        if batch.model != model:
            raise InvalidArgument(f"{id_} is for model {batch.model!r}")
        if batch.state not in {pb.BATCH_STATE_COMPLETED, pb.BATCH_STATE_EXPIRED}:
            raise FailedPrecondition(
                f"{batch.completed} of {batch.lines} questions are answered; run again later: "
                f"cinquefoil batch watch {id_}"
            )
        found = list[bytes]()
        async for response in stub.Results(pb.ResultsRequest(id=id_), timeout=_LONG_S):
            found += response.lines
    results, seed = counted(found)
    render(model, results, seed, as_json=as_json)
    if save:
        if missing := set(deployment.models[model].variants) - {each.variant for each in results}:
            raise InvalidArgument(f"--save: variant {min(missing)!r} has answered no question")
        keep(config, model, results, seed)


@dataclass(slots=True)
class _Count:
    """Answers of a variant, as they are read. Attributes: as of `Result`."""

    questions: int = 0
    right: int = 0
    unread: int = 0
    tokens: int = 0


def counted(results: Iterable[bytes]) -> tuple[list[Result], int]:
    """Return the results by variant, and the seed of the questions.

    Args:
        results: Lines of a batch's output file.

    Raises:
        InvalidArgument: None of them is an answer to a question of `eval`.
    """
    counts, posed, seed = dict[str, _Count](), dict[tuple[int, int], list[Item]](), 0
    for line in results:
        answer = from_json(line)
        name = _NAME.fullmatch(answer.get("custom_id") or "")
        body = (answer.get("response") or {}).get("body") or {}
        if name is None or not body.get("choices"):
            continue
        seed, count, number = map(int, name.groups())
        if (seed, count) not in posed:
            posed[seed, count] = _questions(min(count, 1000), seed)[1]
        item = posed[seed, count][number]
        usage: Mapping[str, Any] = body.get("usage") or {}
        variant = (usage.get("cinquefoil") or {}).get("model_variant", "")
        found = counts.setdefault(str(variant), _Count())
        chosen = item.chosen(str(body["choices"][0].get("text", "")))
        found.questions += 1
        found.right += chosen == item.right
        found.unread += chosen is None
        found.tokens += int(usage.get("completion_tokens", 0))
    if not counts:
        raise InvalidArgument("the batch has no answer to a question of cinquefoil eval")
    return [
        Result(name, each.questions, each.right, each.unread, each.tokens)
        for name, each in sorted(counts.items())
    ], seed
