"""Attacks and lies against a suite with mutual TLS: who was refused, who was affected.

    python -m benchmarks.attacks [--json FILE] [--only WORD] [--transport own|grpcio|both]

A suite of real processes serves handwritten digits. Honest callers go on all the time: a client
with a certificate, one with a token on the port for tokens, and an operator, each 5 to 25 times a
second, in a process of their own. Meanwhile

- calls that no role permits are made by four callers (`permissions`),
- floods, costly documents and messages come from a client, or from a caller without identity
  (`floods`, `parsers`),
- an agent, a router and a worker lie, each with a valid certificate of its own (`lies`).

A row has succeeded if the service did what the attacker wanted, if another node or tenant shows it,
if less than 99 % of an honest caller's calls were answered rightly within the objective, or if a
service grew by more than 64 MiB. Floods and messages are sent over `rpc.transport: grpcio`, too;
these rows are a comparison, and do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import uvloop
from rich.console import Console

from benchmarks.attacks import floods, parsers, permissions
from benchmarks.attacks.lies import agents, routers, workers
from benchmarks.attacks.target import OBJECTIVE_S, Attack, Target, Transport, target
from benchmarks.attacks.watch import Watch
from benchmarks.harness import WIDTH, Figures, Report, options, publish

_LEAST_SHARE: Final = 0.99
_MOST_MIB: Final = 64.0
_LIMIT_S: Final = 60.0
_SETTLES_S: Final = 0.3
_TRIES: Final = 3
_FOR_TRIFLES: Final = 1
"""Calls of an honest caller that may be late in a row too short for a hundredth of them."""

_progress: Final = Console(stderr=True, highlight=False, width=WIDTH)


class Trial(NamedTuple):
    """One row. Attributes: group, by (whom), name, attack, everywhere (over either transport)."""

    group: str
    by: str
    name: str
    attack: Attack
    everywhere: bool = False


async def quiet(_: Target) -> str:
    """Do nothing for a while: what honest callers have on this machine."""
    await asyncio.sleep(8)
    return "honest callers alone"


def trials(found: Target) -> Iterator[Trial]:
    """Yield every attack on a suite."""
    yield Trial("quiet", "no attacker", "8 s without an attack", quiet, everywhere=True)
    for by, name, attack in floods.floods():
        yield Trial("floods", by, name, attack, everywhere=True)
    for name, attack in parsers.messages():
        yield Trial("parsers", "a client", name, attack, everywhere=True)
    for name, attack in parsers.others():
        yield Trial("parsers", "a client", name, attack)
    for name, call in permissions.attacks():
        for attacker in permissions.attackers(found):
            yield Trial("permissions", attacker.name, name, _as(call, attacker))
    for by, liar in (("an agent", agents), ("a router", routers), ("a worker", workers)):
        for name, attack in liar.lies():
            yield Trial("lies", by, name, attack)


def _as(call: permissions.Attack, attacker: permissions.Attacker) -> Attack:
    async def attack(found: Target) -> str:
        return await call(found, attacker)

    return attack


async def run(folder: Path, transport: Transport, only: str) -> tuple[list[dict[str, Any]], Watch]:
    """Try every attack on one suite; return what came of each, and what honest callers had."""
    rows, began_s = [], time.monotonic()

    def say(step: str) -> None:
        _progress.print(f"{transport} {time.monotonic() - began_s:.0f} s: {step}")

    async with target(folder, transport, say) as found:
        os.nice(5)  # attackers would not share the machine with those whom they attack
        watch = Watch(found)
        chosen = [
            each
            for each in trials(found)
            if only in f"{each.group} {each.by} {each.name}"
            and (each.everywhere or transport == "own")
        ]
        say("honest callers begin")
        async with watch.running():
            for number, trial in enumerate(chosen, 1):
                row = await _tried(found, watch, trial)
                rows.append(row)
                _progress.print(f"{number}/{len(chosen)} {transport} {_line(row)}")
    return rows, watch


def _line(row: dict[str, Any]) -> str:
    """Return a row as the line that shows progress."""
    return (
        f"{row['as']}: {row['name']}: {row['outcome']}, {row['how'] or row['fault'] or '-'}; "
        f"honest {row['honest_percent']} %, +{row['memory_mib']} MiB, "
        f"{row['services_cpu_s']} s of CPU in {row['took_s']} s, try {row['tries']}"
    )


async def _tried(found: Target, watch: Watch, trial: Trial) -> dict[str, Any]:
    """Try an attack; again where honest callers were late, which other processes cause, too."""
    row = await _once(found, watch, trial)
    while row["how"] and row["outcome"] == "succeeded" and row["tries"] < _TRIES:
        _progress.print(f"again: {_line(row)}")
        row = {**await _once(found, watch, trial), "tries": row["tries"] + 1}
    return row


async def _once(found: Target, watch: Watch, trial: Trial) -> dict[str, Any]:
    began_s, fault = time.monotonic(), ""
    async with watch.row() as effects:
        try:
            async with asyncio.timeout(_LIMIT_S):
                how = await trial.attack(found)
        except Exception as error:  # noqa: BLE001 - a row that fails shows nothing
            how, fault = "", f"{type(error).__name__}: {error}"[:120]
        await asyncio.sleep(_SETTLES_S)
    hurt = effects.least_share < _LEAST_SHARE and effects.affected > _FOR_TRIFLES
    large = effects.growth_mib > _MOST_MIB
    return {
        "group": trial.group,
        "name": trial.name,
        "as": trial.by,
        "outcome": "refused" if how and not hurt and not large else "succeeded",
        "how": how,
        "fault": fault,
        "clients_affected": effects.affected,
        "faults": dict(effects.faults),
        "honest_calls": effects.calls.total(),
        "honest_percent": round(100 * effects.least_share, 1),
        "memory_mib": round(effects.growth_mib),
        "grew": effects.grew,
        "services_cpu_s": round(effects.cpu_s, 2),
        "took_s": round(time.monotonic() - began_s, 1),
        "tries": 1,
    }


def report(runs: dict[Transport, tuple[list[dict[str, Any]], Watch]]) -> Report:
    """Return the tables: the rows, and the floods over either transport side by side."""
    rows, watch = next(iter(runs.values()))
    compared = {
        transport: {(row["as"], row["name"]): row for row in found}
        for transport, (found, _) in runs.items()
    }
    shown = [_shown(row, compared) for row in rows]
    totals = _totals(watch)
    counts = [
        {
            "group": group,
            "tried": len(found),
            "refused": sum(row["outcome"] == "refused" for row in found),
            "clients_affected": sum(row["clients_affected"] for row in found),
            "most_memory_mib": max(row["memory_mib"] for row in found),
        }
        for group in dict.fromkeys(row["group"] for row in rows)
        if (found := [row for row in rows if row["group"] == group])
    ]
    document = {
        "benchmark": "attacks",
        "objective_s": OBJECTIVE_S,
        "attacks": rows,
        "honest_client": totals,
        "transports": {name: found for name, (found, _) in runs.items()},
    }
    return Report(
        [
            Figures("attacks", shown),
            Figures("groups", counts),
            Figures("honest callers", [totals]),
        ],
        document,
    )


def _shown(row: dict[str, Any], compared: dict[Transport, dict[Any, dict[str, Any]]]) -> Any:
    """Return a row for people; the other transport's outcome beside it."""
    other = compared.get("grpcio", {}).get((row["as"], row["name"]))
    return {
        "as": row["as"],
        "name": row["name"],
        "outcome": row["outcome"],
        "honest_percent": row["honest_percent"],
        "memory_mib": row["memory_mib"],
        "how": row["how"][:60],
        "grpcio": ""
        if other is None
        else f"{other['outcome']}, {other['honest_percent']} %, +{other['memory_mib']} MiB",
    }


def _totals(watch: Watch) -> dict[str, Any]:
    total = watch.total
    return {
        "calls": total.calls.total(),
        "answered": total.good.total(),
        "affected": total.affected,
        "faults": ", ".join(f"{name} {count}" for name, count in total.faults.items()),
        **{
            f"{caller}_percent": round(100 * total.good[caller] / count, 2)
            for caller, count in total.calls.items()
        },
    }


async def _all(arguments: argparse.Namespace) -> Report:
    names: tuple[Transport, ...] = (
        ("own", "grpcio") if arguments.transport == "both" else (arguments.transport,)
    )
    runs: dict[Transport, tuple[list[dict[str, Any]], Watch]] = {}
    for transport in names:
        with TemporaryDirectory(prefix="bench-attacks-") as folder:
            runs[transport] = await run(Path(folder), transport, arguments.only)
    return report(runs)


def main() -> None:
    """Run it; the exit status is 1 if an attack succeeded."""
    parser = options("attacks")
    parser.add_argument("--only", default="", help="rows whose group, caller and name have this")
    parser.add_argument("--transport", choices=("own", "grpcio", "both"), default="both")
    arguments = parser.parse_args()
    found = uvloop.run(_all(arguments))
    publish("attacks", found, arguments)
    assert found.document is not None  # see `report`
    succeeded = [row for row in found.document["attacks"] if row["outcome"] == "succeeded"]
    if succeeded:
        sys.exit(f"{len(succeeded)} of the attacks succeeded")


if __name__ == "__main__":
    main()
