"""Queries that are refused later, or now and then: a GPU is as it was last read."""

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.nvml.queries import NOTED_S
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import ServiceError
from tests.rpc.gpuagent.test_odd_boards import CODES, QUERIES, QUIET
from tests.support.gpuagent.fake_node import Time
from tests.support.gpuagent.nvml_faults import FaultyNvml, InjectedFault

SLICE = Placement("3g.20gb", 0)
NOT_LOST = tuple(code for code in CODES if code != Code.GPU_IS_LOST)


def _cut(library: FaultyNvml, clock: Time) -> NvmlGpus:
    """A port whose first GPU is in MIG mode and has a slice."""
    port = NvmlGpus(simulated=True, monotonic=clock).__enter__()
    port.set_mig_mode(library.gpu_uuids[0], enabled=True)
    port.create_slice(library.gpu_uuids[0], SLICE)
    return port


@pytest.mark.parametrize("symbol", QUERIES)
@pytest.mark.parametrize("code", NOT_LOST, ids=lambda code: code.name)
def test_a_query_that_is_refused_later_leaves_what_was_read(
    symbol: str, code: Code, library: FaultyNvml, clock: Time
) -> None:
    """On either GPU; figures of now are missing meanwhile, and all is as before afterwards."""
    port = _cut(library, clock)
    before, uuids = port.list(), library.gpu_uuids
    for bad in uuids[:2]:
        library.inject(InjectedFault(code, frozenset({symbol}), gpu_uuid=bad, times=None))
        library.called.clear()
        during = port.list()
        assert [gpu.uuid for gpu in during] == [gpu.uuid for gpu in before]
        assert [gpu.model for gpu in during] == [gpu.model for gpu in before]
        assert [gpu.slices for gpu in during] == [gpu.slices for gpu in before]
        assert port.present() == {*uuids}
        for gpu in (each for each in uuids if each != bad):
            assert port.meter(gpu).energy_j >= 0
        named = {*port.refused()} - {f"GPU {uuids.index(bad)}"}
        assert named <= {bad}
        library.clear_faults()
        clock.now_s += NOTED_S + 1
        assert port.list() == before
        assert not port.refused()


def test_queries_that_are_refused_now_and_then_change_nothing_and_end_nothing(
    library: FaultyNvml, clock: Time
) -> None:
    """A third of all queries about one GPU fails: the others never show it."""
    port = _cut(library, clock)
    before, bad = port.list(), library.gpu_uuids[0]
    for code in NOT_LOST:
        fault = InjectedFault(code, frozenset(QUERIES) - QUIET, bad, times=None, rate=1 / 3)
        library.inject(fault, seed=int(code))
        for _ in range(30):
            clock.now_s += 1
            during = port.list()
            assert during[1:] == before[1:]
            assert (during[0].uuid, during[0].slices) == (bad, before[0].slices)
            assert port.present() == {*library.gpu_uuids}
        library.clear_faults()
        assert port.list() == before


def test_a_gpu_that_answers_only_after_the_start_waits_for_the_next_one(
    library: FaultyNvml, clock: Time
) -> None:
    """An agent has accounts and ledgers of the GPUs that it found: another is named, not used."""
    late = library.gpu_uuids[1]
    fault = InjectedFault(Code.UNKNOWN, frozenset({"nvmlDeviceGetUUID"}), late, times=None)
    library.inject(fault)
    with NvmlGpus(simulated=True, monotonic=clock) as port:
        port.keep([gpu.uuid for gpu in port.list()])
        assert port.refused() == {"GPU 1": {"nvmlDeviceGetUUID": "Unknown Error"}}
        library.clear_faults()
        assert late not in {gpu.uuid for gpu in port.list()} | port.present()
        assert "restart" in str(port.refused()[late])


def test_a_message_names_the_query(library: FaultyNvml, clock: Time) -> None:
    port = _cut(library, clock)
    uuid, symbol = library.gpu_uuids[0], "nvmlDeviceGetGpuInstances"
    library.inject(InjectedFault(Code.UNKNOWN, frozenset({symbol}), uuid, times=None))

    with pytest.raises(ServiceError, match=f"cannot read {uuid}: {symbol}: Unknown Error"):
        port.get(uuid)
    assert pynvml.nvmlDeviceGetCount() == 3
