"""Poses the same questions to each variant of a language model, and counts right answers."""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich import progress
from rich.console import Console
from rich.text import Text

from inference import grpc_service_pb2_grpc as oip_grpc
from services.cli.client import connected
from services.cli.console.output import print_json, table
from services.cli.evaluate.items import CHOICES, Item, items, prompt
from services.cli.infer.generate import Sampling, request, responses
from services.cli.tensors import parameters_of, texts_of
from services.cli.up.waiting import until_ready
from services.cli.yaml_file import edited
from services.kit.config import Deployment, GenerativeRuntime, OpenAiRuntime
from services.kit.config.loader import ENV_PREFIX, ConfigError, load
from services.kit.errors import DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from services.local import derived
from services.local.up.suite import Suite

SHOWN: Final = 4
"""Solved questions in each prompt, of those that do not count."""

SLOTS: Final = 8
"""Questions in flight at a variant."""

UNIT: Final = "multiple choice"
"""The accuracies' unit in the deployment file."""

ANSWER: Final = Sampling(max_tokens=6, temperature=0.0, seed=0, stop="\n")
_ZONE: Final = "here"
_READY_S: Final = 300.0  # a server may load for minutes
_Z: Final = 1.96


@dataclass(frozen=True, slots=True)
class Result:
    """Answers of a variant, counted.

    Attributes:
        variant: The variant.
        questions: How many it was given.
        right: Those it got right.
        unread: Those whose answer named no choice; they count as wrong.
        tokens: Tokens that it generated.
    """

    variant: str
    questions: int
    right: int
    unread: int
    tokens: int

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0..1."""
        return self.right / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy (JASA 22, 1927)."""
        count, share, square = self.questions, self.accuracy, _Z**2
        middle = (share + square / (2 * count)) / (1 + square / count)
        spread = math.sqrt(share * (1 - share) / count + square / (4 * count**2))
        half = _Z * spread / (1 + square / count)
        return max(0.0, middle - half), min(1.0, middle + half)


async def evaluate(  # noqa: PLR0913 - a command's options are its arguments
    config: Path,
    model: str,
    chosen: Sequence[str],
    *,
    count: int,
    seed: int,
    save: bool,
    as_json: bool,
) -> None:
    """Measure variants of a model, print their results, and put their accuracies into the file.

    Each is started by itself on this machine, beside whatever runs, and stopped again.

    Args:
        config: Deployment file.
        model: A language model of it.
        chosen: Variants; empty: all.
        count: Questions.
        seed: Of their choice.
        save: Whether to write accuracies into the file.
        as_json: Print JSON.

    Raises:
        ServiceError: There is no such model or variant, it generates no text, it does not
            answer, or it got nothing right, which cannot be saved.
    """
    deployment = load(config)
    wanted = variants_of(deployment, model, chosen)
    if save and len(wanted) < len(deployment.models[model].variants):
        raise InvalidArgument(
            "--save needs accuracies of one kind for all variants of the model: leave --variant out"
        )
    shown, posed = (found := items(count + SHOWN, seed))[:SHOWN], found[SHOWN:]
    results = []
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bars:
        for name in wanted:
            bar = _Bar(bars, bars.add_task(name, total=count), name)
            results.append(await _of_variant(deployment, model, shown, posed, bar))
    render(model, results, seed, as_json=as_json)
    if save:
        keep(config, model, results, seed)


def variants_of(deployment: Deployment, model: str, chosen: Sequence[str]) -> Sequence[str]:
    """Return the variants to measure, the chosen ones or all.

    Raises:
        NotFound: There is no such model or variant.
        InvalidArgument: It generates no text here.
    """
    if model not in deployment.models:
        raise NotFound(f"no model {model!r}; models are {', '.join(sorted(deployment.models))}")
    variants = deployment.models[model].variants
    if unknown := sorted(set(chosen) - set(variants)):
        raise NotFound(f"{model!r} has no variant {unknown[0]!r}; it has {', '.join(variants)}")
    for name in (wanted := [name for name in variants if not chosen or name in chosen]):
        runtime = variants[name].runtime
        if not isinstance(runtime, GenerativeRuntime | OpenAiRuntime):
            raise InvalidArgument(
                f"models.{model}.variants.{name}.runtime.kind is {runtime.kind!r}: only language"
                " models, of the kinds generative and openai, answer questions;"
                " `cinquefoil init --data` measures other networks"
            )
    return wanted


@dataclass(slots=True)
class _Bar:
    """Progress of one variant. Attributes: bars (those of all), task, name, said (at last)."""

    bars: progress.Progress
    task: progress.TaskID
    name: str
    said: str = ""

    def advance(self) -> None:
        self.bars.advance(self.task)

    def say(self, what: str) -> None:
        self.said = what
        self.bars.update(self.task, description=f"{self.name}: {what}")


async def _of_variant(
    deployment: Deployment, model: str, shown: Sequence[Item], posed: Sequence[Item], bar: _Bar
) -> Result:
    name = bar.name
    with tempfile.TemporaryDirectory(prefix="cinquefoil-eval-") as folder:
        document = _document(deployment, model, name, Path(folder))
        file = derived.write(document, Path(folder))
        clean = {key: val for key, val in os.environ.items() if not key.startswith(ENV_PREFIX)}
        try:
            made = load(file)
        except ConfigError as error:
            raise InvalidArgument(f"variant {name!r} cannot run by itself: {error}") from None
        async with Suite.of(file, Path(folder) / "logs", environment=clean), connected(made) as to:
            try:
                async with asyncio.timeout(_READY_S):
                    stops = await until_ready(to, bar.say)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"variant {name!r} was not ready after {_READY_S:g} s: {bar.said}"
                ) from None
            if stops:
                raise Unavailable(f"variant {name!r} does not serve: {stops[0].sentence}")
            bar.say("questions")
            return await count_right(to.inference, model, name, shown, posed, bar.advance)


async def count_right(  # noqa: PLR0913, PLR0917 - questions, who answers, who is informed
    inference: oip_grpc.GRPCInferenceServiceAsyncStub,
    model: str,
    variant: str,
    shown: Sequence[Item],
    posed: Sequence[Item],
    advance: Callable[[], object] = lambda: None,
) -> Result:
    """Pose questions to a model that serves one variant.

    Args:
        inference: Of a router.
        model: The model.
        variant: What serves it.
        shown: Solved questions that every prompt begins with.
        posed: The others.
        advance: Called after each.

    Raises:
        ServiceError: A question was not answered.
    """
    room = asyncio.Semaphore(SLOTS)

    async def one(item: Item) -> tuple[int | None, int]:
        message = request(model, prompt(item, shown), ANSWER)
        message.parameters["chat"].bool_param = False
        text, tokens = "", 0
        async with room:
            async for response in responses(inference, message):
                text += "".join(texts_of(response, "text_output"))
                tokens = int(parameters_of(response).get("output_tokens", tokens))
        advance()
        return item.chosen(text), tokens

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item), name="eval.question") for item in posed]
    answers = [task.result() for task in tasks]
    return Result(
        variant,
        questions=len(posed),
        right=sum(a == item.right for (a, _), item in zip(answers, posed, strict=True)),
        unread=sum(a is None for a, _ in answers),
        tokens=sum(tokens for _, tokens in answers),
    )


def _document(deployment: Deployment, model: str, name: str, folder: Path) -> dict[str, Any]:
    """Return a deployment of one variant on this machine's cores."""
    variant = deployment.models[model].variants[name]
    section = variant.model_dump(mode="json", exclude_unset=True)
    section |= {"accuracy": 1, "profile": {"kind": "analytic", "gmacs_per_item": 1}}
    return {
        "version": "v1",
        "carbon": {
            **derived.anywhere(),
            "zones": {_ZONE: {"source": {"kind": "static", "intensity_gco2e_per_kwh": 1}}},
        },
        "nodes": {
            "eval": {
                **derived.anywhere(),
                "zone": _ZONE,
                "cpu": {"cores": os.cpu_count() or 1},
                "state_dir": str(folder / "state/node"),
            }
        },
        "model_cache": deployment.model_cache.model_dump(mode="json"),
        "models": {
            model: {
                "slo": {"latency_s": 600},
                "demand_rps": 0.01,
                "default_deadline_s": 600,
                "variants": {name: section},
            }
        },
        "planner": {
            **derived.anywhere(),
            "database": str(folder / "state/planner.sqlite3"),
            "strategy": "base",
            "max_processes": 1,
            "batch_sizes": [SLOTS],
        },
        "router": {**derived.anywhere(), "http_listen": ""},
        "console": {"listen": ""},
    }


def keep(config: Path, model: str, results: Sequence[Result], seed: int) -> None:
    """Put accuracies into the deployment file.

    Raises:
        InvalidArgument: A variant got nothing right; the file stays as it is.
    """
    if useless := [each.variant for each in results if not each.right]:
        raise InvalidArgument(
            f"models.{model}.variants.{useless[0]}.accuracy must be above 0, and it got none of "
            f"{results[0].questions} questions right: nothing is saved; remove the variant"
        )
    with edited(config) as document:
        section = document["models"][model]
        section["accuracy_unit"] = UNIT
        for result in results:
            variant, (low, high) = section["variants"][result.variant], result.interval
            variant["accuracy"] = round(result.accuracy, 4)
            variant.yaml_add_eol_comment(
                f"{result.right} of {result.questions} right, 95 % interval {low:.1%} to"
                f" {high:.1%}; cinquefoil eval, seed {seed}",
                "accuracy",
            )


def render(model: str, results: Sequence[Result], seed: int, *, as_json: bool) -> None:
    """Print the results of variants."""
    if as_json:
        variants = [
            {**asdict(each), "accuracy": each.accuracy, "interval": each.interval}
            for each in results
        ]
        print_json({"model": model, "seed": seed, "variants": variants})
        return
    rows = table(
        f"{model}, {results[0].questions} questions of {CHOICES} choices",
        *("variant", ">right", ">accuracy", ">95 % interval", ">no choice named", ">tokens"),
    )
    for each in results:
        low, high = each.interval
        rows.add_row(
            Text(each.variant),
            str(each.right),
            f"{each.accuracy:.1%}",
            f"{low:.1%} to {high:.1%}",
            str(each.unread),
            str(each.tokens),
        )
    Console().print(rows)
    typer.echo(f"by guessing: {1 / CHOICES:.0%}")
