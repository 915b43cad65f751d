"""The progress of a client's request through the stages of a pipeline."""

from collections.abc import Collection
from typing import NamedTuple

from services.kit.request_cost import Cost
from services.router.core.model import Instance, Request
from services.router.core.pipeline.tensor_forwarding import (
    Origin,
    Tensor,
    compose,
    read_answer,
    read_request,
)


class StageCost(NamedTuple):
    """The cost of one stage.

    Attributes:
        instance: The instance that ran it.
        cost: Cost that its worker reported; None: it reported none.
    """

    instance: Instance
    cost: Cost | None


class PipelineRequest:
    """State of a request between its client and the stages.

    At each stage a request with a number of its own stands for the client's: earlier numbers
    are those of requests that have ended.

    Args:
        origin: The client's request.

    Attributes:
        variant, stage: Where the newest of these requests belongs; stage 0 is any variant's.
        stage_costs: Costs so far, those of stages that had to be repeated included.
    """

    def __init__(self, origin: Request) -> None:
        self.variant, self.stage = "", 0
        self.stage_costs: list[StageCost] = []
        self._origin = origin
        self._entered_s = origin.arrived_s
        self._waited_s = 0.0
        self._read: Origin | None = None
        self._tensors: dict[str, Tensor] = {}

    def waited_s(self, assigned_s: float) -> float:
        """Return the time spent waiting for instances, s.

        Args:
            assigned_s: When the newest of its requests was given to an instance.
        """
        return self._waited_s + assigned_s - self._entered_s

    def leave_stage(self, instance: Instance, cost: Cost | None, assigned_s: float) -> None:
        """Note that an instance has answered, and when it was given the request."""
        self.stage_costs.append(StageCost(instance, cost))
        self._waited_s = self.waited_s(assigned_s)

    def next_request(
        self,
        instance: Instance,
        response: bytes,
        number: int,
        inputs: Collection[str],
        now_s: float,
    ) -> Request:
        """Return the request for the stage after the one that has answered.

        Args:
            instance: The instance that answered.
            response: Its answer.
            number: Number of the new request.
            inputs: Names of the next stage's inputs; empty: not known, all tensors are sent.
            now_s: Monotonic time.

        Raises:
            Internal, InvalidArgument: As `tensor_forwarding.compose`, or the answer is malformed.
        """
        origin = self._read = self._read or read_request(self._origin.body)
        self._tensors = {
            **(self._tensors if instance.stage else origin.inputs),
            **read_answer(response),
        }
        self.variant, self.stage = instance.variant, instance.stage + 1
        last = self.stage + 1 == instance.stages
        body = compose(origin, self._tensors, inputs or self._tensors, last=last)
        self._entered_s = now_s
        return self._origin._replace(number=number, body=body)

    def restart(self, number: int, now_s: float) -> Request:
        """Return the request that starts again at the first stage, of any variant."""
        self._waited_s = self.waited_s(now_s)
        self._entered_s = now_s
        self.variant, self.stage = "", 0
        return self._origin._replace(number=number)

    def total_cost(self, last: Cost | None) -> Cost | None:
        """Return the cost of all stages, with the batch of the last one.

        Args:
            last: Cost of the last stage.

        Returns:
            None: no worker reported any cost.
        """
        reported = [stage.cost for stage in self.stage_costs if stage.cost] + (
            [last] if last else []
        )
        if not reported:
            return None
        return Cost(
            energy_j=sum(cost.energy_j for cost in reported),
            idle_energy_j=sum(cost.idle_energy_j for cost in reported),
            method="+".join(dict.fromkeys(cost.method for cost in reported)),
            queue_s=sum(cost.queue_s for cost in reported),
            compute_s=sum(cost.compute_s for cost in reported),
            batch_size=reported[-1].batch_size,
            items=reported[-1].items,
        )
