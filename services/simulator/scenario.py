"""A scenario file: a deployment, and what shall happen to it, as types.

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
    """One rate for ever."""

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
    """A rate per step, from a CSV file with a header; it repeats where it is too short.

    Attributes:
        path: The file.
        column: Header of the rates, req/s.
        step_s: Time from one row to the next, s.
        first_row: Rows to skip.
        scale: Every rate is multiplied by it.
    """

    kind: Literal["trace"]
    path: Path
    column: str = "rps"
    step_s: Positive = 60.0
    first_row: Annotated[int, Field(ge=0)] = 0
    scale: Positive = 1.0


class RecordedLoad(Section):
    """The requests themselves: a CSV file whose rows are arrivals, oldest first.

    Attributes:
        path: The file.
        column: Header of the arrivals, s from the start of the simulation.
        prompt_column, answer_column: Of a language model: headers of the tokens of prompts and of
            answers. Empty: drawn, as `texts` says.
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
    """How requests follow one another at a given rate.

    Attributes:
        kind: "poisson"; "gamma": a renewal process with gaps of that distribution; "regular".
        cv: Of gamma: standard deviation of the gaps over their mean. 1 is a Poisson process, more
            is burstier.
    """

    kind: Literal["poisson", "gamma", "regular"] = "poisson"
    cv: Positive = 1.0


class Texts(Section):
    """Lengths of a language model's prompts and answers: log-normal, each request's drawn.

    Attributes:
        prompt_tokens, answer_tokens: Means. None: those of the profile of the first variant.
        prompt_cv, answer_cv: Standard deviation over mean; 0: all alike. Defaults: of Azure's
            conversations (AzureLLMInferenceTrace_conv, 2023).
    """

    prompt_tokens: Annotated[float, Field(ge=1)] | None = None
    answer_tokens: Annotated[float, Field(ge=1)] | None = None
    prompt_cv: NonNegative = 0.96
    answer_cv: NonNegative = 0.77


# ---- policies ----------------------------------------------------------------------------------


class Policy(Section):
    """A way to decide; what is not given is the deployment's. A bare name is a strategy.

    Attributes:
        name: What reports call it; the strategy's name where empty.
        strategy: Who decides.
        carbon_weight: CLOVER's lambda.
        accuracy_floor: Least mean accuracy of a model, relative to its best variant.
        discipline: Of the router: which request is the next.
        instance_choice: Of the router: who takes it.
        default_deadline_s: Of every model's requests, s.
        horizon_s: How far ahead a plan looks, s.
    """

    name: str = ""
    strategy: Strategy
    carbon_weight: Fraction | None = None
    accuracy_floor: Fraction | None = None
    discipline: Discipline | None = None
    instance_choice: InstanceChoice | None = None
    default_deadline_s: Positive | None = None
    horizon_s: NonNegative | None = None

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or self.strategy

    def applied(self, deployment: Deployment) -> Deployment:
        """Return the deployment under this policy."""
        planner = deployment.planner
        aims = self.model_dump(include={"carbon_weight", "accuracy_floor"}, exclude_none=True)
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
        decide_s: From a cause to a decision.
        acknowledge_s: From a new routing table to every router's use of it.
        create_slice_s, destroy_slice_s, lock_clock_s: One such step.
        start_worker_s: From a start to the first answer, beside the variant's `load_s`.
        stop_worker_s: From the last answer to the end of the process.
        link_s: Router to worker or back: the frame, its parsing, and waking up.
        client_s: Client to router and back.
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
    """Which stretches of time are simulated request by request, unless all are.

    Attributes:
        window_s: A stretch of steady state that is.
        period_s: From one to the next, s.
        settle_s: Time after a change of plan that still is.
        least_requests: A window lasts until so many have arrived, too.
        load_change: A stretch that is skipped ends where the load has changed by so much.
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
"""A deployment: its file, or what such a file says."""


class Scenario(Section):
    """The whole file.

    Attributes:
        deployment: A deployment file, relative to this one, or its sections themselves. Every node
            must say which GPUs it simulates.
        duration_s: How long, s of virtual time.
        start: Grid time at the start; None: as the carbon service would choose, midnight of
            2026-01-01 where nothing but the machine's clock gives one.
        grid_speedup: Grid seconds per second; in place of the deployment's.
        seed: Of arrivals and of strategies that draw numbers.
        detail: "full": every request is simulated; "sampled": see `sampling`.
        policies: What to compare, each with the same arrivals.
        carbon: Sources of zones, in place of the deployment's.
        load: Load by model; a model without: constant, its `demand_rps`.
        arrivals: How requests follow one another; recorded ones as they were.
        texts: Lengths of texts by language model; a model without: `Texts`' defaults.
        request_kib: Size of each request, KiB: what the queues' bounds of bytes count. Prompts of
            language models come on top.
        slowdown: Time and energy of a batch, or of a language model's step, over its profile's, by
            model; a model without: 1. Plans are made from the profiles, so that they are wrong by
            so much.
        timing: How long other things take.
        sampling: What is simulated request by request.
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
