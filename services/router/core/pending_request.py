"""Dispatch state of a request, from its arrival until it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.kit.errors import ServiceError
from services.router.core.model import InstanceId, Request, ResponseReceiver
from services.router.core.pipeline.pipeline_request import PipelineRequest
from services.router.core.prefix_cache import MAX_PROMPT_BYTES, chain
from services.router.core.single_response import SingleResponse
from services.router.core.wire import prompt_of

_BYTES_PER_TOKEN = 4
"""Of usual prompts."""


class Holder(Protocol):
    """Keeps running totals of the requests that it holds."""

    def recount(self, pending: PendingRequest) -> None:
        """Update the totals after a change of a request's answer or predicted length."""
        ...


def prompt_blocks(body: bytes) -> tuple[int, ...]:
    """Return the names of the blocks of a serialized request's prompt (`prefix_cache.chain`)."""
    return chain(prompt_of(body, MAX_PROMPT_BYTES))


@dataclass(slots=True, eq=False)
class PendingRequest:
    """The dispatch state of one request.

    Only its own methods change it, and only `core.dispatch` and `core.queue` call those; all other
    code reads, but for `holders`.

    Attributes:
        request: The request as it arrived, or the one that stands for it at a stage of a pipeline.
        origin: The client's request that this one stands for; None: it is the client's own.
        pipeline: Progress through a pipeline, once a stage has answered.
        stand_in: Of a client's request: the newest one that stands for it at a stage.
        attempts: Number of workers that it was given to.
        deaths: Workers that died while they held it.
        refusals: Errors of instances that would not answer it: none is given it twice. None: no
            instance refused it.
        holder: The worker that has it; None while it waits.
        hedge: A second worker that has it as well.
        assigned_s: When it was last given to a worker.
        load: Requests that this worker then had, itself included.
        beside: Of these, those that can wait.
        marginal_j: Energy that it added, J; None: not known.
        ended: The caller was answered, was given an error, or has gone.
        answering: A part of the answer has come: no other worker can answer it any more.
        responses: Responses that have come.
        response_gap_s: Time between the newest response and the one before, or the assignment.
        length_decile: Predicted length of its answer; None: no prediction has come.
        boost_s: How much earlier it is ranked because of that, s.
        predicted_tokens: Predicted length of its answer, tokens; 0: no prediction has come.
        known_client: Identity of the client, once it was needed.
        known_prefix: Names of its prompt's blocks (`prefix_cache.chain`), once they were needed.
        prompt_bytes: Bodies, its own included, that its instance had still to read when it came
            there, where the instance choice is "consolidated".
        receiver: Receiver of its responses; None: a single one is expected, and none has come.
        holders: Totals that follow its changes.
    """

    request: Request
    origin: PendingRequest | None = None
    pipeline: PipelineRequest | None = None
    stand_in: PendingRequest | None = None
    attempts: int = 0
    deaths: int = 0
    refusals: Mapping[InstanceId, ServiceError] | None = None
    holder: InstanceId | None = None
    hedge: InstanceId | None = None
    assigned_s: float = 0.0
    load: int = 0
    beside: int = 0
    marginal_j: float | None = None
    ended: bool = False
    answering: bool = False
    responses: int = 0
    response_gap_s: float = 0.0
    length_decile: int | None = None
    boost_s: float = 0.0
    predicted_tokens: float = 0.0
    known_client: str = ""
    known_prefix: tuple[int, ...] | None = None
    prompt_bytes: int = 0
    receiver: ResponseReceiver | None = None
    holders: tuple[Holder, ...] = ()
    _responded_s: float = 0.0  # or, before that, given to a worker

    # ---- what others read ----------------------------------------------------------------------

    @property
    def order(self) -> int:
        """Rank by arrival; at a later stage of a pipeline that of the client's request."""
        return (self.origin or self).request.number

    @property
    def holding(self) -> tuple[InstanceId, ...]:
        """The workers that have it: the first, then the second; none while it waits."""
        return tuple(each for each in (self.holder, self.hedge) if each is not None)

    def takes_answer(self, instance: InstanceId) -> bool:
        """Return whether an instance may answer it.

        It may not where the request was withdrawn from it, or another's answer has begun.
        """
        return instance == self.holder or (instance == self.hedge and not self.answering)

    @property
    def queue_s(self) -> float:
        """Time it has waited for instances, all stages of a pipeline together, s."""
        if self.pipeline is None:
            return self.assigned_s - self.request.arrived_s
        return self.pipeline.waited_s((self.stand_in or self).assigned_s)

    def client(self) -> str:
        """Return the client's identity, determined when it is first needed."""
        if not self.known_client and self.request.client is not None:
            self.known_client = self.request.client()
        return self.known_client

    def prefix(self) -> tuple[int, ...]:
        """Return the names of its prompt's blocks, determined when they are first needed."""
        if self.known_prefix is None:
            self.known_prefix = prompt_blocks(self.request.body)
        return self.known_prefix

    def tokens_left(self, usual_tokens: float) -> float:
        """Return how many tokens of its answer are probably left to generate.

        Each response that has come counts as one token. An answer that is longer than predicted has
        one left; one whose caller has gone has none.

        Args:
            usual_tokens: Length of an answer without a prediction.
        """
        if self.ended:
            return 0.0
        expected = self.predicted_tokens or usual_tokens
        if self.request.max_tokens:
            expected = min(expected, self.request.max_tokens)
        return max(expected - self.responses, 1.0)

    def kv_tokens(self, usual_tokens: float) -> int:
        """Return how many tokens of a KV cache it probably takes once its answer is whole.

        Whole ones, so that their sum over requests that come and go stays exact.

        Args:
            usual_tokens: As of `tokens_left`; 0: not known, then the answer is as long as it may.
        """
        if self.ended:
            return 0
        prompt_tokens = self.request.prompt_bytes / _BYTES_PER_TOKEN
        answer = self.tokens_left(usual_tokens or self.request.max_tokens) + self.responses
        return math.ceil(prompt_tokens + answer)

    # ---- what the dispatcher does --------------------------------------------------------------

    def assign(
        self, instance: InstanceId, load: int, now_s: float, *, beside: int = 0, hedge: bool = False
    ) -> None:
        """Give it to an instance that now holds `load` requests; a hedge: to a second one.

        Args:
            instance: The instance.
            load: Requests that it holds.
            now_s: The time.
            beside: Of these, those that can wait.
            hedge: Another instance has it as well.
        """
        if hedge:
            self.hedge = instance
        else:
            self.holder = instance
        self.load, self.beside = load, beside
        self.attempts += 1
        self.assigned_s = self._responded_s = now_s

    def price(self, marginal_j: float | None) -> None:
        """Record the energy that it added; None: not known."""
        self.marginal_j = marginal_j

    def queue_behind(self, prompt_bytes: int) -> None:
        """Record the bodies that its instance has to read before it answers, its own included."""
        self.prompt_bytes = prompt_bytes

    def lose(self, instance: InstanceId) -> bool:
        """Take it from an instance that will not answer it; return whether another still may."""
        if instance not in self.holding:
            return True  # it was withdrawn from there
        was_holder = self.holder == instance
        if self.hedge is not None:
            self.holder = self.hedge if was_holder else self.holder
            self.hedge = None
            if not (self.answering and was_holder):
                return True
        self.holder = None
        return False

    def withdraw_first(self) -> None:
        """Take it from the first of its workers; the second one, if any, becomes the first."""
        self.holder, self.hedge = self.hedge, None

    def count_death(self) -> None:
        """Note that a worker died while it held this request."""
        self.deaths += 1

    def refuse(self, instance: InstanceId, error: ServiceError) -> None:
        """Note that an instance would not answer it, and why."""
        self.refusals = {**(self.refusals or {}), instance: error}

    def last_refusal(self) -> ServiceError:
        """Return the newest error of an instance that refused it; of several: says how many.

        Raises:
            ValueError: None has.
        """
        *before, error = {id(each): each for each in (self.refusals or {}).values()}.values()
        if before:
            refused = f"{len(before) + 1} instances refused this request"
            error.message = f"{refused}, the last: {error.message}"
        return error

    def begin_answer(self, instance: InstanceId, now_s: float) -> None:
        """Take a response of an instance that is not its last: no other can answer any more."""
        if self.hedge == instance:
            self.holder, self.hedge = instance, self.holder
        self.answering = True
        self.respond(now_s, last=False)
        if self.receiver is None:
            self.receiver = SingleResponse(self.request.model)

    def respond(self, now_s: float, *, last: bool) -> None:
        """Count a response."""
        self.ended = last
        self.response_gap_s, self._responded_s = now_s - self._responded_s, now_s
        self.responses += 1
        if self.holders:  # requests for other than texts have none
            self._report_change()

    def end(self) -> None:
        """End it without an answer."""
        self.ended = True
        self._report_change()

    def rank(self, length_decile: int, boost_s: float) -> None:
        """Set the predicted length and the boost that follows from it."""
        self.length_decile, self.boost_s = length_decile, boost_s

    def predict_tokens(self, predicted_tokens: float) -> None:
        """Set the predicted length, tokens."""
        self.predicted_tokens = predicted_tokens
        self._report_change()

    def start_pipeline(self) -> PipelineRequest:
        """Return its progress through a pipeline, which begins with the first stage's answer."""
        self.pipeline = self.pipeline or PipelineRequest(self.request)
        return self.pipeline

    def enter_stage(self, request: Request) -> PendingRequest:
        """Return the pending request that stands for it at the next stage."""
        origin = self.origin or self
        origin.stand_in = PendingRequest(
            request,
            origin,
            self.pipeline,
            length_decile=origin.length_decile,
            boost_s=origin.boost_s,
            predicted_tokens=origin.predicted_tokens,
            known_client=origin.known_client,
            receiver=origin.receiver,
        )
        return origin.stand_in

    def _report_change(self) -> None:
        for holder in self.holders:
            holder.recount(self)
