"""Arrays of a validation set as the tensors of its items."""

import numpy as np
import pytest

from services.cli.samples import Column, Input, Samples, Values
from services.kit.errors import InvalidArgument

CASES = {
    "rows are items": ((None, 4), (6, 4), 6, (1, 4)),
    "texts by row": ((None,), (6,), 6, (1,)),
    "items first": ((2, None, 8), (6, 2, 1, 8), 6, (2, 1, 8)),
    "the whole of it for each item": ((2, None, 8), (2, 1, 8), 0, (2, 1, 8)),
    "blocks of a fixed batch": ((3, 2), (9, 2), 3, (3, 2)),
    "blocks, and a rest that is left out": ((3, 2), (9 + 3, 2), 4, (3, 2)),
    "a single value": ((), (), 0, ()),
    "a single value for each item": ((), (6,), 6, ()),
    "of unknown sizes": (None, (6, 4), 6, (1, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_an_item_has_the_shape_that_its_network_takes(case: str) -> None:
    """All ways in which arrays and inputs meet; each item's values are those of its place."""
    shape, given, items, expected = CASES[case]
    array = np.arange(np.prod(given, dtype=int)).reshape(given)

    column = Column.of(array, Input("x", shape))

    assert len(column) == items
    for place in range(items or 3):
        tensor = column.part(place, place + 1).tensor()
        assert tensor.shape == expected
        first = place * max(tensor.size, 1) if items else 0
        assert tensor.ravel()[:1] == array.ravel()[first : first + 1]


@pytest.mark.parametrize(
    ("shape", "given"), [((None, 4), (6, 5)), ((3, 2), (4, 2)), ((), (2, 2)), ((None, 4), (4,))]
)
def test_other_sizes_name_the_input_and_what_it_takes(
    shape: tuple[int | None, ...], given: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidArgument, match=r"'x' has sizes .* a request's tensor is \["):
        Column.of(np.zeros(given), Input("x", shape))


def test_what_is_not_cut_goes_with_every_item() -> None:
    """A state of zeros and a rate, beside windows of sound: three inputs of one request."""
    inputs = {"input": (None, 8), "state": (2, None, 4), "rate": ()}
    arrays = {"input": np.eye(5, 8), "state": np.zeros((2, 1, 4)), "rate": np.array(16_000)}
    columns = {name: Column.of(arrays[name], Input(name, inputs[name])) for name in inputs}

    samples = Samples(columns, labels=np.arange(5))

    assert len(samples) == 5
    third = samples.part(2, 3)
    assert {name: each.shape for name, each in third.tensors.items()} == {
        "input": (1, 8),
        "state": (2, 1, 4),
        "rate": (),
    }
    assert third.labels is not None
    assert third.labels.tolist() == [2]
    assert third.tensors["input"][0, 2] == 1


def test_texts_and_numbers_survive_their_way_between_processes() -> None:
    texts = np.array([["a\n", "é"], ["", "🌿"]], object)
    assert Values.of(texts).array().tolist() == texts.tolist()
    numbers = np.arange(6, dtype=">i4").reshape(2, 3)
    assert np.array_equal(Values.of(numbers).array(), numbers)
    with pytest.raises(InvalidArgument):
        Values("str", (2,), Values.of(texts).base64).array()
    with pytest.raises(InvalidArgument):
        Values("float32", (3,), "AAAA").array()
