"""Values by key keep their order."""

from services.kit.grouping import grouped, summed

PAIRS = [("b", 1), ("a", 2), ("b", 3)]


def test_values_of_a_key_stay_in_order_and_keys_in_that_of_their_first_value() -> None:
    assert list(grouped(PAIRS).items()) == [("b", [1, 3]), ("a", [2])]


def test_sums_add_up_what_is_grouped() -> None:
    assert list(summed(PAIRS).items()) == [("b", 4), ("a", 2)]
