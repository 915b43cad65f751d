"""A request on its way through the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from services.router.core.model import Instance, Request
from services.router.core.pipeline.tensor_forwarding import (
    Origin,
    Tensor,
    compose,
    read_answer,
    read_request,
)
from services.router.core.worker_port import Cost, Result


class StageCost(NamedTuple):
    """What one stage did.

    Attributes:
        instance: Who.
        cost: What it took; None where the worker did not say.
    """

    instance: Instance
    cost: Cost | None


class PipelineRequest:
    """What is known of a request between its client and the stages.

    At each stage a request of its own stands for it, with a number of its own: whatever still
    refers to an earlier one refers to something that is over.

    Args:
        origin: The client's request.

    Attributes:
        now: The request that stands for it.
        variant, stage: Where that belongs; stage 0 is any variant's.
        stage_costs: What was done so far, stages that had to be done again included.
    """

    def __init__(self, origin: Request) -> None:
        self.now = origin
        self.variant, self.stage = "", 0
        self.stage_costs: list[StageCost] = []
        self._waited_s = 0.0
        self._origin = origin
        self._entered_s = origin.arrived_s
        self._read: Origin | None = None
        self._tensors: dict[str, Tensor] = {}
        origin.pipeline = self

    @property
    def number(self) -> int:
        """The client's request's."""
        return self._origin.number

    def onward(
        self,
        instance: Instance,
        result: Result,
        *,
        number: int,
        takes: Collection[str],
        now_s: float,
    ) -> Request:
        """Return the request of the stage after the one that has answered.

        Args:
            instance: Who answered.
            result: Its answer.
            number: For the request.
            takes: Names of the next stage's inputs; empty: not known, so that it gets all there is.
            now_s: Monotonic time.

        Raises:
            Internal, InvalidArgument: As `handover.compose`, or it is no answer.
        """
        self.stage_costs.append(StageCost(instance, result.cost))
        self._waited_s += self.now.sent_s - self._entered_s
        origin = self._read = self._read or read_request(self._origin.body)
        self._tensors = {
            **(self._tensors if instance.stage else origin.inputs),
            **read_answer(result.response),
        }
        self.variant, self.stage = instance.variant, instance.stage + 1
        last = self.stage + 1 == instance.stages
        body = compose(origin, self._tensors, takes or self._tensors, last=last)
        return self._stand_in(number, body, now_s)

    def again(self, number: int, now_s: float) -> Request:
        """Return the request that begins anew, for any variant."""
        self._waited_s += now_s - self._entered_s
        self.variant, self.stage = "", 0
        return self._stand_in(number, self._origin.body, now_s)

    @property
    def queue_s(self) -> float:
        """What it waited for instances, the one included that has it now, s."""
        return self._waited_s + self.now.sent_s - self._entered_s

    def whole(self, last: Cost | None) -> Cost | None:
        """Return what all stages took, given what the last did; its batch stands for the others'.

        None: no worker said anything.
        """
        told = [stage_cost.cost for stage_cost in self.stage_costs if stage_cost.cost] + (
            [last] if last else []
        )
        if not told:
            return None
        return Cost(
            energy_j=sum(cost.energy_j for cost in told),
            idle_energy_j=sum(cost.idle_energy_j for cost in told),
            method="+".join(dict.fromkeys(cost.method for cost in told)),
            queue_s=sum(cost.queue_s for cost in told),
            compute_s=sum(cost.compute_s for cost in told),
            batch_size=told[-1].batch_size,
            items=told[-1].items,
        )

    def _stand_in(self, number: int, body: bytes, now_s: float) -> Request:
        self._entered_s = now_s
        origin = self._origin
        self.now = Request(
            number=number,
            model=origin.model,
            body=body,
            arrived_s=origin.arrived_s,
            deadline_s=origin.deadline_s,
            traceparent=origin.traceparent,
            tracestate=origin.tracestate,
            priority=origin.priority,
            client=origin.client,
            whose=origin.whose,
            length_class=origin.length_class,
            boost_s=origin.boost_s,
            parts=origin.parts,
            pipeline=self,
        )
        return self.now
