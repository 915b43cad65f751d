"""The plan in shadow of one day: what the planner would have done with the load that came.

The records of a day become a scenario: its rates and intensities by five minutes, its GPUs, the
profiles that its servers showed, objectives a fifth above what was seen. The planner's own cycle
runs it in virtual time, and knows at each moment what it would have known then. BASE stands for
what ran, and is compared with the meters: where they differ, no saving is reported.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from services.carbon.core.model import MAX_GCO2E_PER_KWH
from services.cli.observe.learned import Served, learnt, together
from services.cli.observe.scenario import ROOM, model_name
from services.gpuagent.observation.core.record import (
    STEP_S,
    GpuRecord,
    Record,
    ServerRecord,
    stretches,
)
from services.kit.config.loader import ConfigError
from services.kit.errors import ServiceError
from services.kit.hardware import gpu_types
from services.kit.units import J_PER_KWH
from services.simulator.loader import read
from services.simulator.report.report import run

MIN_S: Final = 3600.0
"""Shortest stretch that is planned for, s."""

FITS: Final = (0.67, 1.5)
"""BASE's energy over the meters', within which savings are reported."""

ASSUMED_GCO2E_PER_KWH: Final = 250.0
"""Intensity that plans assume where none was recorded; carbon is not reported then."""

_COARSE: Final = 3600 // STEP_S
"""Records of which intensities are the mean: each change is a decision, and a grid's is hourly."""

_SAMPLING: Final = {
    "window_s": 10.0,
    "period_s": 3600.0,
    "settle_s": 5.0,
    "least_requests": 30,
    "load_change": 0.5,
}
"""Requests that are simulated one by one: a day in well under a minute of processor time."""

_REPORT_S: Final = 10.0
"""Time between two reports of the load to the planner, s: of all, they take most of the time."""

_CLOCKS: Final = [1.0, 0.9, 0.8, 0.7, 0.6]
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Shadow:
    """One day, in shadow.

    Attributes:
        day: The day (UTC), ISO 8601.
        observed_s: Time of its stretch, s.
        metered_j, metered_gco2e: Of the GPUs that its servers hold; None: not known.
        base_j: Energy of what ran, by the model, J.
        planned_j: Energy of the plans, by the model, J.
        carbon_ratio: Emissions of the plans over those of what ran, by the model.
        plans: Number of plans.
        missed: Models whose objective the plans would have missed.
        models: Planned for.
        profiles: Learnt steps, in words, by model.
        reasons: What is not planned for, and why.
    """

    day: str
    observed_s: float = 0.0
    metered_j: float = 0.0
    metered_gco2e: float | None = None
    base_j: float | None = None
    planned_j: float | None = None
    carbon_ratio: float | None = None
    plans: int = 0
    missed: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    profiles: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def fit(self) -> float | None:
        """BASE's energy over the meters'; None: not known."""
        return self.base_j / self.metered_j if self.base_j and self.metered_j > 0 else None

    @property
    def saved_share(self) -> float | None:
        """Share of the energy that plans would have saved; None: not known."""
        if self.fit is None or not FITS[0] <= self.fit <= FITS[1] or not self.base_j:
            return None
        return None if self.planned_j is None else 1 - self.planned_j / self.base_j

    @property
    def saved_j(self) -> float | None:
        """That energy, of what was metered, J."""
        return None if self.saved_share is None else self.saved_share * self.metered_j

    @property
    def saved_gco2e(self) -> float | None:
        """The same of emissions, gCO2e."""
        if self.saved_share is None or self.metered_gco2e is None or self.carbon_ratio is None:
            return None
        return (1 - self.carbon_ratio) * self.metered_gco2e

    def document(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        found = asdict(self)
        names = ("fit", "saved_share", "saved_j", "saved_gco2e")
        return found | {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Shadow | None:
        """Return the result of a document; None: it has another form."""
        given = {name: document[name] for name in cls.__slots__ if name in document}
        for name in ("missed", "models", "reasons"):
            given[name] = tuple(given.get(name, ()))
        try:
            found = cls(**given)
            found.document()
        except (TypeError, ZeroDivisionError):
            return None
        return found


def shadow(day: date, records: Sequence[Record], intensity: float | None = None) -> Shadow:
    """Return what plans would have done on a day. Blocks for as long as a simulation takes.

    Args:
        day: The day.
        records: Its records, in order.
        intensity: Carbon intensity where none was recorded, gCO2e/kWh.
    """
    found = max(stretches(records), key=len, default=())
    if len(found) * STEP_S < MIN_S:
        reason = f"less than {MIN_S / 60:.0f} minutes at a stretch were recorded"
        return Shadow(day.isoformat(), len(found) * STEP_S, reasons=(reason,))
    known, reasons = _served(found)
    if not known:
        return Shadow(day.isoformat(), len(found) * STEP_S, reasons=tuple(reasons))
    planned = _Day(found, known, intensity)
    result = Shadow(
        day.isoformat(),
        observed_s=len(found) * STEP_S,
        metered_j=planned.metered_j,
        metered_gco2e=planned.metered_gco2e,
        models=tuple(sorted({each.total.model or each.total.server for each in known})),
        profiles={_label(each): _words(each) for each in known},
        reasons=tuple(reasons),
    )
    try:
        return planned.simulated(result)
    except (ServiceError, ConfigError) as error:
        return _with(result, reasons=(*reasons, f"no plan: {error}"))


def _with(result: Shadow, **changes: Any) -> Shadow:
    given = {name: getattr(result, name) for name in Shadow.__slots__}
    return Shadow(**(given | changes))


def _served(records: Sequence[Record]) -> tuple[list[Served], list[str]]:
    """Return the models that can be planned for, by model and GPU type, and why others cannot."""
    types = {gpu.uuid: gpu for record in records for gpu in record.gpus}
    by_place: dict[tuple[str, str, str], list[ServerRecord]] = {}
    reasons: dict[str, str] = {}
    for server in (server for record in records for server in record.servers):
        gpus = [types[uuid] for uuid in server.gpus if uuid in types]
        if why := _unplannable(gpus):
            name = server.model or server.server
            reasons.setdefault(name, f"{name}: {why}")
        else:
            place = server.server, server.model, gpus[0].type
            by_place.setdefault(place, []).append(server)
    kept: dict[str, Served] = {}
    found = [learnt(together(group), gpu) for (_, _, gpu), group in by_place.items()]
    for each in sorted(found, key=lambda one: -(one.total.requests or 0.0)):
        name = _label(each)
        if each.reason:
            reasons[name] = f"{name}: {each.reason}"
        elif kept.setdefault(name, each) is not each:
            reasons[each.gpu] = f"{name} on {each.gpu}: planned for on one type of GPU only"
    return list(kept.values()), sorted(reasons.values())


def _unplannable(gpus: Sequence[GpuRecord]) -> str:
    """Return why servers on these GPUs cannot be planned for; "": they can."""
    if len(gpus) != 1:
        return "it runs on several GPUs" if gpus else "its GPU is not known"
    if gpus[0].divided:
        return "its GPU is in MIG mode"
    if gpus[0].type not in gpu_types.names("nvidia"):
        return f"nothing is known of its GPU, {gpus[0].type}"
    return ""


def _label(each: Served) -> str:
    return each.total.model or each.total.server


def _words(each: Served) -> str:
    if each.step is None or each.energy is None:
        return each.reason
    unit = "answer" if each.has_tokens else "item"
    prompts = f" + {1e3 * each.step.prompt_token:.3g} ms a prompt's token" * each.has_tokens
    return (
        f"{each.gpu}: {1e3 * each.step.fixed:.3g} ms + {1e3 * each.step.item:.3g} ms each {unit}"
        f"{prompts}, within {each.step.error:.0%}; {each.step_j(each.mean_items):.3g} J a step at "
        f"{each.mean_items:.1f}, within {each.energy.error:.0%}"
    )


class _Day:
    """A stretch of records as a scenario.

    Args:
        records: The stretch.
        known: Models that are planned for.
        intensity: In place of one that was not recorded, gCO2e/kWh.
    """

    def __init__(
        self, records: Sequence[Record], known: Sequence[Served], intensity: float | None
    ) -> None:
        self._records, self._known, self._intensity = records, known, intensity
        keys = {(each.total.server, each.total.model, each.gpu) for each in known}
        types = {gpu.uuid: gpu.type for record in records for gpu in record.gpus}
        self._gpus = {
            uuid: types[uuid]
            for record in records
            for server in record.servers
            for uuid in server.gpus
            if (server.server, server.model, types.get(uuid)) in keys
        }
        own = [gpu for record in records for gpu in record.gpus if gpu.uuid in self._gpus]
        self.metered_j = sum(gpu.energy_j for gpu in own)
        recorded_j = sum(gpu.known_j for gpu in own)
        self.metered_gco2e: float | None = None
        if recorded_j >= 0.99 * self.metered_j > 0:
            self.metered_gco2e = sum(gpu.carbon_gco2e for gpu in own)
        elif intensity is not None:
            self.metered_gco2e = self.metered_j / J_PER_KWH * intensity

    def simulated(self, result: Shadow) -> Shadow:
        """Return the result with the figures of what ran, and of plans."""
        with tempfile.TemporaryDirectory(prefix="cinquefoil-") as name:
            folder = Path(name)
            path = folder / "scenario.yaml"
            path.write_text(yaml.safe_dump(self._scenario(folder)), encoding="utf-8")
            setting = read(path)
            report = run("shadow", setting, setting.scenario.policies, lambda _, __: None)
        base, plan = (report.results[policy].figures for policy in ("base", "exact"))
        missed = tuple(sorted(name for name, each in plan.models.items() if not each.met))
        return _with(
            result,
            base_j=base.energy_j,
            planned_j=plan.energy_j,
            carbon_ratio=plan.carbon_gco2e / base.carbon_gco2e if base.carbon_gco2e else None,
            plans=plan.plans,
            missed=missed,
        )

    def _scenario(self, folder: Path) -> dict[str, Any]:
        start = datetime.fromtimestamp(self._records[0].start_s, UTC)
        _write(folder / "carbon.csv", self._intensities())
        models, loads = {}, {}
        for each in self._known:
            name = model_name(_label(each))
            _write(folder / f"{name}.csv", self._rates(each))
            loads[name] = {"kind": "trace", "path": f"{name}.csv", "step_s": STEP_S}
            models[name] = self._model(each, folder)
        largest = max(each.peak_items for each in self._known)
        return {
            "version": "v1",
            "duration_s": float(len(self._records) * STEP_S),
            "start": start.isoformat(),
            "deployment": {
                "version": "v1",
                "carbon": {"zones": {"here": {"source": {"kind": "trace", "path": "carbon.csv"}}}},
                "nodes": {
                    "here": {
                        "zone": "here",
                        "simulated": sorted(self._gpus.values()),
                        "allow_mig_mode": False,
                    }
                },
                "models": models,
                "planner": {
                    "clock_ratios": _CLOCKS,
                    "batch_sizes": [size for size in _BATCHES if size <= max(largest, 1)],
                    "max_processes": 1,
                },
                "router": {"report_interval_s": _REPORT_S},
            },
            "load": loads,
            "sampling": _SAMPLING,
            "policies": ["base", "exact"],
        }

    def _intensities(self) -> Iterator[tuple[Any, ...]]:
        """Yield mean intensities; one that is not known is as before."""
        yield "timestamp", "carbon_intensity_gco2e_per_kwh"
        value = ASSUMED_GCO2E_PER_KWH if self._intensity is None else self._intensity
        for first in range(0, len(self._records), _COARSE):
            gpus = [gpu for each in self._records[first : first + _COARSE] for gpu in each.gpus]
            known_j = sum(gpu.known_j for gpu in gpus)
            if known_j > 0:
                carbon_gco2e = sum(gpu.carbon_gco2e for gpu in gpus)
                value = min(carbon_gco2e / known_j * J_PER_KWH, MAX_GCO2E_PER_KWH)
            yield datetime.fromtimestamp(self._records[first].start_s, UTC).isoformat(), value

    def _rates(self, each: Served) -> Iterator[tuple[Any, ...]]:
        yield ("rps",)
        for record in self._records:
            amounts = (
                server.requests if server.items is None else server.items
                for server in record.servers
                if (server.server, server.model) == (each.total.server, each.total.model)
            )
            yield (sum(filter(None, amounts)) / STEP_S,)

    def _model(self, each: Served, folder: Path) -> dict[str, Any]:
        total = each.total
        requests = (total.requests if total.items is None else total.items) or 0.0
        if each.has_tokens:
            profile = each.profile()
            runtime = {"kind": "openai", "address": "127.0.0.1:8000", "model_name": _label(each)}
        else:
            path = folder / f"{model_name(_label(each))}-profile.csv"
            _write(path, each.table())
            profile = {"kind": "table", "path": str(path), "gpu": each.gpu, "gmacs_per_item": 1.0}
            runtime = {"kind": "external", "address": "127.0.0.1:8001"}
        variant = {"accuracy": 1.0, "load_s": 30.0, "profile": profile, "runtime": runtime}
        demand_rps = max(requests / (len(self._records) * STEP_S), 1e-3)
        return {
            "slo": dict(self._objectives(each)),
            "demand_rps": demand_rps,
            "variants": {"observed": variant | {"max_batch": each.peak_items}},
        }

    @staticmethod
    def _objectives(each: Served) -> Iterator[tuple[str, float]]:
        """Yield what was seen with a fifth of room; by the profile where it was not.

        A whole answer may take twice as long as one that never waits: its tokens say how fast it
        must be, and plans keep half of the objective for waiting.
        """
        seen = {name: times.quantile(0.95) for name, times in each.total.times.items()}
        items = max(each.total.peak_running, each.mean_items, 1.0)
        steps = (each.total.answer_tokens or 1.0) / (each.total.requests or 1.0)
        whole_s = max(steps, 1.0) * each.step_s(items)
        yield "latency_s", ROOM * max(seen.get("latency") or 0.0, 2 * whole_s)
        if each.has_tokens:
            yield "tpot_s", ROOM * (seen.get("token") or each.step_s(items))
            if first_s := seen.get("first_token"):
                yield "ttft_s", ROOM * first_s


def _write(path: Path, rows: Iterable[tuple[Any, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
