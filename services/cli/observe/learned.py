"""Profiles of servers, learnt from what was recorded of them. Pure.

A server's steps give its profile on the type of GPU that it has (`observation.core.steps`): a
language model's as of `gpuagent profile`, and that of a server with batches as a table. A profile
that cannot be had says why.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from services.cli.observe.advice import bits_of, parameters_of, shape_of
from services.gpuagent.observation.core.record import ServerRecord
from services.gpuagent.observation.core.server_account import together as added
from services.gpuagent.observation.core.steps import Fit, fit
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE
from services.kit.profiles.core.language import LanguageProfile
from services.kit.server_metrics.figures import Histogram

MAX_ERROR: Final = 0.5
"""Relative error of a fit above which it is none."""

_ADDED: Final = ("requests", "prompt_tokens", "answer_tokens", "items", "active_j", "observed_s")


@dataclass(frozen=True, slots=True)
class Served:
    """One model on one type of GPU, all its servers and records together.

    Attributes:
        total: Its amounts, times and steps, summed.
        gpu: Type of its GPUs.
        step, energy: Its learnt step, s and J; None: why not is in `reason`.
        reason: Why its profile is not known; "": it is.
    """

    total: ServerRecord
    gpu: str
    step: Fit | None = None
    energy: Fit | None = None
    reason: str = ""

    @property
    def has_tokens(self) -> bool:
        """True for a language model."""
        return self.total.answer_tokens is not None

    @property
    def peak_items(self) -> int:
        """Batch up to which the profile counts: a power of two, twice as many as were seen."""
        seen = max(2 * self.total.peak_running, self.mean_items, 1.0)
        return 1 << math.ceil(math.log2(seen))

    @property
    def mean_items(self) -> float:
        """Answers in progress, or items of a batch, on average."""
        times = self.total.steps.times
        return times.matrix[1] / times.windows if times.windows else 0.0

    def step_s(self, items: float) -> float:
        """Return the time of a step without prompts, s."""
        return self.step.fixed + self.step.item * items if self.step is not None else 0.0

    def step_j(self, items: float) -> float:
        """Return its active energy, J."""
        return self.energy.fixed + self.energy.item * items if self.energy is not None else 0.0

    def profile(self) -> dict[str, Any]:
        """Return the profile of a language model, as the deployment file has it."""
        total, step, energy = self.total, self.step, self.energy
        requests, size = total.requests or 1.0, parameters_of(total.model) or 1.0
        if step is None or energy is None:
            raise ValueError(self.reason)
        return {
            "kind": "language",
            "parameters_b": size,
            "bytes_per_parameter": bits_of(total.model) / 8,
            "prompt_tokens": max((total.prompt_tokens or 0.0) / requests, 1.0),
            "answer_tokens": max((total.answer_tokens or 0.0) / requests, 1.0),
            "memory_mib_per_item": 0.0,
            "measured": [
                {
                    "gpu": self.gpu,
                    "slice": WHOLE,
                    "fixed_s": max(step.fixed, 1e-6),
                    "sequence_s": step.item,
                    "prompt_token_s": step.prompt_token,
                    "fixed_j": energy.fixed,
                    "sequence_j": energy.item,
                    "prompt_token_j": energy.prompt_token,
                }
            ],
        }

    def table(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of the profile of a server with batches, their header first."""
        yield "gpu", "profile", "batch_size", "processes", "latency_s", "energy_j"
        size = 1
        while size <= self.peak_items:
            yield self.gpu, WHOLE, size, 1, max(self.step_s(size), 1e-6), self.step_j(size)
            size *= 2


def together(records: Iterable[ServerRecord]) -> ServerRecord:
    """Return the records of one model as one; at least one."""
    first, *rest = records
    found = first
    for each in rest:
        amounts: dict[str, Any] = {}
        for name in _ADDED:
            one, more = getattr(found, name), getattr(each, name)
            amounts[name] = one if more is None else more if one is None else one + more
        times = {
            name: added(found.times.get(name, Histogram()), each.times.get(name, Histogram()))
            for name in {*found.times, *each.times}
        }
        found = replace(
            found,
            **amounts,
            peak_running=max(found.peak_running, each.peak_running),
            times=times,
            steps=found.steps.plus(each.steps),
        )
    return found


def learnt(total: ServerRecord, gpu: str) -> Served:
    """Return a model with its profile, or with the reason why there is none.

    Args:
        total: All its records.
        gpu: Type of its GPU.
    """
    served = Served(total, gpu)
    requests = total.requests if total.items is None else total.items
    if not requests:
        return replace(served, reason="its server does not count requests, or had none")
    if served.has_tokens and parameters_of(total.model) is None:
        return replace(served, reason="its name does not say how many parameters it has")
    prior_s, prior_j = _prior(total, gpu) if served.has_tokens else (None, None)
    step, energy = fit(total.steps.times, prior_s), fit(total.steps.energies, prior_j)
    if step is None:
        return replace(served, reason="fewer than two minutes with requests were seen")
    if energy is None:
        return replace(served, reason="its energy is not known, or not its own")
    if step.fixed + step.item <= 0 or max(step.error, energy.error) > MAX_ERROR:
        worst = max(step.error, energy.error)
        return replace(served, reason=f"its steps do not fit a profile: error {worst:.0%}")
    return replace(served, step=step, energy=energy)


def _prior(total: ServerRecord, gpu: str) -> tuple[list[float], list[float]]:
    """Return the step that the formula expects, s and J: fixed, of an answer, of a prompt token."""
    shape = shape_of(gpu_types.load(gpu))
    profile = LanguageProfile.of(
        parameters_of(total.model) or 1.0, bytes_per_parameter=bits_of(total.model) / 8
    )
    one, two = (profile.batch(shape, items, 1) for items in (1, 2))
    if one is None or two is None:  # too large for one GPU: what was seen counts alone
        return [0.0] * 3, [0.0] * 3
    tokens = profile.settings.answer_tokens
    item_s, item_j = (
        (two.latency_s - one.latency_s) / tokens,
        (two.energy_j - one.energy_j) / tokens,
    )
    return (
        [max(one.latency_s / tokens - item_s, 0.0), max(item_s, 0.0), 0.0],
        [max(one.energy_j / tokens - item_j, 0.0), max(item_j, 0.0), 0.0],
    )
