import csv
import tomllib
from importlib import resources
from itertools import pairwise

import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.errors import NotFound
from services.kit.hardware import gpu_types
from services.kit.hardware.boards import table_of
from services.kit.hardware.gpu_types import GpuTable
from services.kit.mig import WHOLE
from tests.support.paths import PUBLISHED

TABLES = [gpu_types.load(name) for name in gpu_types.names()]
CLOCKS = PUBLISHED / "gpu_power/supported_clocks_v100_a100_h100.csv"

every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def test_the_gpu_types_of_the_papers_have_tables() -> None:
    wanted = {"a100-40gb", "a100-80gb", "h100-80gb", "a30", "v100", "t4", "p4"}

    assert wanted <= set(gpu_types.names())


def test_an_unknown_type_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(NotFound, match=r"'a1000'.*a100-40gb.*v100"):
        gpu_types.load("a1000")


@every_table
def test_a_table_is_named_after_its_file_and_found_by_every_product_name(table: GpuTable) -> None:
    for product_name in (table.product_name, *table.other_names):
        assert table_of(product_name) is table
    assert gpu_types.load(table.name) is table


def test_an_unknown_product_has_no_table() -> None:
    assert table_of("NVIDIA GeForce RTX 9090") is None


@every_table
def test_no_slice_reaches_beyond_the_gpu(table: GpuTable) -> None:
    for kind in table.geometry.kinds:
        assert kind.starts == tuple(sorted(set(kind.starts)))
        assert kind.starts[-1] + kind.memory_slices <= table.geometry.memory_slices
        assert kind.sm_count <= table.sm_count
        assert kind.memory_bytes <= table.memory_bytes


@every_table
def test_max_count_is_what_the_starts_allow(table: GpuTable) -> None:
    """The tables' counts and starts come from different prints; they must agree."""
    for kind in table.geometry.kinds:
        taken: list[Placement] = []
        for start in kind.starts:
            if all(start >= t.start + kind.memory_slices for t in taken):
                taken.append(Placement(kind.name, start))

        limited = 1 if "+me" in kind.name else len(taken)
        assert kind.max_count == limited


@every_table
def test_profiles_have_distinct_ids_and_enums(table: GpuTable) -> None:
    ids = {kind.gpu_instance_profile_id for kind in table.geometry.kinds}
    assert len(ids) == len(table.geometry.kinds)
    assert len(set(table.profile_enums.values())) == len(table.profile_enums)
    assert set(table.profile_enums) == {
        kind.name for kind in table.geometry.kinds if kind.name != WHOLE
    }


@every_table
def test_power_is_ordered(table: GpuTable) -> None:
    assert 0 < table.context_power_w < table.min_power_limit_w <= table.max_power_w


@every_table
def test_clocks_fall_strictly(table: GpuTable) -> None:
    assert all(higher > lower > 0 for higher, lower in pairwise(table.clocks_mhz))


@every_table
def test_facts_marked_as_assumed_are_facts_of_the_table(table: GpuTable) -> None:
    """A mark that names no key would say nothing."""
    file = resources.files("services.kit.hardware") / "types" / f"{table.name}.toml"
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    for key in table.assumed:
        found = data
        for part in key.split("."):
            found = found[0] if isinstance(found, list) else found
            assert part in found, key
            found = found[part]


@pytest.mark.skipif(not CLOCKS.exists(), reason="the shared clock lists are not on this machine")
@pytest.mark.parametrize(("name", "gpu"), [("v100", "V100"), ("a100-40gb", "A100")])
def test_clocks_are_those_that_a_driver_listed(name: str, gpu: str) -> None:
    with CLOCKS.open() as file:
        listed = {int(row["sm_clock_mhz"]) for row in csv.DictReader(file) if row["gpu"] == gpu}

    assert gpu_types.load(name).clocks_mhz == tuple(sorted(listed, reverse=True))


@every_table
def test_an_uncut_gpu_is_one_whole_slice(table: GpuTable) -> None:
    slices = max(kind.compute_slices for kind in table.geometry.kinds)
    (kind,) = gpu_types.whole_geometry(
        compute_slices=slices, sm_count=table.sm_count, memory_bytes=table.memory_bytes
    ).kinds

    assert (kind.name, kind.starts, kind.memory_slices) == (WHOLE, (0,), 1)
    assert (kind.sm_count, kind.memory_bytes) == (table.sm_count, table.memory_bytes)
    assert table.mig_capable == (WHOLE not in {k.name for k in table.geometry.kinds})
