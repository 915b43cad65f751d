"""Gives a worker of a language model rounds of texts, and measures its prompts and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2 as oip
from services.gpuagent.profiling.core.samples import Effort
from services.gpuagent.profiling.core.text_rounds import STEPS, Round, of_phases
from services.gpuagent.profiling.profiler.load_driver import Call, failed, greeted, results
from services.kit.clock import Clock
from services.kit.profiles.core.measurement import Measurement

if TYPE_CHECKING:
    from services.kit.config import Tls

LEAST_CYCLES: Final = 3
"""Of the three rounds each, unless `Effort.least_batches` is less; two at least."""

_FIRST_ANSWER: Final = 4
_LONGEST_ANSWER: Final = 4096
_TRIES: Final = 8  # of a round in which an answer ends by itself
_WORDS: Final = (
    "river", "stone", "green", "paper", "cloud", "seven", "horse",
    "table", "under", "light", "winter", "sugar", "metal", "garden",
)  # fmt: skip


async def drive_texts(
    endpoint: str, point: Measurement, effort: Effort, clock: Clock, tls: Tls | None = None
) -> Measurement:
    """Measure a point of a language model: `batch_size` texts at a time.

    Args:
        endpoint: "host:port" of the worker.
        point: What runs there; `prompt_tokens` is the length of each prompt.
        effort: How long.
        clock: Time.
        tls: For dialling the worker.

    Raises:
        FailedPrecondition: The worker failed, or cannot take such texts.
    """
    async with greeted(endpoint, tls) as (call, hello):
        texts = _Texts(call, hello.model, point.batch_size, Random(point.prompt_tokens))  # noqa: S311  # texts, no secret
        return await _measured(texts, point, effort, clock)


async def _measured(texts: _Texts, point: Measurement, effort: Effort, clock: Clock) -> Measurement:
    await texts.learn_words(point.prompt_tokens)
    answer = _FIRST_ANSWER
    while answer <= _LONGEST_ANSWER:
        rounds = await _cycles(texts, answer, effort, clock)
        if rounds is not None:
            return of_phases(replace(point, energy_method=texts.energy_method), *rounds)
        answer *= 2
    raise failed(f"{point.batch_size} texts never answer at the same time: too few slots")


async def _cycles(
    texts: _Texts, answer: int, effort: Effort, clock: Clock
) -> Sequence[list[Round]] | None:
    """Return rounds of prompts, of shorter and of longer answers; None: they must be longer."""
    began_s = clock.monotonic()
    rounds: dict[int, list[Round]] = {1: [], answer: [], answer + STEPS: []}
    while True:
        cycle = [await texts.round(tokens) for tokens in rounds]
        if not all(each.together for each in cycle[1:]):
            return None
        now_s = clock.monotonic()
        if now_s - began_s < effort.warm_up_s:
            continue
        for each in cycle:
            rounds[each.answer_tokens].append(each)
        enough = len(rounds[1]) >= max(min(LEAST_CYCLES, effort.least_batches), 2)
        if enough and now_s - began_s >= effort.warm_up_s + effort.least_s:
            return list(rounds.values())


@dataclass(slots=True)
class _Texts:
    """Texts for one worker. Attributes: energy_method (of the last receipt)."""

    call: Call
    model: str
    requests: int
    random: Random
    words: int = 1
    energy_method: str = ""
    _ids: count[int] = field(default_factory=count)

    async def learn_words(self, prompt_tokens: int) -> None:
        """Find how many words have so many tokens."""
        self.words = 40
        (receipt,) = await self._answers(1, 1)
        self.words = max(round(self.words * prompt_tokens / receipt.input_tokens), 1)

    async def round(self, answer_tokens: int) -> Round:
        """Send requests at once, and wait for all answers."""
        for _ in range(_TRIES):
            receipts = await self._answers(self.requests, answer_tokens)
            if all(each.output_tokens == answer_tokens for each in receipts):
                break
        else:
            raise failed(f"answers of {answer_tokens} tokens end by themselves, or do not fit")
        self.energy_method = receipts[0].energy_method
        last = max(receipts, key=lambda each: each.first_token_s)
        ends_s = [each.queue_s + each.compute_s for each in receipts]
        return Round(
            answer_tokens,
            sum(each.input_tokens for each in receipts),
            max(ends_s),
            last.token_s * (answer_tokens - 1),
            sum(each.energy_j for each in receipts),
            max(each.first_token_s for each in receipts) <= min(ends_s),
        )

    async def _answers(self, requests: int, tokens: int) -> Sequence[pb.Receipt]:
        work = [pb.Work(id=next(self._ids), request=self._request(tokens)) for _ in range(requests)]
        await self.call.write(pb.ExecuteRequest(work=work))
        found: list[pb.Receipt] = []
        while len(found) < requests:
            found += [each.receipt for each in await results(self.call) if not each.more]
        return found

    def _request(self, tokens: int) -> bytes:
        """Return a request whose prompt is like no other: hardly any of it is cached."""
        words = " ".join(self.random.choices(_WORDS, k=self.words))
        message = oip.ModelInferRequest(model_name=self.model)
        message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        data = words.encode()
        message.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
        message.parameters["max_tokens"].int64_param = tokens
        message.parameters["temperature"].double_param = 2.0  # the likeliest may end the text
        message.parameters["chat"].bool_param = False
        return message.SerializeToString()
