"""Promises in words, the same in plans, status and console."""

_HOUR_S = 3600
_DAY_H = 24


def accuracy_promise(at_least: float, over_s: float, floor: float) -> str:
    """Return a mean accuracy in words: "98 % on average over 28 days, never below 95 %".

    Args:
        at_least: The mean, relative to the best variant, 0..1.
        over_s: Length of the period, s.
        floor: Least accuracy at each moment, 0..1; 0: none.
    """
    hours = round(over_s / _HOUR_S)
    over = f"{hours // _DAY_H} days" if hours > _DAY_H and hours % _DAY_H == 0 else f"{hours} hours"
    below = f", never below {_percent(floor)}" if floor else ""
    return f"{_percent(at_least)} on average over {over}{below}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
