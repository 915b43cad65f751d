"""The paper's setting: ten A100-40GB, one application, 48 hours of carbon intensity."""

import csv
import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from benchmarks import _fleets as fleets
from benchmarks.clover import applications
from benchmarks.clover.applications import CLOVER
from benchmarks.clover.calibration import calibrated
from services.kit.config import Objective
from services.planner.core.model import Gpu, GpuType, Model, Pool, Problem, Segment
from services.planner.core.problem import catalog
from services.planner.core.problem.catalog import Place
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY

TRACES = {
    "CISO March": "carbon_intensity.csv",
    "CISO September": "carbon_intensity_ciso_sep.csv",
    "ESO March": "carbon_intensity_eso_march.csv",
}
HOURS = 48
GPUS = 10
PUE = 1.5
ZONE = "zone"
BASE_LOAD = 0.9
"""Demand over what BASE may serve: no resource starvation and no idle GPUs (section 5.1)."""

WIDE_S = 1e3
"""An SLO that nothing misses."""

LATER = 1.001
"""The SLO over what the latency rule needs, so that rounding does not decide."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Application, fleet and objective of a case.

    Attributes:
        application: Key of `applications.TITLES`.
        trace: Key of TRACES.
        carbon_weight: CLOVER's lambda.
        accuracy_floor: Share of the best variant's accuracy to keep.
        park: GPUs without work are switched off.
        gpus: Number of GPUs.
        load: Demand over the usual one.
        slack: The SLO over the usual one.
        blind: The catalog holds also what breaks the SLA, as for a searcher without profiles.
        base_p95: The SLO is BASE's own p95, as the paper sets it (section 5.1). Else it is what
            lets BASE just keep the latency rule: 2.002 x its service time.
    """

    application: str
    trace: str = "CISO March"
    carbon_weight: float = 0.5
    accuracy_floor: float = 0.0
    park: bool = False
    gpus: int = GPUS
    load: float = 1.0
    slack: float = 1.0
    blind: bool = False
    base_p95: bool = False

    @property
    def objective(self) -> Objective:
        """Return the objective of the plans."""
        return Objective(
            carbon_weight=self.carbon_weight,
            accuracy_floor=self.accuracy_floor,
            baseline_intensity_gco2e_per_kwh=fmean(intensities(self.trace)),
            park_idle_gpus=self.park,
            # BASE's p95 leaves no share of the SLO to waiting.
            **({"latency_share": 1.0} if self.base_p95 else {}),
        )

    @property
    def model(self) -> Model:
        """The application with its load and its SLO."""
        fits, _ = calibrated()
        fit, objective = fits[self.application], self.objective
        probe = applications.model(self.application, fit, demand_rps=1.0, slo_s=math.inf)
        pool = self.pool(1.0)
        place = Place(probe, probe.best, pool, catalog.whole(pool))
        base = next(iter(catalog.measure(place, (1,), 1)))
        usable_rps = objective.max_utilisation * base.throughput_rps * GPUS
        slo_s = base.latency_s / objective.latency_share
        if self.base_p95:
            usual = replace(probe, demand_rps=BASE_LOAD * usable_rps, slo_latency_s=WIDE_S)
            gpus = fleets.fleet([(pool, GPUS)])
            posed = Problem(gpus, (usual,), (), objective, batch_sizes=(1,))
            slo_s = score(posed, REGISTRY["base"](posed)).latency_s[usual.name]
        return replace(
            probe,
            demand_rps=self.load * BASE_LOAD * usable_rps,
            slo_latency_s=self.slack * LATER * slo_s,
        )

    def pool(self, intensity_gco2e_per_kwh: float) -> Pool:
        """Return the GPUs' pool at a carbon intensity."""
        return Pool(gpu_type(), ZONE, PUE, intensity_gco2e_per_kwh)

    def fleet(self, intensity_gco2e_per_kwh: float) -> tuple[Gpu, ...]:
        """Return the GPUs, without slices."""
        return fleets.fleet([(self.pool(intensity_gco2e_per_kwh), self.gpus)])

    def problem(
        self, gpus: tuple[Gpu, ...], running: tuple[Segment, ...] = (), seed: int = 0
    ) -> Problem:
        """Return the problem: one process and one request per slice, as in the paper."""
        model, objective = self.model, self.objective
        rule = objective.model_copy(update={"latency_share": 1.0}) if self.blind else objective
        late = replace(model, slo_latency_s=math.inf) if self.blind else model
        return Problem(
            gpus=gpus,
            models=(model,),
            catalog=catalog.build([late], dict.fromkeys(g.pool for g in gpus), rule, (1,), 1),
            objective=objective,
            running=running,
            seed=seed,
            batch_sizes=(1,),
        )


@cache
def gpu_type() -> GpuType:
    """Return the A100-40GB with the idle power that the artifact's measurements show."""
    _, idle_w = calibrated()
    return replace(fleets.gpu_type("a100-40gb"), idle_power_w=idle_w)


@cache
def intensities(trace: str) -> tuple[float, ...]:
    """Return the hourly carbon intensity of a trace, gCO2e/kWh; without data a daily cosine."""
    file = CLOVER / "carbon_intensity" / TRACES[trace]
    if not file.is_file():
        phase = 6 * list(TRACES).index(trace)
        return tuple(
            180 + 110 * math.cos(2 * math.pi * (hour - phase) / 24) for hour in range(HOURS)
        )
    with file.open() as lines:
        values = [float(next(iter(row.values()))) for row in csv.DictReader(lines)]
    return tuple(values[:HOURS])
