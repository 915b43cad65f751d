import pytest

from services.cli.console.durations import seconds


@pytest.mark.parametrize(
    ("age", "expected"),
    [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2W", 1_209_600), (" 0s ", 0)],
)
def test_ages_are_read_as_people_write_them(age: str, expected: int) -> None:
    assert seconds(age) == expected


@pytest.mark.parametrize("age", ["", "7", "d", "-1d", "1.5h", "7 days", "9999999999d"])
def test_what_is_no_age_is_refused_with_examples(age: str) -> None:
    with pytest.raises(ValueError, match="7d"):
        seconds(age)
