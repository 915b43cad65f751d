"""Fixtures of every test: a small deployment, and a guard against a held event loop."""

import fcntl
import gc
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import structlog
import typer.main
import typer.testing
import yaml
from hypothesis import HealthCheck, Phase, settings

from services.kit import net
from services.kit.config import Deployment
from services.kit.config.loader import ENV_FILE, ENV_PREFIX, load
from tests.support import loop_guard, zygote
from tests.support.loop_guard import loop_is_never_held

__all__ = ["loop_is_never_held"]

# Test processes share the cores: with algebra threads of their own each would mostly wait for the
# others (training the demo's models took 20 times the processor time). Numpy comes after this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Compiled once, by the first process: else each worker rewrites 5000 asserts, and each service
# that a test starts compiles itself, on machines whose Python is to keep no bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine must not fail a property for being slow; pytest's timeout bounds all. A failure
# prints what reproduces it, so that no database on disk has to.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
    # To explain a failure traces every line: after a slow test it took longer than the suite.
    "phases": [phase for phase in Phase if phase is not Phase.explain],
}
settings.register_profile("pure", max_examples=100, **_COMMON)
settings.register_profile("costly", max_examples=12, **_COMMON)
settings.register_profile("thorough", max_examples=3000, **_COMMON)  # make thorough
settings.load_profile("costly")

# Of pure tests, those below get a dozen cases of each property, as tests with I/O do: in each case
# they solve integer programs, or run thousands of requests. All others get a hundred.
_COSTLY: Final = (
    "unit/cli/test_plan_options.py",
    "unit/planner/explain",
    "unit/planner/forecast/test_horizon.py",
    "unit/planner/problem/test_overload.py",
    "unit/planner/solver",
    "unit/planner/strategies",
    "unit/router/dispatch",
    "unit/simulator",
)

# As services log: rich's tracebacks with every local variable take longer than a loop may be held.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ],
    logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
)

# A command is the same each time that it is invoked; to build all of them takes 50 ms.
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]

# So are the authorities that a machine trusts; to read them takes each HTTP client 20 ms.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)  # type: ignore[attr-defined]

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


Train = Callable[..., Path]


@pytest.fixture(scope="session")
def trained(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Return a function that trains some of the demo's models, and returns their folder.

    They are kept from run to run in pytest's cache, for as long as what makes them is the same.
    """
    from services.local.demo import model_family  # noqa: PLC0415 - heavy, rarely needed

    demo = Path(model_family.__file__).parent
    makers = ("classifiers.py", "convnet.py", "digits.py", "model_family.py")
    recipe = b"".join((demo / name).read_bytes() for name in makers)
    if hasattr(pytestconfig, "cache") and pytestconfig.cache is not None:
        base = pytestconfig.cache.mkdir("demo-models")
    else:
        base = tmp_path_factory.getbasetemp()
        base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def train(*names: str) -> Path:
        folder = base / f"{'+'.join(names)}-{sha256(recipe).hexdigest()[:12]}"
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            model_family.train(folder, names=names)
        return folder

    return train


@pytest.fixture(scope="session")
def digits_models(trained: Train) -> Path:
    """The models of the demo."""
    return trained("tree", "linear", "mlp-64", "mlp-512", "svc")


@pytest.fixture(scope="session")
def convnets(trained: Train) -> Path:
    """The demo's networks that take milliseconds of a core."""
    return trained("conv-16", "conv-128", "conv-384")


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deploy:
    """Return a function that writes a minimal cinquefoil.yaml with changes, and loads it.

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[object]) -> None:
    """Collect the tests once, in a process that all workers are forked from.

    Each worker imported every module: five seconds of a core, where a collection takes one and a
    half of what is imported.
    """
    if len(specs) < 2 or not zygote.wanted() or config.invocation_params.dir != config.rootpath:
        return
    profile = config.getoption("--hypothesis-profile", None)
    own = zygote.Zygote.started(
        zygote.TESTS, *([f"--hypothesis-profile={profile}"] if profile else []), *config.args
    )
    own.wait()
    config.add_cleanup(own.close)
    config.add_cleanup(zygote.install({zygote.TESTS: own}))


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Look for no cycles meanwhile.

    Thousands of modules and tests stay until the end: to look among them took half of the time
    that collecting tests takes, and a sixth of that of running them.
    """
    gc.disable()


_MADE_BETWEEN_COLLECTIONS: Final = 20_000
"""Objects; with the interpreter's 700, collections took a twelfth of the suite's time."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look for cycles again, but only among what tests make; get ready to fork services."""
    gc.freeze()
    gc.set_threshold(_MADE_BETWEEN_COLLECTIONS)
    gc.enable()
    if session.config.option.collectonly:
        return
    tests = Path(__file__).parent
    folders = {item.path.relative_to(tests).parts[0] for item in session.items}
    if folders & {"rpc", "system"} and zygote.wanted():
        zygotes = zygote.started()
        for each in zygotes.values():
            session.config.add_cleanup(each.close)
        session.config.add_cleanup(zygote.install(zygotes))


def _choose_examples(path: Path, config: pytest.Config) -> None:
    """Load the profile of a test file: decorators read it on import, and `trials` when it runs."""
    if config.getoption("--hypothesis-profile", None):
        return
    place = path.relative_to(Path(__file__).parent)
    pure = place.parts[0] == "unit" and not place.as_posix().startswith(_COSTLY)
    settings.load_profile("pure" if pure else "costly")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Choose how many cases a module's properties get, before it is imported."""
    if isinstance(collector, pytest.Module):
        _choose_examples(collector.path, collector.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose how many cases a test tries that draws its own."""
    _choose_examples(item.path, item.config)


def _path(item: pytest.Item) -> Path:
    return item.path


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that turns the detector off; give each test process ports of its own."""
    worker = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    first, each = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    net.PORTS = net.PORTS[first::each]  # type: ignore[misc]
    loop_guard.open_clocks()
    config.addinivalue_line("markers", "may_block: this test may hold its event loop")
