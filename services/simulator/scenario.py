"""Types of a scenario file: a deployment, and the events of its simulation.

Unknown keys are refused, as in `cinquefoil.yaml`; units are part of the names.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from services.kit.config import (
    Deployment,
    Discipline,
    Fraction,
    InstanceChoice,
    Name,
    NonNegative,
    Positive,
    Section,
    Strategy,
)
from services.kit.config.carbon_sources import Source

# ---- load --------------------------------------------------------------------------------------


class ConstantLoad(Section):
    """A constant rate."""

    kind: Literal["constant"]
    rate_rps: NonNegative


class DailyLoad(Section):
    """A sine with a period of a day: mean x (1 + swing x cos(2 pi (hour - peak) / 24)).

    Attributes:
        mean_rps: Mean rate, req/s.
        swing: Relative amplitude; 1: nothing arrives at the quietest moment.
        peak_hour: Hour of the day (UTC) with most load.
    """

    kind: Literal["daily"]
    mean_rps: Positive
    swing: Fraction = 0.5
    peak_hour: Annotated[float, Field(ge=0, lt=24)] = 15.0


class TraceLoad(Section):
    """A rate per step, from a CSV file with a header; it repeats if it is too short.

    Attributes:
        path: Path of the file.
        column: Header of the rates, req/s.
        step_s: Time from one row to the next, s.
        first_row: Rows to skip.
        scale: Factor on every rate.
    """

    kind: Literal["trace"]
    path: Path
    column: str = "rps"
    step_s: Positive = 60.0
    first_row: Annotated[int, Field(ge=0)] = 0
    scale: Positive = 1.0


class RecordedLoad(Section):
    """Recorded requests: a CSV file whose rows are arrivals, oldest first.

    Attributes:
        path: Path of the file.
        column: Header of the arrivals, s from the start of the simulation.
        prompt_column, answer_column: Headers of the tokens of a language model's prompts and
            answers. Empty: drawn as in `texts`.
    """

    kind: Literal["recorded"]
    path: Path
    column: str = "arrival_s"
    prompt_column: str = ""
    answer_column: str = ""

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.prompt_column) != bool(self.answer_column):
            raise ValueError("prompt_column, answer_column: give both, or none")
        return self


Load = Annotated[ConstantLoad | DailyLoad | TraceLoad | RecordedLoad, Field(discriminator="kind")]


class Arrivals(Section):
    """Arrival process at a given rate.

    Attributes:
        kind: "poisson"; "gamma": a renewal process with gaps of that distribution; "regular".
        cv: Of gamma: standard deviation of the gaps over their mean. 1 is a Poisson process, more
            is burstier.
    """

    kind: Literal["poisson", "gamma", "regular"] = "poisson"
    cv: Positive = 1.0


class Texts(Section):
    """Lengths of a language model's prompts and answers: log-normal, drawn for each request.

    Attributes:
        prompt_tokens, answer_tokens: Means. None: those of the profile of the first variant.
        prompt_cv, answer_cv: Standard deviation over mean; 0: all equal. Defaults: Azure's
            conversations (AzureLLMInferenceTrace_conv, 2023).
    """

    prompt_tokens: Annotated[float, Field(ge=1)] | None = None
    answer_tokens: Annotated[float, Field(ge=1)] | None = None
    prompt_cv: NonNegative = 0.96
    answer_cv: NonNegative = 0.77


class WaitingRequests(Section):
    """Requests that can wait, of one model, as at a batch service.

    Attributes:
        load: Their rate.
        window_h: Hours in which each is answered; under a grid's speed-up they pass as fast, as in
            a live replay.
    """

    load: Load
    window_h: Positive = 24.0


# ---- policies ----------------------------------------------------------------------------------


class Policy(Section):
    """A policy; settings without a value are the deployment's. A bare name is a strategy.

    Attributes:
        name: Name in reports; empty: the strategy's name.
        strategy: Name of the strategy.
        carbon_weight: CLOVER's lambda; it takes the place of a mean accuracy, and of costs.
        accuracy_floor: Least mean accuracy of a model, relative to its best variant.
        discipline: Queue discipline of the router.
        instance_choice: Instance choice of the router.
        default_deadline_s: Deadline of every model's requests, s.
        horizon_s: Horizon of plans, s.
        waiting: Requests that can wait run as the planner releases them, or at once, as far as the
            router has room.
    """

    name: str = ""
    strategy: Strategy
    carbon_weight: Fraction | None = None
    accuracy_floor: Fraction | None = None
    discipline: Discipline | None = None
    instance_choice: InstanceChoice | None = None
    default_deadline_s: Positive | None = None
    horizon_s: NonNegative | None = None
    waiting: Literal["planned", "at_once"] = "planned"

    @property
    def label(self) -> str:
        """Name in reports."""
        return self.name or self.strategy

    def applied(self, deployment: Deployment) -> Deployment:
        """Return the deployment under this policy."""
        planner = deployment.planner
        aims: dict[str, Any] = self.model_dump(
            include={"carbon_weight", "accuracy_floor"}, exclude_none=True
        )
        if self.carbon_weight is not None:
            aims |= {"accuracy_mean": None, "kind": "clover"}
        objective = planner.objective.model_copy(update=aims)
        update: dict[str, Any] = {"strategy": self.strategy, "objective": objective}
        if self.horizon_s is not None:
            update["horizon"] = planner.horizon.model_copy(update={"length_s": self.horizon_s})
        serving = {"discipline", "instance_choice", "default_deadline_s"}
        given = self.model_dump(include=serving, exclude_none=True)
        models = {name: model.model_copy(update=given) for name, model in deployment.models.items()}
        return deployment.model_copy(
            update={"planner": planner.model_copy(update=update), "models": models}
        )


def _named(value: object) -> object:
    return {"strategy": value} if isinstance(value, str) else value


# ---- the rest ----------------------------------------------------------------------------------


class Timing(Section):
    """Durations that no profile contains, s. Defaults: measured on the live suite.

    Attributes:
        decide_s: Time from a trigger to a decision.
        acknowledge_s: Time from a new routing table to its use by every router.
        create_slice_s, destroy_slice_s, lock_clock_s: Time of one such step.
        start_worker_s: Time from a start to the first answer, without the variant's `load_s`.
        stop_worker_s: Time from the last answer to the end of the process.
        link_s: Time from router to worker or back: frame, parsing, and wake-up.
        client_s: Time from client to router and back.
    """

    decide_s: NonNegative = 0.05
    acknowledge_s: NonNegative = 0.01
    create_slice_s: NonNegative = 0.02
    destroy_slice_s: NonNegative = 0.02
    lock_clock_s: NonNegative = 0.01
    start_worker_s: NonNegative = 1.5
    stop_worker_s: NonNegative = 0.2
    link_s: NonNegative = 0.001
    client_s: NonNegative = 0.001


class Sampling(Section):
    """Stretches of time that are simulated request by request; by default all are.

    Attributes:
        window_s: Length of a simulated stretch of steady state.
        period_s: Time from one to the next.
        settle_s: Time after a change of plan that is also simulated.
        least_requests: Least number of requests in a window.
        load_change: Relative change of load that ends a skipped stretch.
    """

    window_s: Positive = 10.0
    period_s: Positive = 300.0
    settle_s: NonNegative = 15.0
    least_requests: Annotated[int, Field(ge=1)] = 200
    load_change: Positive = 0.25

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.window_s >= self.period_s:
            raise ValueError(f"window_s must be < period_s ({self.period_s:g})")
        return self


def _form(value: object) -> str:
    return "file" if isinstance(value, str | Path) else "sections"


Described = Annotated[
    Annotated[Path, Tag("file")] | Annotated[Deployment, Tag("sections")], Discriminator(_form)
]
"""A deployment: its file, or the contents of one."""


class Scenario(Section):
    """A whole scenario file.

    Attributes:
        deployment: A deployment file, relative to this one, or its sections. Every node must list
            the GPUs it simulates.
        duration_s: Length, virtual time, s.
        start: Grid time at the start; None: as the carbon service chooses, or midnight of
            2026-01-01 where it would use the machine's clock.
        grid_speedup: Grid seconds per second; in place of the deployment's.
        seed: Seed of arrivals and of strategies that draw random numbers.
        detail: "full": every request is simulated; "sampled": see `sampling`.
        policies: Policies to compare, each with the same arrivals.
        carbon: Sources of zones, in place of the deployment's.
        load: Load by model; default: constant, its `demand_rps`.
        arrivals: Arrival process; recorded arrivals stay as they are.
        texts: Lengths of texts by language model; default: those of `Texts`.
        waiting: Requests that can wait, by model, beside those of `load`; for detail: full.
        request_kib: Size of each request, KiB, as counted by the queues' byte limits. Prompts of
            language models are added.
        slowdown: Factor on the profile's time and energy of a batch, or of a language model's step,
            by model; default 1. Plans use the profiles, and are wrong by this factor.
        timing: Durations of other steps.
        sampling: Stretches of time that are simulated request by request.
    """

    version: Literal["v1"]
    deployment: Described
    duration_s: Positive
    start: datetime | None = None
    grid_speedup: Positive = 1.0
    seed: Annotated[int, Field(ge=0)] = 0
    detail: Literal["full", "sampled"] = "sampled"
    policies: Annotated[tuple[Annotated[Policy, BeforeValidator(_named)], ...], Field(min_length=1)]
    carbon: dict[Name, Source] = Field(default_factory=dict)
    load: dict[Name, Load] = Field(default_factory=dict)
    arrivals: Arrivals = Arrivals()
    texts: dict[Name, Texts] = Field(default_factory=dict)
    waiting: dict[Name, WaitingRequests] = Field(default_factory=dict)
    request_kib: NonNegative = 0.0
    slowdown: dict[Name, Positive] = Field(default_factory=dict)
    timing: Timing = Timing()
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        labels = [policy.label for policy in self.policies]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"policies: two are called {twice[0]!r}; give one a name")
        return self
