"""Colours of models and variants."""

import itertools
import re
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from services.console.palette import palette, shades
from tests.support.examples import examples

NAMES = st.text("abc", min_size=1, max_size=3)
MODELS = st.dictionaries(NAMES, st.dictionaries(NAMES, st.floats(0, 1), min_size=1), max_size=8)


def _models(accuracies: dict[str, dict[str, float]]) -> dict[str, SimpleNamespace]:
    return {
        name: SimpleNamespace(
            variants={each: SimpleNamespace(accuracy=value) for each, value in its.items()}
        )
        for name, its in accuracies.items()
    }


@examples(0.25)
@given(MODELS)
def test_models_have_hues_of_their_own_and_more_accurate_variants_are_darker(
    accuracies: dict[str, dict[str, float]],
) -> None:
    """In whatever order they are named: colours depend on the deployment alone."""
    found = shades(_models(accuracies))
    backwards = {
        name: dict(reversed(accuracies[name].items())) for name in reversed(list(accuracies))
    }
    assert shades(_models(backwards)) == found
    hues = {name: _hue(its["line"]) for name, its in palette(_models(accuracies)).items()}
    assert len(set(hues.values())) == len(accuracies)
    for model, its in accuracies.items():
        ranked = sorted(its, key=lambda each: its[each])
        lightness = [_lightness(found[f"{model}/{each}"]) for each in ranked]
        assert all(one >= other for one, other in itertools.pairwise(lightness)) or (
            len(set(its.values())) < len(its)
        )
        assert {_hue(found[f"{model}/{each}"]) for each in its} == {hues[model]}


def _hue(colour: str) -> str:
    return colour.rpartition(" ")[2]


def _lightness(colour: str) -> float:
    match = re.match(r"oklch\(([\d.]+)", colour)
    assert match
    return float(match[1])
