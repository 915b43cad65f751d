"""What every test may use: a small deployment, and a loop that nothing may hold."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from services.kit.config import Deployment
from services.kit.config.loader import ENV_FILE, ENV_PREFIX, load

# Test processes share the cores: with algebra threads of their own each would mostly wait for the
# others (training the demo's models took 20 times the processor time). Numpy comes after this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Compiled once, by whoever comes first: else each worker rewrites 5000 asserts, and each service
# that a test starts compiles itself, on machines that ask Python to keep no bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Thousands of modules and tests stay until the end: to look for cycles among them took half of the
# time that collecting tests takes, and a sixth of that of running them.
gc.disable()

# A busy machine must not fail a property for being slow; pytest's timeout bounds all. A failure
# prints what reproduces it, so that no database on disk has to.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("cinquefoil", max_examples=25, **_COMMON)
settings.load_profile("cinquefoil")
# pytest --hypothesis-profile=thorough --timeout=3600 PATH: thousands of cases of each property.
settings.register_profile("thorough", max_examples=3000, **_COMMON)

Deploy = Callable[[Mapping[str, Any]], Deployment]

MINIMAL: Mapping[str, Any] = {
    "version": "v1",
    "carbon": {
        "listen": "127.0.0.1:0",
        "zones": {"US-CAL": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200.0}}},
    },
    "nodes": {"node-0": {"listen": "127.0.0.1:0", "zone": "US-CAL", "simulated": ["a100-40gb"]}},
    "models": {
        "digits": {
            "slo": {"latency_s": 0.2},
            "demand_rps": 10,
            "variants": {
                "small": {
                    "file": "small.onnx",
                    "accuracy": 0.9,
                    "profile": {"kind": "analytic", "gmacs_per_item": 0.4},
                }
            },
        }
    },
    "planner": {"listen": "127.0.0.1:0"},
    "router": {"listen": "127.0.0.1:0"},
}


@pytest.fixture(scope="session")
def digits_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's models, trained once for all processes of the run."""
    from services.local.demo import model_family  # noqa: PLC0415 - takes seconds, and few tests need it

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits-models"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model_family.train(folder, lambda _: None)
    return folder


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Return a function that writes a minimal cinquefoil.yaml, changed as told, and loads it.

    Mappings are merged key by key; anything else replaces what is there.
    """
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX) or name == ENV_FILE]:
        monkeypatch.delenv(name)

    def deploy(changes: Mapping[str, Any]) -> Deployment:
        path = tmp_path / "cinquefoil.yaml"
        path.write_text(yaml.safe_dump(_merged(MINIMAL, changes)))
        return load(path)

    return deploy


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


# ---- long ones first ---------------------------------------------------------------------------

_TURNS = {"system": 0, "gpu": 1, "rpc": 2, "integration": 3}  # then all others


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the modules to the workers like cards, those of the slow folders first.

    `--dist worksteal` starts each worker with one of as many blocks of equal length, and a worker
    that is done takes from the end of another's. So none comes upon a suite of processes in the
    last minute, and the tests of one module, which share fixtures, stay with one worker.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    hands: list[list[pytest.Item]] = [[] for _ in range(workers)]
    tests = Path(__file__).parent
    turns = {
        item.path: _TURNS.get(item.path.relative_to(tests).parts[0], len(_TURNS)) for item in items
    }
    for path, module in groupby(sorted(items, key=lambda item: turns[item.path]), _path):
        # Suites of processes keep two cores busy by twos.
        takers = hands[:2] if turns[path] == _TURNS["system"] else hands
        min(takers, key=len).extend(module)
    items[:] = [item for hand in hands for item in hand]


def pytest_collection_finish() -> None:
    """Look for cycles again, but only among what tests make."""
    gc.freeze()
    gc.enable()


def _path(item: pytest.Item) -> Path:
    return item.path


# ---- nothing may hold the loop -----------------------------------------------------------------

_HELD_S = 5.0
_run_handle = asyncio.Handle._run


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that turns the detector off."""
    config.addinivalue_line("markers", "may_block: this test may hold its event loop")


@pytest.fixture(autouse=True)
def _loop_is_never_held(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test in which one callback computed or waited for seconds.

    Time in which the machine ran something else does not count: the thread was neither on a
    processor nor did it give one up. Only a wait for the interpreter's lock looks like one of its
    own, so that the limit is far above what a busy machine makes of that.
    """
    held: list[str] = []

    def run(handle: asyncio.Handle) -> None:
        started_s, cpu_s, waits = time.perf_counter(), time.thread_time(), _waits()
        _run_handle(handle)
        if time.perf_counter() - started_s > _HELD_S and (
            time.thread_time() - cpu_s > _HELD_S or _waits() > waits
        ):
            held.append(repr(_owner(handle)))

    if request.node.get_closest_marker("may_block") is None:
        monkeypatch.setattr(asyncio.Handle, "_run", run)
    yield
    if held:
        pytest.fail(f"held the event loop for more than {_HELD_S} s: {'; '.join(held)}")


def _owner(handle: Any) -> object:
    """Return the task that a callback steps, or else the callback."""
    return getattr(handle._callback, "__self__", handle)


def _waits() -> int:
    """Return how often this thread gave up its processor to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
