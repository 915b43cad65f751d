"""Text in narrow columns: nothing is lost, no word breaks that need not."""

from hypothesis import given
from hypothesis import strategies as st

from services.cli.console.wrapping import wrapped

names = st.text(st.sampled_from("ab-_./ "), min_size=1, max_size=60)


@given(names, st.integers(1, 40))
def test_no_line_is_too_long_and_no_character_but_spaces_is_lost(text: str, width: int) -> None:
    lines = wrapped(text, width)

    assert all(len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(st.lists(st.sampled_from(["minilm-", "l12.", "eu/", "int8_"]), min_size=1, max_size=9))
def test_long_names_break_after_their_separators(parts: list[str]) -> None:
    name = "".join(parts)

    assert all(line[-1] in "-./_" for line in wrapped(name, 8))
