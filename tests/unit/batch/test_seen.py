"""Names of lines are known again, however many there are."""

from hypothesis import given
from hypothesis import strategies as st

from services.batch.core.seen import Seen


@given(st.lists(st.text(max_size=3)))
def test_a_name_is_new_once(names: list[str]) -> None:
    seen, before = Seen(), set[str]()
    for name in names:
        assert seen.add(name) == (name not in before)
        before.add(name)


def test_names_that_begin_at_one_place_of_a_table_begin_elsewhere_in_the_next() -> None:
    """A file's names can be chosen: with known digests, each would be compared with all before."""

    def places(seen: Seen) -> list[tuple[int, int]]:
        for at in range(100):
            seen.add(f"request-{at}")
        return [(n, at) for n, table in enumerate(seen._tables) for at, x in enumerate(table) if x]

    assert places(Seen()) != places(Seen())


def test_tables_that_have_grown_know_all_names_in_at_most_32_bytes_each() -> None:
    """Twenty thousand: each table has doubled several times."""
    seen, names = Seen(), [f"request-{number}" for number in range(20_000)]

    assert all(map(seen.add, names))
    assert not any(map(seen.add, names))
    assert sum(len(table) for table in seen._tables) * 8 <= 32 * len(names)
