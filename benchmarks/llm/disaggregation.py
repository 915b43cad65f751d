"""Upper bound of the gain where prompts and answers are computed on GPUs of different types.

python -m benchmarks.llm --part disaggregation [--json FILE]

A GPU type takes over both phases of a trace's requests, or the prompts only, or the answers only:
CARBONDIS (CCGrid'25), which sends requests to low-end GPUs by the grid, applied to the phases. Of
each, the clock and the batch with the least carbon count that keep the objective and fit into the
memory, by the profile of language models. It is a bound: any number of GPUs of every type is there,
batches are always full, and prompts never wait for each other.

- Together: each step decodes `n` answers and takes in the prompts that come with them.
- Apart: steps of prompts, and steps of answers. Between them a prompt's keys and values are sent,
  after all of it was computed: that time is the first token's, and no GPU computes more tokens of
  prompts per second than its link carries.
- Carbon is that of the energy, idle power included, and the embodied carbon of the time for which
  the GPUs are held (four years, published values); GPUs compute for a share of that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final

from benchmarks._fleets import gpu_type
from benchmarks.harness import Figures, Report
from benchmarks.llm.engine import CLOCKS, Engine, Limits, Request
from benchmarks.llm.traces import traces
from services.kit.config import Embodied
from services.kit.hardware.gpu_types import published_kgco2e
from services.kit.profiles.core.language import LanguageProfile
from services.kit.units import BYTES_PER_KIB, J_PER_KWH
from services.planner.core.accounting.site import embodied_carbon
from services.planner.core.model import Pool

GPU_TYPES: Final = ("h100-80gb", "a100-80gb", "a30", "v100", "t4", "p4")
HIGH_END: Final = GPU_TYPES[0]
BYTES_PER_PARAMETER: Final = {"16 bit": 2.0, "4 bit": 0.5}
INTENSITIES_G_PER_KWH: Final = (20.0, 300.0, 700.0)
BUSY: Final = (1.0, 0.3)
"""Shares of the time in which GPUs compute."""
LINK_BYTES_PER_S: Final = 25e9
"""Of each GPU: 200 Gbit/s, as Splitwise's nodes have (ISCA'24)."""
SEQUENCES: Final = tuple(sorted({round(2 ** (step / 4)) for step in range(33)}))  # to 256
CHUNKS: Final = (256, 512, 1024, 2048, 4096, 8192)
MEMORY_SHARE: Final = 0.9
"""Of a GPU, for weights, keys and values: vLLM's default."""
EMBODIED: Final = Embodied(lifetime_y=4.0, kgco2e={"a100-80gb": published_kgco2e("a100-40gb")})


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens and limits of requests, per token that is generated.

    Attributes:
        prompt_tokens: Of prompts.
        context_tokens: That a step reads for an answer.
        first_tokens: Of a usual prompt.
        limits: The objective.
    """

    prompt_tokens: float
    context_tokens: float
    first_tokens: float
    limits: Limits

    @classmethod
    def of(cls, requests: tuple[Request, ...], limits: Limits) -> Work:
        """Return the work of a trace's window."""
        answers = sum(each.output_tokens for each in requests)
        prompts = sum(each.input_tokens for each in requests)
        read = sum(r.output_tokens * (r.input_tokens + r.output_tokens / 2) for r in requests)
        return cls(prompts / answers, read / answers, prompts / len(requests), limits)


@dataclass(frozen=True, slots=True)
class Site:
    """Where carbon is counted. Attributes: intensity_g_per_kwh; busy: share of the time, 0..1."""

    intensity_g_per_kwh: float
    busy: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a token that is generated. Attributes: active_j; busy_s: of a GPU; how: for people."""

    active_j: float
    busy_s: float
    how: str


@dataclass(frozen=True, slots=True, order=True)
class Way:
    """Cost of a token at a site.

    Attributes:
        carbon_g: Embodied carbon included, gCO2e.
        energy_j: Idle power included.
        how: Clocks over the highest, and batches, for people.
    """

    carbon_g: float
    energy_j: float
    how: str

    def then(self, other: Way) -> Way:
        """Return the cost of this phase and of the next."""
        return Way(
            self.carbon_g + other.carbon_g,
            self.energy_j + other.energy_j,
            f"{self.how}; {other.how}",
        )


class Type:
    """A GPU type with the weights of the model.

    Args:
        name: Of its table.
        profile: The model's.
    """

    def __init__(self, name: str, profile: LanguageProfile) -> None:
        pool = Pool(gpu_type(name), "", 1.0, 1.0)
        self.name = name
        self._engine = Engine(profile, pool)
        self._idle_w = self._engine.shape.context_power_w
        self._embodied_g_per_s = embodied_carbon(EMBODIED, pool.type, ()).embodied_gco2e_per_s
        self._kv_bytes = profile.settings.kv_kib_per_token * BYTES_PER_KIB
        weights_bytes = profile.settings.parameters_b * 1e9 * profile.settings.bytes_per_parameter
        free_bytes = MEMORY_SHARE * self._engine.shape.memory_bytes - weights_bytes
        self._kv_tokens = free_bytes / self._kv_bytes

    def together(self, work: Work) -> Iterator[Cost]:
        """Yield ways to compute both phases that keep the objective."""
        return self._decode(work, work.prompt_tokens)

    def answers(self, work: Work) -> Iterator[Cost]:
        """Yield ways to compute answers that keep the objective."""
        return self._decode(work, 0.0)

    def prompts(self, work: Work) -> Iterator[Cost]:
        """Yield ways to compute prompts that keep the objective."""
        link_s = self._kv_bytes / LINK_BYTES_PER_S
        for clock, chunk in product(CLOCKS, CHUNKS):
            step_s, energy_j = self._engine.step(clock, 0, 0.0, chunk)
            first_s = work.first_tokens * (step_s / chunk + link_s)
            fits = max(chunk, work.first_tokens) <= self._kv_tokens
            if fits and first_s <= work.limits.ttft_s:
                token_s = max(step_s / chunk, link_s)
                how = f"{clock:g}, {chunk} tokens"
                ratio = work.prompt_tokens
                yield Cost(ratio * energy_j / chunk, ratio * token_s, how)

    def _decode(self, work: Work, prompt_tokens: float) -> Iterator[Cost]:
        for clock, count in product(CLOCKS, SEQUENCES):
            step_s, energy_j = self._engine.step(
                clock, count, work.context_tokens, count * prompt_tokens
            )
            fits = count * work.context_tokens <= self._kv_tokens
            steps = work.first_tokens / (count * prompt_tokens) if prompt_tokens else 0.0
            in_time = step_s <= work.limits.tpot_s and steps * step_s <= work.limits.ttft_s
            if fits and in_time:
                yield Cost(energy_j / count, step_s / count, f"{clock:g}, {count} answers")

    def least(self, ways: Iterator[Cost], site: Site) -> Way | None:
        """Return the way with the least carbon; None: none keeps the objective, or none fits."""
        return min((self._way(cost, site) for cost in ways), default=None)

    def _way(self, cost: Cost, site: Site) -> Way:
        held_s = cost.busy_s / site.busy
        energy_j = cost.active_j + self._idle_w * held_s
        carbon_g = energy_j / J_PER_KWH * site.intensity_g_per_kwh
        return Way(carbon_g + self._embodied_g_per_s * held_s, energy_j, cost.how)


def ways(work: Work, profile: LanguageProfile, site: Site) -> dict[tuple[str, str, str], Way]:
    """Return the best way by phases ("together", "apart"), type of the prompts, of the answers."""
    types = {name: Type(name, profile) for name in GPU_TYPES}
    prompts = {name: each.least(each.prompts(work), site) for name, each in types.items()}
    answers = {name: each.least(each.answers(work), site) for name, each in types.items()}
    found = {}
    for name, each in types.items():
        if whole := each.least(each.together(work), site):
            found["together", name, name] = whole
    for first, second in product(GPU_TYPES, GPU_TYPES):
        if (prompt := prompts[first]) and (answer := answers[second]):
            found["apart", first, second] = prompt.then(answer)
    return found


def row(found: Mapping[tuple[str, str, str], Way]) -> dict[str, Any]:
    """Return what is saved against both phases together on the high-end type."""
    base_g = found["together", HIGH_END, HIGH_END].carbon_g
    saved = {way: 1 - each.carbon_g / base_g for way, each in found.items()}
    others = GPU_TYPES[1:]
    low_answers = max(n for n in _named(saved, "apart", [HIGH_END], others))
    low_prompts = max(n for n in _named(saved, "apart", others, [HIGH_END]))
    low_both = max(
        _named(saved, "apart", others, others) + _named(saved, "together", others, others)
    )
    return {
        "mg_per_token": 1e3 * base_g,
        "apart_saves": saved["apart", HIGH_END, HIGH_END],
        "answers_elsewhere_save": low_answers[0],
        "answers_on": low_answers[1],
        "prompts_elsewhere_save": low_prompts[0],
        "prompts_on": low_prompts[1],
        "both_elsewhere_save": low_both[0],
        "both_on": low_both[1],
    }


def _named(
    saved: Mapping[tuple[str, str, str], float],
    phases: str,
    prompts: Sequence[str],
    answers: Sequence[str],
) -> list[tuple[float, str]]:
    return [
        (share, " / ".join(dict.fromkeys(n for n in (first, second) if n != HIGH_END)))
        for (how, first, second), share in saved.items()
        if how == phases and first in prompts and second in answers
    ]


def measure(*, quick: bool) -> Report:
    """Compare the ways for each trace, grid, and share of busy time; quick: of short windows."""
    rows, found = [], []
    for (bits, size), trace in product(
        BYTES_PER_PARAMETER.items(), traces(0.2 if quick else 1.0, 1)
    ):
        work = Work.of(trace.windows[0], trace.limits)
        profile = LanguageProfile.of(8.0, bytes_per_parameter=size)
        for busy, intensity in product(BUSY, INTENSITIES_G_PER_KWH):
            site = Site(intensity, busy)
            case = {"trace": trace.name, "weights": bits, "busy": busy, "g_per_kwh": intensity}
            best = ways(work, profile, site)
            rows.append(case | row(best))
            found += [
                case | {"phases": phases, "prompts": first, "answers": second} | asdict(way)
                for (phases, first, second), way in best.items()
            ]
    title = f"Carbon saved at most against both phases together on {HIGH_END}"
    return Report([Figures(title, rows)], {"disaggregation": rows, "disaggregation_ways": found})
