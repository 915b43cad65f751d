"""The log says once where a bug is, however often it is met."""

import pytest

from services.kit.telemetry.logs import Tracebacks


def _bug(divisor: int) -> Exception:
    try:
        1 / divisor
    except ZeroDivisionError as error:
        return error
    raise AssertionError("no bug")


def test_a_bug_that_is_met_again_has_its_traceback_in_the_log_once_an_hour() -> None:
    now_s = 0.0
    tracebacks = Tracebacks(lambda: now_s)
    shown = []
    for _ in range(8000):
        shown.append("exc_info" in tracebacks.details(_bug(0)))
        now_s += 0.5

    assert (shown[0], shown.count(True)) == (True, 2)


def test_another_place_is_another_bug() -> None:
    tracebacks = Tracebacks()
    tracebacks.details(_bug(0))
    with pytest.raises(ZeroDivisionError) as elsewhere:
        divmod(1, 0)

    assert tracebacks.details(_bug(0)) == {"error": "ZeroDivisionError('division by zero')"}
    assert tracebacks.details(elsewhere.value) == {"exc_info": elsewhere.value}
