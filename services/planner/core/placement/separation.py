"""Segments of a model apart: no loss of one GPU or node takes more of them than it may.

On few GPUs the program that assigns layouts has columns for the segments on each; on more, every
segment goes to the domain that holds least of its model so far.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.grouping import grouped
from services.planner.core.model import Gpu, Model, Problem, SegmentKind
from services.planner.core.problem.failure_domains import (
    demanding,
    domain_of,
    domains_of,
    domains_wanted,
    least_domains,
    surviving_share,
)
from services.planner.core.problem.pricing import Row, row
from services.planner.core.solver.milp import Program

Quotas = Mapping[str, Counter[SegmentKind]]
"""Segments of separated models by UUID of their GPU."""

Sites = Mapping[str, tuple[Sequence[Placement], int]]
"""Slices and SM clock by UUID of their GPU."""


@dataclass(slots=True)
class Separation:
    """Models that must survive a loss, and what of them is placed so far.

    Attributes:
        models: The models by name.
        shares: Share of what must survive that one segment may be given, by kind.
        placed: Sum of the shares on each domain so far, by model and domain.
    """

    models: Mapping[str, Model]
    shares: Mapping[SegmentKind, float]
    placed: dict[tuple[str, str], float] = field(default_factory=dict)
    _total: dict[str, float] = field(init=False)
    _wanted: Mapping[str, int] = field(default_factory=dict)
    _least: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, segments: Mapping[SegmentKind, int]) -> "Separation":
        """Return the separation of the segments to place."""
        models = {model.name: model for model in problem.models if demanding(model)}
        kinds = [kind for kind in segments if kind.model in models]
        shares = {
            kind: surviving_share(problem.objective, models[kind.model], kind) for kind in kinds
        }
        wanted, least = dict[str, int](), dict[str, int]()
        for name, model in models.items():
            pools = {kind.pool for kind in kinds if kind.model == name}
            there = domains_of(model, (gpu for gpu in problem.gpus if gpu.pool in pools))
            wanted[name] = domains_wanted(model, len(there))
            least[name] = least_domains(model, len(there))
        found = cls(models, shares, _wanted=wanted, _least=least)
        found._total = {
            name: sum(
                segments[kind] * share for kind, share in shares.items() if name == kind.model
            )
            for name in models
        }
        return found

    def least_gpus(self, wanted: Mapping[SegmentKind, int]) -> int:
        """Return the fewest GPUs of a pool that can keep the promises with these segments."""
        counts: Counter[str] = Counter()
        for kind, count in wanted.items():
            if kind.model in self.models:
                counts[kind.model] += count
        here = ((name, min(count, self._least[name])) for name, count in counts.items())
        return max((n for name, n in here if not self._placed_on(name)), default=0)

    def _placed_on(self, name: str) -> set[str]:
        """Return the domains with segments of a model so far."""
        return {domain for model, domain in self.placed if model == name}

    def by_node(self, kind: SegmentKind) -> bool:
        """Return whether a kind's model must survive the loss of a node."""
        model = self.models.get(kind.model)
        return model is not None and model.spread == "node"

    @property
    def by_gpu(self) -> bool:
        """Some model must survive the loss of a GPU."""
        return any(model.spread != "node" for model in self.models.values())

    def allowed(self, model: Model, domain: str) -> float:
        """Return the further share that a domain may hold."""
        most = self._total[model.name] - 1.0 if model.survive else self._total[model.name]
        return most - self.placed.get((model.name, domain), 0.0)

    def add_rows(
        self, program: Program, held: Mapping[tuple[SegmentKind, str], int], gpus: Iterable[Gpu]
    ) -> dict[int, float]:
        """Limit what a domain holds, and require enough domains; return columns of what is missing.

        Args:
            program: The program.
            held: Columns with the number of segments, by kind and UUID of the first GPU of a group.
            gpus: These first GPUs.
        """
        firsts = {gpu.uuid: gpu for gpu in gpus}
        missing: dict[int, float] = {}
        for model in self.models.values():
            own = {
                (kind, uuid): at for (kind, uuid), at in held.items() if kind.model == model.name
            }
            if not own:
                continue
            parts = grouped(
                (domain_of(model, uuid, firsts[uuid].node), (at, self.shares[kind], kind))
                for (kind, uuid), at in own.items()
            )
            over = program.column()
            missing[over] = 1.0
            for domain, terms in parts.items():
                counted = ((at, share) for at, share, _ in terms)
                program.row([(over, -1.0), *counted], high=self.allowed(model, domain))
            missing |= self._spread(program, model, parts)
        return missing

    def _spread(
        self,
        program: Program,
        model: Model,
        parts: Mapping[str, Sequence[tuple[int, float, SegmentKind]]],
    ) -> dict[int, float]:
        """Require enough domains with a segment; return the column of those that are missing."""
        here = self._placed_on(model.name)
        wanted = self._wanted[model.name] - len(here)
        new = {domain: terms for domain, terms in parts.items() if domain not in here}
        if wanted < 2 - len(here) or not new:
            return {}
        used = program.columns(len(new), upper=1.0, integer=True).tolist()
        for column, terms in zip(used, new.values(), strict=True):
            first = [(at, 1.0) for at, _, kind in terms if not kind.stage.index]
            program.row([(column, -1.0), *first], low=0.0)
        short = program.column()
        program.row([(short, 1.0), *((column, 1.0) for column in used)], low=float(wanted))
        return {short: 1.0}

    def record(self, quotas: Quotas, gpus: Mapping[str, Gpu]) -> None:
        """Count what is placed."""
        for uuid, counts in quotas.items():
            for kind, count in ((k, n) for k, n in counts.items() if k.model in self.models):
                domain = domain_of(self.models[kind.model], uuid, gpus[uuid].node)
                key = kind.model, domain
                self.placed[key] = self.placed.get(key, 0.0) + count * self.shares[kind]

    def balanced(
        self,
        sites: Sites,
        gpus: Mapping[str, Gpu],
        running: Mapping[str, Mapping[Placement, Row]],
        wanted: Mapping[SegmentKind, int],
    ) -> Quotas:
        """Return quotas for given layouts: what runs stays, as long as a loss may take it."""
        room = {
            uuid: Counter((place.profile, clock_mhz) for place in layout)
            for uuid, (layout, clock_mhz) in sites.items()
        }
        quotas: dict[str, Counter[SegmentKind]] = {}
        for model in self.models.values():
            own = {kind: n for kind, n in wanted.items() if kind.model == model.name}
            for kept in (_staying(sites, running, own), {}):
                found = self._balanced(
                    model, own, kept, {u: +each for u, each in room.items()}, gpus
                )
                if self._is_apart(model, found, gpus):
                    break
            for uuid, counts in found.items():
                quotas.setdefault(uuid, Counter()).update(counts)
                for kind, n in counts.items():
                    room[uuid][kind.profile, kind.clock_mhz] -= n
        return quotas

    def _balanced(
        self,
        model: Model,
        wanted: Mapping[SegmentKind, int],
        kept: Quotas,
        room: Mapping[str, Counter[tuple[str, int]]],
        gpus: Mapping[str, Gpu],
    ) -> Quotas:
        """Return quotas of one model: what is kept, and the rest where least of it is."""
        found: dict[str, Counter[SegmentKind]] = {uuid: +each for uuid, each in kept.items()}
        held: Counter[str] = Counter()
        for uuid, kind, n in _each(kept):
            room[uuid][kind.profile, kind.clock_mhz] -= n
            held[_domain(model, gpus[uuid])] += n * self.shares[kind]  # type: ignore[assignment]
        for kind in sorted(wanted, key=lambda kind: -self.shares[kind]):
            slot = kind.profile, kind.clock_mhz
            waiting = [
                (held[_domain(model, gpus[uuid])], at, uuid)
                for at, (uuid, free) in enumerate(room.items())
                if free[slot] > 0
            ]
            heapify(waiting)
            left = wanted[kind] - sum(each[kind] for each in kept.values())
            while left > 0 and waiting:
                load, at, uuid = heappop(waiting)
                domain = _domain(model, gpus[uuid])
                if load < held[domain]:
                    heappush(waiting, (held[domain], at, uuid))
                    continue
                found.setdefault(uuid, Counter())[kind] += 1
                held[domain] += self.shares[kind]  # type: ignore[assignment]
                room[uuid][slot] -= 1
                left -= 1
                if room[uuid][slot] > 0:
                    heappush(waiting, (held[domain], at, uuid))
        return found

    def _is_apart(self, model: Model, found: Quotas, gpus: Mapping[str, Gpu]) -> bool:
        held: dict[str, float] = {}
        for uuid, kind, n in _each(found):
            domain = _domain(model, gpus[uuid])
            held[domain] = held.get(domain, 0.0) + n * self.shares[kind]
        here = self._placed_on(model.name)
        return len(here | held.keys()) >= self._wanted[model.name] and all(
            load <= self.allowed(model, domain) for domain, load in held.items()
        )


def _domain(model: Model, gpu: Gpu) -> str:
    return domain_of(model, gpu.uuid, gpu.node)


def _each(quotas: Quotas) -> Iterator[tuple[str, SegmentKind, int]]:
    for uuid, counts in quotas.items():
        for kind, n in counts.items():
            yield uuid, kind, n


def _staying(
    sites: Sites,
    running: Mapping[str, Mapping[Placement, Row]],
    wanted: Mapping[SegmentKind, int],
) -> Quotas:
    """Return the running segments that the new layouts and counts allow to stay."""
    rows = {(row(kind), kind.clock_mhz): kind for kind in wanted}
    left, found = Counter(wanted), dict[str, Counter[SegmentKind]]()
    for uuid, (layout, clock_mhz) in sites.items():
        for placement, what in running.get(uuid, {}).items():
            kind = rows.get((what, clock_mhz))
            if kind is not None and left[kind] > 0 and placement in layout:
                found.setdefault(uuid, Counter())[kind] += 1
                left[kind] -= 1
    return found
