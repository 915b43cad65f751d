"""`cinquefoil doctor` in prepared environments: each trouble has one line that names it."""

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.cli.doctor import environment, machine
from services.cli.doctor.finding import Verdict
from services.cli.doctor.run import doctor
from services.gpuagent.devices.fake_nvml.library import install
from services.kit import cgroup
from services.kit.units import BYTES_PER_MIB
from tests.integration.cli.test_doctor import example
from tests.support.cgroups import UNLIMITED_V1, V1, kernel
from tests.support.gpuagent.nvml_faults import FaultyNvml
from tests.support.gpuagent.odd_boards import FLEET, OddBoard, make_odd


@dataclass
class Place:
    """A machine in a test's hands: healthy until the test prepares it."""

    folder: Path
    patch: pytest.MonkeyPatch
    stack: ExitStack

    def kernel(self, groups: str, files: dict[str, str]) -> None:
        """Give the process control groups."""
        root, read = kernel(self.folder / "kernel", groups, files), cgroup.limits
        self.patch.setattr(cgroup, "limits", lambda _=None: read(root))

    def shared_memory(self, size_mib: int) -> None:
        """Give /dev/shm a size."""
        usage, whole = shutil.disk_usage, shutil.disk_usage("/")
        size = whole._replace(total=size_mib * BYTES_PER_MIB)
        fake = lambda path: size if Path(path) == Path("/dev/shm") else usage(path)  # noqa: E731, S108
        self.patch.setattr(shutil, "disk_usage", fake)

    def clock(self, status: int, error_us: int) -> None:
        """Give the kernel's clock a state."""
        self.patch.setattr(environment, "_kernel_clock", lambda: (status, error_us))

    def board(self, board: OddBoard) -> None:
        """Put a board into the machine, beside a healthy one."""
        library = FaultyNvml("node", (board.gpu_type, "t4"))
        make_odd(library, 0, board)
        self.stack.callback(install(library))

    def descriptors(self, hard: int) -> None:
        """Set the highest limit of open files."""
        self.patch.setattr(resource, "getrlimit", lambda _: (hard, hard))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in tuple(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "missing_provider", lambda _: "")
    with ExitStack() as stack:
        found = Place(tmp_path, monkeypatch, stack)
        found.clock(0, 1000)
        found.shared_memory(8192)
        found.descriptors(2**20)
        found.kernel("", {})
        shutil.rmtree(tmp_path / "kernel")
        yield found


def _proxies(place: Place) -> None:
    place.patch.setenv("http_proxy", "http://proxy:3128")
    place.patch.setenv("HTTPS_PROXY", "http://proxy:3128")


def _unwritable(place: Place) -> None:
    (place.folder / "state").write_text("no folder")


def _board(name: str) -> Callable[[Place], None]:
    return lambda place: place.board(next(each for each in FLEET if each.name.startswith(name)))


V2 = "0::/\n"
ENVIRONMENTS: tuple[tuple[str, Callable[[Place], Any], str, str], ...] = (
    ("proxies", _proxies, "proxies", "http_proxy, HTTPS_PROXY"),
    (
        "container of 1.5 cores, version 2",
        lambda place: place.kernel(V2, {"cpu.max": "150000 100000"}),
        "CPU quota",
        "1.5 cores by its control group, but node-0 offers 2",
    ),
    (
        "container of half a core, version 1",
        lambda place: place.kernel(V1, UNLIMITED_V1 | {"cpu/cpu.cfs_quota_us": "50000"}),
        "CPU quota",
        "0.5 cores",
    ),
    (
        "container of 512 MiB, version 2",
        lambda place: place.kernel(V2, {"memory.max": str(512 * BYTES_PER_MIB)}),
        "memory limit",
        "512 MiB by its control group",
    ),
    (
        "container of 512 MiB, version 1",
        lambda place: place.kernel(
            V1, UNLIMITED_V1 | {"memory/memory.limit_in_bytes": str(512 * BYTES_PER_MIB)}
        ),
        "memory limit",
        "512 MiB by its control group",
    ),
    ("few descriptors", lambda place: place.descriptors(1024), "descriptors", "1024 files"),
    ("docker's /dev/shm", lambda place: place.shared_memory(64), "shared memory", "64 MiB"),
    ("no time service", lambda place: place.clock(0x40, 16_000_000), "clock", "not synchronised"),
    ("a clock that drifts", lambda place: place.clock(0, 2_500_000), "clock", "2.5 s off"),
    ("a file where state is to be", _unwritable, "folders", "nodes.node-0.state_dir: "),
    ("a laptop's board", _board("laptop"), "GPU 0", "RTX 4070 Laptop GPU"),
    ("a board in error", _board("ERR!: "), "GPU queries", "nvmlDeviceGetPowerUsage: Unknown Error"),
)


def _found(place: Place, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    state = str(place.folder / "state")
    config = example(place.folder, simulated=None, cpu={"cores": 2}, state_dir=state, control=True)
    doctor(config, as_json=True)
    return list(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("prepare", "subject", "words"),
    [each[1:] for each in ENVIRONMENTS],
    ids=[each[0] for each in ENVIRONMENTS],
)
def test_a_trouble_of_the_environment_has_one_line_that_names_it_and_a_remedy(
    prepare: Callable[[Place], None],
    subject: str,
    words: str,
    place: Place,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(place)
    found = _found(place, capsys)

    troubles = [
        each
        for each in found
        if each["subject"] == subject and each["verdict"] != Verdict.FINE and words in each["found"]
    ]
    assert len(troubles) == 1
    assert troubles[0]["remedy"]


def test_a_healthy_environment_has_a_fine_line_for_each(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _found(place, capsys)
    subjects = {subject for *_, subject, _ in ENVIRONMENTS} - {"GPU 0", "GPU queries"}

    assert {
        each["subject"]: each["verdict"] for each in found if each["subject"] in subjects
    } == dict.fromkeys(subjects, Verdict.FINE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_of_another_user_is_named(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    (place.folder / "state").mkdir(mode=0o500)
    (line,) = (each for each in _found(place, capsys) if each["subject"] == "folders")

    assert "cannot write" in line["found"]
