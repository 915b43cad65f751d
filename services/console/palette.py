"""Colours of models and variants: one hue for each model, darker where more accurate.

Colours are a function of the deployment alone, so that one variant looks the same on every page,
report and picture.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

_HUES: Final = (250, 55, 310, 200, 0, 100, 280, 30)
"""Degrees of OKLCH; none is the green of savings."""
_LIGHTEST, _DARKEST = 0.86, 0.52
UNKNOWN: Final = "oklch(0.7 0 0)"


class _Variant(Protocol):
    @property
    def accuracy(self) -> float: ...


class _Model(Protocol):
    @property
    def variants(self) -> Mapping[str, Any]: ...


def palette(models: Mapping[str, _Model]) -> dict[str, dict[str, Any]]:
    """Return CSS colours by model.

    `line` is the model's own, for lines, which is as light as `--line-lightness` says; `variants`
    are areas, each of the model's hue.

    Args:
        models: The deployment's, by name; each with its variants' accuracies.
    """
    return {
        name: {
            "line": f"oklch(var(--line-lightness) 0.13 {_HUES[number % len(_HUES)]})",
            "variants": _shades(_HUES[number % len(_HUES)], models[name].variants),
        }
        for number, name in enumerate(sorted(models))
    }


def shades(models: Mapping[str, _Model]) -> dict[str, str]:
    """Return the colours of areas by "model/variant"."""
    return {
        f"{model}/{variant}": colour
        for model, its in palette(models).items()
        for variant, colour in its["variants"].items()
    }


def lines(models: Mapping[str, _Model]) -> dict[str, str]:
    """Return the colours of lines by model."""
    return {name: its["line"] for name, its in palette(models).items()}


def _shades(hue: int, variants: Mapping[str, _Variant]) -> dict[str, str]:
    ranked = sorted(variants, key=lambda each: (variants[each].accuracy, each))
    step = (_LIGHTEST - _DARKEST) / max(len(ranked) - 1, 1)
    return {
        variant: f"oklch({_DARKEST + step * rank:.2f} 0.11 {hue})"
        for rank, variant in enumerate(reversed(ranked))
    }
