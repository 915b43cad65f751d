"""The control plane in virtual time, under faults; see `docs/simulation-tests.md`."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.paths import ROOT

_PLANTED = ROOT / "tests/simulation/planted"

_TWICE = "gpu-claim-new-leader,settings-with-join"
"""Short histories with two leaders, agents that join, and changes of settings."""

_ONCE = "machine-lost,leader-without-carbon,two-leave-in-turn,last-leaves-before-another-is-back,2"


def _simulated(hash_seed: str, histories: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--play", histories],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_planted_bugs_can_still_be_planted(tmp_path: Path) -> None:
    """Each patch fits the product as it is: a bug that cannot be planted proves nothing."""
    shutil.copytree(ROOT / "services", tmp_path / "services")
    patches = sorted(_PLANTED.glob("*.patch"))

    for patch in patches:
        subprocess.run(["git", "apply", "--check", patch], cwd=tmp_path, check=True)
    assert len(patches) >= 20


@pytest.mark.timeout(400)
def test_histories_keep_every_invariant_and_are_the_same_under_two_hash_seeds() -> None:
    """A digest is of every message and its time, so a history repeats to the last event."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(_simulated, ("1", "2"), (f"{_TWICE},{_ONCE}", _TWICE))

    once, again = (re.findall(r"digest (\w{16})", each) for each in (first, second))
    assert len(once) == len(f"{_TWICE},{_ONCE}".split(","))
    assert again == once[: len(_TWICE.split(","))]
