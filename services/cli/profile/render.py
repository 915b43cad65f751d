"""Measurements and differences as text and tables."""

from collections.abc import Sequence

from rich.table import Table

from services.cli.console.output import table
from services.cli.profile.compare import Difference
from services.gpuagent.profiling.core.sweep import Point
from services.kit.profiles.core.measurement import Measurement


def point(value: Point) -> str:
    """Return a point in a few words."""
    clock = f" at {value.clock_mhz} MHz" if value.clock_mhz else ""
    prompts = f" of {value.prompt_tokens} tokens" if value.prompt_tokens else ""
    return f"{value.profile} batch {value.batch_size} x {value.processes}{prompts}{clock}"


def result(value: Measurement) -> str:
    """Return a measurement in a line."""
    where = point(Point.of(value))
    if not value.ran:
        return f"{where}: did not run: {value.reason}"
    if value.prompt_tokens:
        return (
            f"{where}: step {value.step_s * 1e3:.2f} ms, {value.step_j:.3g} J; a token of a prompt "
            f"{value.prompt_token_s * 1e3:.3f} ms, {value.prompt_token_j:.3g} J "
            f"({value.energy_method}), {value.batches} rounds"
        )
    return (
        f"{where}: {value.latency_s * 1e3:.2f} ms (p95 {value.latency_p95_s * 1e3:.2f}), "
        f"{value.throughput_rps:.1f}/s, {value.energy_j / value.batch_size:.3g} J per item "
        f"({value.energy_method}), {value.batches} batches"
    )


def differences(found: Sequence[Difference], names: tuple[str, str]) -> Table:
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
