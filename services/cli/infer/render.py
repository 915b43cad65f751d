"""An answer, rendered for a terminal."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.console.quantities import carbon, energy, metered, milliseconds

_SHADES = " .:-=+*#%@"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answered request.

    Attributes:
        model: The model that answered.
        latency_s: Seen by this client, s.
        outputs: Tensors by name, as nested lists.
        parameters: Receipt of the answer: variant, accuracy, energy, carbon.
        truth: The right label, where it is known.
    """

    model: str
    latency_s: float
    outputs: dict[str, Any]
    parameters: dict[str, Any]
    truth: int | None = None


def drawing(image: NDArray[Any]) -> Text:
    """Return an 8x8 digit of 0..16 as characters, darkest the densest."""
    levels = np.clip(image.reshape(8, 8) / 16 * (len(_SHADES) - 1), 0, len(_SHADES) - 1)
    rows = ("".join(_SHADES[int(level)] * 2 for level in row) for row in levels)
    return Text("\n".join(rows))


def render(answer: Answer) -> RenderableType:
    """Return the outputs, the variant that gave them, and the receipt."""
    lines = [_output(name, values) for name, values in answer.outputs.items()]
    if answer.truth is not None:
        lines.append(Text(f"truth: {answer.truth}"))
    facts = dict(answer.parameters)
    variant, accuracy = facts.pop("model_variant", "?"), facts.pop("accuracy", None)
    stated = "" if accuracy is None else f" (accuracy {accuracy:.4f})"
    lines.append(Text(f"by {variant}{stated} in {milliseconds(answer.latency_s)}"))
    if "energy_j" in facts:
        method = facts.pop("energy_method", "?")
        active, idle = facts.pop("energy_j"), facts.pop("energy_idle_j", None)
        apart = "" if idle is None else f", and {energy(idle)} of idle power"
        lines.append(Text(f"energy: {metered(active, method)}{apart}"))
    if "carbon_gco2e" in facts:
        total = facts.pop("carbon_total_gco2e", None)
        apart = "" if total is None else f"; with idle power {carbon(total)}"
        lines.append(Text(f"carbon: {carbon(facts.pop('carbon_gco2e'))}{apart}"))
    if "output_tokens" in facts:
        lines.append(Text(_tokens(facts)))
    lines += [Text(f"{key}: {value}", style="dim") for key, value in sorted(facts.items())]
    return Group(*lines)


def _tokens(facts: dict[str, Any]) -> str:
    """Return a language model's times of tokens, and remove them from the facts."""
    said = f"tokens: {facts.pop('input_tokens', '?')} in, {facts.pop('output_tokens')} out"
    if "first_token_s" in facts:
        said += f"; the first after {milliseconds(facts.pop('first_token_s'))}"
        said += f", then one in {milliseconds(facts.pop('token_s', None))}"
    for kind, words in (("active", "each"), ("total", "with idle power")):
        each = [
            unit(facts.pop(name))
            for unit, name in (
                (energy, f"energy_{kind}_j_per_token"),
                (carbon, f"carbon_{kind}_gco2e_per_token"),
            )
            if name in facts
        ]
        said += f"; {' and '.join(each)} {words}" if each else ""
    return said


def _output(name: str, values: Any) -> Text:
    array = np.asarray(values)
    shown = array.tolist() if array.size <= 1 else np.array2string(array, precision=3, threshold=20)
    flat = shown[0] if isinstance(shown, list) and len(shown) == 1 else shown
    return Text.assemble((f"{name}: ", "bold"), str(flat))
