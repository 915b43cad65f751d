"""Points on which two tables of measurements differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.table import Table

from services.cli.console.output import table
from services.kit.profiles.core.measurement import Measurement


class Key(NamedTuple):
    """A point of a table."""

    gpu: str
    profile: str
    processes: int
    batch_size: int
    clock_ratio: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A point on which two tables differ.

    Attributes:
        at: The point.
        latencies_s: In each table, s; None: not there; 0: did not run.
        latency_ratio, energy_ratio: The second over the first; None: one of them has none.
    """

    at: Key
    latencies_s: tuple[float | None, float | None]
    latency_ratio: float | None = None
    energy_ratio: float | None = None


def differences(
    one: Iterable[Measurement], other: Iterable[Measurement], tolerance: float
) -> list[Difference]:
    """Return the points that differ, in order of slice and size.

    Args:
        one: The rows of a table.
        other: Those of the other.
        tolerance: Relative difference of latency or energy that counts as none, >= 0.
    """
    first, second = _by_key(one), _by_key(other)
    found = (_difference(key, first.get(key), second.get(key)) for key in first | second)
    return sorted(
        (each for each in found if _differs(each, tolerance)),
        key=lambda each: each.at._replace(clock_ratio=-each.at.clock_ratio),
    )


def _by_key(rows: Iterable[Measurement]) -> dict[Key, Measurement]:
    return {
        Key(
            r.gpu, r.profile, r.processes, r.batch_size, round(r.clock_ratio, 3), r.prompt_tokens
        ): r
        for r in rows
    }


def _difference(key: Key, one: Measurement | None, other: Measurement | None) -> Difference:
    latencies_s = (one.latency_s if one else None, other.latency_s if other else None)
    if one is None or other is None or not (one.ran and other.ran):
        return Difference(key, latencies_s)
    energy_ratio = other.energy_j / one.energy_j if one.energy_j else None
    return Difference(key, latencies_s, other.latency_s / one.latency_s, energy_ratio)


def _differs(each: Difference, tolerance: float) -> bool:
    if each.latency_ratio is None:
        return each.latencies_s[0] != each.latencies_s[1]
    ratios = (each.latency_ratio, each.energy_ratio)
    return any(ratio is not None and not _close(ratio, tolerance) for ratio in ratios)


def _close(ratio: float, tolerance: float) -> bool:
    return 1 / (1 + tolerance) <= ratio <= 1 + tolerance


def difference_table(found: Sequence[Difference], names: tuple[str, str]) -> Table:
    """Return a table of the points that differ; ratios are the second file's over the first's."""
    one, other = names
    rows = table("", "GPU", "slice", ">batch", ">clock", f">{one} ms", f">{other} ms",
                 ">latency", ">energy")  # fmt: skip
    for each in found:
        at = each.at
        prompts = f" of {at.prompt_tokens}" if at.prompt_tokens else ""
        size = f"{at.batch_size}x{at.processes}{prompts}"
        ratios = map(_ratio, (each.latency_ratio, each.energy_ratio))
        clock = f"{at.clock_ratio:.2f}"
        rows.add_row(at.gpu, at.profile, size, clock, *map(_ms, each.latencies_s), *ratios)
    return rows


def _ms(latency_s: float | None) -> str:
    if latency_s is None:
        return "-"
    return f"{latency_s * 1e3:.2f}" if latency_s else "did not run"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"
