"""Plans meet NVML: every rollout of the planner is carried out on a simulated node."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import CreateSlice, DestroySlice
from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.config import Objective
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import Gpu, GpuType, Model, Pool, Problem, Segment, Variant
from services.planner.core.placement.placement import place
from services.planner.core.placement.rollout import plan_rollout
from services.planner.core.problem import catalog
from services.planner.core.strategies import REGISTRY
from tests.support.examples import examples

_BATCH_SIZES = (1, 4, 16)

fleets = st.lists(
    st.sampled_from(["a100-40gb", "a100-80gb", "h100-80gb", "a30"]), min_size=1, max_size=3
)
demands = st.lists(st.floats(1, 3000), min_size=1, max_size=3)
strategies = st.sampled_from(sorted(REGISTRY))


@contextmanager
def node(types: list[str]) -> Iterator[NvmlGpus]:
    """A simulated node whose GPUs have MIG enabled, in memory."""
    library = FakeNvml("n", types, state_dir=None, activity=lambda _: NoActivity())
    restore = install(library)
    try:
        with NvmlGpus(simulated=True) as gpus:
            for uuid in library.gpu_uuids:
                gpus.set_mig_mode(uuid, enabled=True)
            yield gpus
    finally:
        restore()


def inventory(gpus: NvmlGpus) -> tuple[Gpu, ...]:
    """Return the report of an agent, with everything read back from NVML."""
    return tuple(
        Gpu(
            uuid=each.uuid,
            node="n",
            pool=Pool(
                GpuType(
                    each.model.name,
                    each.model.geometry,
                    each.model.sm_count,
                    each.model.idle_power_w,
                    each.model.context_power_w,
                    each.model.max_power_w,
                    performance=each.model.performance,
                ),
                "zone",
                1.0,
                200.0,
            ),
            slices=tuple(placement for placement, _ in each.slices),
        )
        for each in gpus.list()
    )


def model(demand_rps: float) -> Model:
    """Two variants, a small one and a large one."""
    variants = tuple(
        Variant(f"v{gmacs:g}", accuracy, AnalyticProfile(gmacs))
        for gmacs, accuracy in ((2.0, 0.80), (38.0, 0.85))
    )
    return Model("m", 0.3, 95.0, demand_rps, variants)


@examples(0.5)
@given(fleets, demands, strategies, st.floats(0, 1))
def test_nvml_accepts_every_step_of_every_plan(
    types: list[str], loads: list[float], strategy: str, carbon_weight: float
) -> None:
    """From plan to plan, nothing is refused, and the slices read back are the plan's."""
    objective, ids = Objective(carbon_weight=carbon_weight), count()
    running: tuple[Segment, ...] = ()
    with node(types) as gpus:
        for demand_rps in loads:
            fleet, served = inventory(gpus), (model(demand_rps),)
            pools = tuple(dict.fromkeys(gpu.pool for gpu in fleet))
            kinds = catalog.build(served, pools, objective, _BATCH_SIZES, 2)
            problem = Problem(fleet, served, kinds, objective, running, batch_sizes=_BATCH_SIZES)
            target = place(problem, REGISTRY[strategy](problem), lambda: f"s{next(ids)}")
            rollout = plan_rollout(fleet, running, target, served)
            for stage in rollout.stages:
                for action in (one for step in stage.actions for one in step):
                    if isinstance(action, DestroySlice):
                        gpus.destroy_slice(action.gpu_uuid, action.placement)
                    elif isinstance(action, CreateSlice):
                        gpus.create_slice(action.gpu_uuid, action.placement)
            running = target
            there = {(gpu.uuid, placement) for gpu in inventory(gpus) for placement in gpu.slices}
            assert {(each.gpu_uuid, each.placement) for each in target} <= there
