"""A GPU's slices as a bar of cells."""

from hypothesis import given
from hypothesis import strategies as st

from services.cli.console.slice_bars import SliceCells, bar, labels

KNOWN = {"digits/svc": "svc", "digits/linear": "lin"}


def test_a_cell_for_each_compute_slice_shows_what_runs_there() -> None:
    pieces = [
        SliceCells(0, 4, "digits/svc"),
        SliceCells(4, 1, ""),
        SliceCells(6, 1, "digits/linear"),
    ]

    assert bar(7, pieces, KNOWN).plain == "[svc svc svc svc ···     lin]"


def test_a_slice_of_the_upper_half_ends_at_the_last_cell() -> None:
    """An A100 has eight memory slices and seven compute slices: 3g.20gb@4 has the last three."""
    pieces = [SliceCells(0, 3, "digits/svc"), SliceCells(4, 3, "digits/linear")]

    assert bar(7, pieces, KNOWN).plain == "[svc svc svc     lin lin lin]"


def test_names_that_begin_alike_differ() -> None:
    assert labels(["m/mlp-64", "m/mlp-512", "n/x"]) == {
        "m/mlp-512": "mlp",
        "m/mlp-64": "ml2",
        "n/x": "x__",
    }


@given(st.sets(st.text("ab/", min_size=1, max_size=6), max_size=40))
def test_labels_are_three_characters_and_distinct(names: set[str]) -> None:
    found = labels(names)

    assert found.keys() == names
    assert {len(each) for each in found.values()} <= {3}
    assert len(set(found.values())) == len(names)
