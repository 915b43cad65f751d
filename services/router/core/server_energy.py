"""Energy of an answer of a server that is not ours, as the profile of its variant models it.

No meter of ours sees its GPU; agents that observe it do (docs/energy.md).
"""

from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import BatchCost, Profile, SliceShape
from services.kit.request_cost import Cost, Usage

METHOD = "model"


def cost_of(
    profile: Profile, shape: SliceShape, usage: Usage, held: int, compute_s: float
) -> Cost | None:
    """Return the cost of an answer; None: the profile does not know the GPU.

    Args:
        profile: Of the variant.
        shape: Of the server.
        usage: Tokens of the answer.
        held: Requests that the server had at a time, this one included, >= 1.
        compute_s: Time from the pick to the answer's end, s.
    """
    if isinstance(profile, LanguageProfile):
        profile = profile.changed(
            prompt_tokens=float(max(usage.input_tokens, 1)),
            answer_tokens=float(max(usage.output_tokens, 1)),
        )
    batch, found = _largest(profile, shape, held)
    if found is None:
        return None
    return Cost(
        energy_j=found.energy_j / batch,
        idle_energy_j=shape.context_power_w * found.latency_s / batch,
        method=METHOD,
        queue_s=0.0,
        compute_s=compute_s,
        batch_size=batch,
        usage=usage,
    )


def _largest(profile: Profile, shape: SliceShape, most: int) -> tuple[int, BatchCost | None]:
    """Return the cost of the largest batch, of at most `most`, that the profile knows."""
    batch = max(most, 1)
    while batch > 1 and (found := profile.batch(shape, batch, 1)) is None:
        batch //= 2
    return (batch, found) if batch > 1 else (1, profile.batch(shape, 1, 1))
