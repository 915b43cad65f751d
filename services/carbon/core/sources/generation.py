"""Intensity of a zone's generation, from the power of each production type.

    type  resolution  10:00   10:15   10:30   10:45   11:00
    B05   PT60M       [======= 3000 MW ==============][ ...
    B19   PT15M       [ 900 ][ 950  ][ 940  ][ 930  ][ ...
    out               [ s   ][ s    ][ s    ][ s    ][ ...

A value holds for its whole step, so that types of different resolutions add up at every instant.
Where steps of one type overlap, the finer one counts; of equally fine ones, the one given last.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from services.carbon.core.model import Provenance, Sample
from services.carbon.core.sources.emission_factors import LIFECYCLE_GCO2E_PER_KWH, STORAGE

ATOM: Final = timedelta(minutes=5)
"""Every step is a whole number of these."""

_NEGLIGIBLE: Final = 0.02
"""Relative effect on the intensity below which a missing type may be counted as it last was."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Mean power of one production type over one step.

    Attributes:
        kind: ENTSO-E's code of the type (psrType).
        since: Start of the step, UTC.
        step: Its length, a multiple of ATOM.
        power_mw: Mean power, MW; negative where the plants consume.
    """

    kind: str
    since: datetime
    step: timedelta
    power_mw: float


def intensities(generated: Iterable[Generation]) -> tuple[Sample, ...]:
    """Return the intensity of every step that is known in full, oldest first.

    A type that is missing in a step is counted as it last was, and the step "estimated", where
    that changes little, as of the sun's at night. Where it would change more, the step is left
    out: without its coal it would look clean.

    Args:
        generated: In any order, except that a revision follows what it revises.
    """
    by_atom = _by_atom(each for each in generated if each.kind not in STORAGE)
    last = _first_powers(by_atom)
    samples = []
    before: Mapping[str, Generation] = {}  # in force, where the atom before was known in full
    previous: datetime | None = None
    for when, known in sorted(by_atom.items()):
        if known == before and previous == when - ATOM:
            previous = when
            continue
        known_mw = {kind: max(each.power_mw, 0.0) for kind, each in known.items()}
        last |= known_mw
        sample = _sample(when, known_mw, last)
        previous, before = when, known if sample is not None else {}
        if sample is not None:
            samples.append(sample)
    return tuple(samples)


def _by_atom(generated: Iterable[Generation]) -> Mapping[datetime, dict[str, Generation]]:
    found: dict[datetime, dict[str, Generation]] = defaultdict(dict)
    for each in generated:
        for when in _atoms(each):
            other = found[when].get(each.kind)
            if other is None or each.step <= other.step:
                found[when][each.kind] = each
    return found


def _atoms(each: Generation) -> Iterator[datetime]:
    for index in range(each.step // ATOM):
        yield each.since + index * ATOM


def _first_powers(by_atom: Mapping[datetime, Mapping[str, Generation]]) -> dict[str, float]:
    """Return the first known power of each type, MW: what it was before is not known."""
    first: dict[str, float] = {}
    for _, known in sorted(by_atom.items()):
        for kind, each in known.items():
            first.setdefault(kind, max(each.power_mw, 0.0))
    return first


def _sample(
    when: datetime, known_mw: Mapping[str, float], last_mw: Mapping[str, float]
) -> Sample | None:
    """Return the sample that begins at `when`; None: it is not known well enough."""
    full, partial = _intensity(last_mw), _intensity(known_mw)
    if full is None or partial is None or abs(full - partial) > _NEGLIGIBLE * full:
        return None
    provenance: Provenance = "measured" if known_mw.keys() == last_mw.keys() else "estimated"
    return Sample(when, full, provenance)


def _intensity(power_mw: Mapping[str, float]) -> float | None:
    """Return the mean intensity; None without generation."""
    total_mw = sum(power_mw.values())
    if total_mw <= 0:
        return None
    unknown = LIFECYCLE_GCO2E_PER_KWH["B20"]
    emitted = (mw * LIFECYCLE_GCO2E_PER_KWH.get(kind, unknown) for kind, mw in power_mw.items())
    return sum(emitted) / total_mw
