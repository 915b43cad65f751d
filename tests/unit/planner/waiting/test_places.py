"""Waiting work where its window is cleanest: days in virtual time, decided again every hour."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from services.kit.units import carbon_gco2e
from services.planner.core.waiting.model import Away, Due, Slot
from services.planner.core.waiting.queue import Backlog
from services.planner.core.waiting.release import plan_release

HOUR_S = 3600.0
HOURS = 60
NEVER = HOURS


@dataclass
class Ended:
    """End of some days. Attributes: gCO2e, requests late, most sent above a grant, all sent."""

    grams: float = 0.0
    late: float = 0.0
    most_over_grant: float = 0.0
    sent: float = 0.0


def world(seed: int) -> tuple[list[Slot], list[Due]]:
    """Return the hours of a home and two peers, and work that room at home can answer in time."""
    draw = Random(seed)

    def grid() -> list[float]:
        base, swing, phase = draw.uniform(50, 500), draw.uniform(0, 0.8), draw.randrange(24)
        hours = [abs((at + phase) % 24 - 12) / 12 for at in range(HOURS)]
        return [base * (1 + swing * (hour - 0.5)) * draw.uniform(0.95, 1.05) for hour in hours]

    home, peers = grid(), {"north": grid(), "south": grid()}
    slots = [
        Slot(
            start_s=at * HOUR_S,
            length_s=HOUR_S,
            intensity_gco2e_per_kwh=home[at],
            room_rps=draw.uniform(0.5, 1.5),
            room_j=10.0,
            away=tuple(
                Away(name, draw.choice([0.0, draw.uniform(0, 3)]), its[at], draw.uniform(8, 12))
                for name, its in peers.items()
            ),
        )
        for at in range(HOURS)
    ]
    ends = sorted(draw.sample(range(6, 30), 3))
    work = [Due(end * HOUR_S, draw.uniform(0.02, 0.12) * end * HOUR_S) for end in ends]
    return slots, work


def run(slots: list[Slot], work: list[Due], lost_h: int = NEVER) -> Ended:
    """Decide each hour what runs; from an hour on no peer answers, and none is expected to."""
    ended, backlog = Ended(), Backlog(work)
    for at in range(HOURS - 30):
        ahead = slots[at:] if at < lost_h else [replace(each, away=()) for each in slots[at:]]
        release = plan_release(backlog.left(), ahead)
        slot, choice = ahead[0], release.choices[0]
        for each, rate_rps in zip(slot.away, choice.away_rps, strict=False):
            ended.most_over_grant = max(ended.most_over_grant, rate_rps - each.rate_rps)
            ended.sent += rate_rps * HOUR_S
            joules = rate_rps * each.energy_j * HOUR_S
            ended.grams += carbon_gco2e(joules, each.intensity_gco2e_per_kwh)
        joules = choice.home_rps * slot.room_j * HOUR_S
        ended.grams += carbon_gco2e(joules, slot.intensity_gco2e_per_kwh or 0.0)
        if choice.rate_rps > 0:
            answered = list(backlog.answer(slot, choice.rate_rps))
            ended.late += sum(part for due_s, part, at_s in answered if at_s > due_s + 1)
    ended.late += backlog.requests
    return ended


@pytest.mark.parametrize("seed", range(20))
def test_peers_save_carbon_and_deadlines_do_not_depend_on_them(seed: int) -> None:
    """Within grants, no more carbon than at home alone, none late, also where peers are lost."""
    slots, work = world(seed)

    at_home = run([replace(each, away=()) for each in slots], work)
    away, lost = run(slots, work), run(slots, work, lost_h=seed % 24)

    assert at_home.late == pytest.approx(0.0, abs=1e-3)
    assert away.late == pytest.approx(0.0, abs=1e-3)
    assert lost.late == pytest.approx(0.0, abs=1e-3)
    assert max(away.most_over_grant, lost.most_over_grant) <= 1e-9
    assert away.grams <= at_home.grams * (1 + 1e-6)
