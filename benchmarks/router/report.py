"""The measured figures, as tables and as JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness import Figures, Report, Row
from benchmarks.router.http import HttpCost
from benchmarks.router.memory import Memory
from benchmarks.router.messages import SHAPES
from benchmarks.router.overload import TIMES, Overload
from benchmarks.router.paths import PATHS
from benchmarks.router.samples import CASES, Case, Cell, Speeds
from benchmarks.router.soak import Soak

TARGETS = (
    (Case("small", 1), "passthrough", 2.8),
    (Case("small", 64), "passthrough", 3.5),
    (Case("image", 1), "passthrough", 1.7),
    (Case("image", 64), "passthrough", 1.7),
    *((case, "nginx", 1.0) for case in CASES[:4]),
)
"""Targets: case, baseline, and the ratio by which Cinquefoil is to be better."""

TLS_PATHS = ("direct", "nginx", "cinquefoil")
TLS_TARGETS = tuple((case, "nginx", 0.9) for case in CASES[:4])
"""The same with TLS on both sides of both."""

GOODPUT = 0.9
"""Least share of the capacity that is to be answered in time under overload."""

GROWTH = 0.02
"""Memory that grows less than this in a soak is flat: what the allocator keeps varies."""


@dataclass(slots=True)
class Found:
    """All parts; those not requested are None."""

    generator: str
    speeds: Speeds | None = None
    secure: Speeds | None = None
    memory: list[Memory] | None = None
    http: list[HttpCost] | None = None
    overload: Overload | None = None
    soak: Soak | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)


def report(found: Found) -> Report:
    """Return all of it."""
    return Report(tables(found), document(found))


def tables(found: Found) -> list[Figures]:
    """Return the tables of the parts that ran."""
    made: list[Figures] = []
    if found.speeds is not None:
        speeds = found.speeds
        made += [_speed(speeds, found.generator), _ratios(speeds), _targets(speeds), _hop(speeds)]
    if found.secure is not None:
        made += [_secure(found.secure), _targets(found.secure, TLS_TARGETS, "Targets with TLS")]
    if found.memory is not None:
        made.append(Figures("Memory of requests that wait", [asdict(e) for e in found.memory]))
    if found.http is not None:
        made.append(Figures("HTTP beside gRPC, per request", [asdict(e) for e in found.http]))
    if found.overload is not None:
        made.append(_overload(found.overload))
    if found.soak is not None:
        made.append(_soak(found.soak))
    return made


def document(found: Found) -> dict[str, Any]:
    """Return the figures; a path that did not run is null under each load."""
    made: dict[str, Any] = {}
    speeds = found.speeds
    if speeds is not None:
        for case in CASES:
            made[str(case)] = {path: speeds.figure(case, path) for path in PATHS}
        made["ratios"] = {row["than"]: _without(row, "than") for row in _ratios(speeds).rows}
        made["targets"] = [dict(row) for row in _targets(speeds).rows]
        made["latency_and_cpu"] = [dict(row) for row in _hop(speeds).rows]
        made["absent"] = dict(speeds.absent)
    if found.secure is not None:
        made["tls"] = _secure_document(found.secure)
    if found.memory is not None:
        made["memory"] = [asdict(each) for each in found.memory]
    if found.http is not None:
        made["http"] = [asdict(each) for each in found.http]
    if found.overload is not None:
        made["overload"] = asdict(found.overload) | {"goodput_over_capacity": found.overload.share}
    if found.soak is not None:
        made["soak"] = asdict(found.soak)
    return made | {"generator": found.generator, "setting": dict(found.setting)}


def _speed(speeds: Speeds, generator: str) -> Figures:
    rows = []
    for path in PATHS:
        row: dict[str, Any] = {"path": path}
        for case in CASES:
            unit = "ms" if case.in_flight == 1 else "req/s"
            row[f"{case}, {unit}"] = _or_dash(speeds.figure(case, path))
        rows.append(row | {"note": speeds.absent.get(path, "")})
    note = f"generator: {generator}; all processes share the cores: only ratios mean something"
    return Figures("Latency (p50) with 1 in flight, throughput with 64", rows, note)


def _ratios(speeds: Speeds) -> Figures:
    rows = []
    for baseline in (path for path in PATHS if path != "cinquefoil"):
        row: dict[str, Any] = {"than": baseline}
        for case in CASES:
            row[str(case)] = _or_dash(speeds.better(case, "cinquefoil", baseline))
        rows.append(row)
    note = "median of the rounds' ratios; than direct: how near to no hop at all, which is 1"
    return Figures("How many times better Cinquefoil is", rows, note)


def _secure(speeds: Speeds) -> Figures:
    rows = []
    for path in TLS_PATHS:
        row: dict[str, Any] = {"path": path}
        for case in CASES:
            unit = "ms" if case.in_flight == 1 else "req/s"
            row[f"{case}, {unit}"] = _or_dash(speeds.figure(case, path))
        rows.append(row | {"note": speeds.absent.get(path, "")})
    note = "clients with a bearer token; certificates of router and worker checked both ways"
    return Figures("With TLS on both sides", rows, note)


def _secure_document(speeds: Speeds) -> dict[str, Any]:
    made: dict[str, Any] = {
        str(case): {path: speeds.figure(case, path) for path in TLS_PATHS} for case in CASES
    }
    targets = _targets(speeds, TLS_TARGETS, "").rows
    return made | {"targets": [dict(row) for row in targets], "absent": dict(speeds.absent)}


def _targets(
    speeds: Speeds,
    targets: Iterable[tuple[Case, str, float]] = TARGETS,
    title: str = "Targets",
) -> Figures:
    rows = []
    for case, baseline, target in targets:
        ratio = speeds.better(case, "cinquefoil", baseline)
        met = None if ratio is None else ratio >= target
        row = {"load": str(case), "than": baseline, "times better": _or_dash(ratio)}
        rows.append(row | {"target": target, "met": _or_dash(met)})
    return Figures(title, rows)


def _hop(speeds: Speeds) -> Figures:
    """One request at a time: its latency beside no hop; many: the CPU time of one."""
    rows = [
        {"size": size, "path": path} | _hop_row(speeds, size, path)
        for size in SHAPES
        for path in PATHS
        if Cell(Case(size, 1), path) in speeds.samples
    ]
    note = (
        "added: over direct's; cpu: of the path's own processes, per answer, by requests in flight"
    )
    return Figures("Latency with 1 in flight, CPU time with 64", rows, note)


def _hop_row(speeds: Speeds, size: str, path: str) -> dict[str, Any]:
    single, many = Case(size, 1), Case(size, 64)
    row: dict[str, Any] = {}
    for name in ("p50_ms", "p99_ms"):
        there, straight = (speeds.median_of(single, p, name) for p in (path, "direct"))
        row[name] = _or_dash(there)
        added = None if there is None or straight is None else there - straight
        row[f"added_{name}"] = _or_dash(added)
    for case in (single, many):
        cpu_us = speeds.median_of(case, path, "cpu_us")
        row[f"cpu_us_{case.in_flight}"] = _or_dash(cpu_us)
    return row


def _overload(found: Overload) -> Figures:
    row = {
        "capacity_rps": found.capacity_rps,
        "offered_rps": found.offered_rps,
        "goodput_rps": found.goodput_rps,
        "goodput / capacity": found.share,
        "target": GOODPUT,
        "met": found.share >= GOODPUT,
        "p99_ms": found.p99_ms,
        "refused_p99_ms": found.refused_p99_ms,
        "ends": ", ".join(f"{name} {share:.0%}" for name, share in found.statuses.items()),
    }
    return Figures(f"{TIMES:g} times the capacity, deadline = objective", [row])


def _soak(found: Soak) -> Figures:
    row = asdict(found) | {
        "lost": sum(found.lost.values()),
        "met": not found.lost and found.growth <= GROWTH,
    }
    return Figures(
        "Soak: a plan change every 5 s", [row], f"lost by status: {found.lost or 'none'}"
    )


def _without(row: Row, key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value
