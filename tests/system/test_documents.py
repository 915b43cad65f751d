"""README and tutorial do what they say: every block is run, and prints what the page prints."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.paths import ROOT

pytestmark = [pytest.mark.system, pytest.mark.documents]

README, TUTORIAL = ROOT / "README.md", ROOT / "docs/tutorial.md"


async def cinquefoil_page(page: Path, folder: Path) -> tuple[int | None, str]:
    """Do what a page says in a network of its own; return the status, and what was printed."""
    if not (network := documents.own_network()):
        pytest.skip("needs `unshare --net`: as root, or where users may have namespaces")
    process = await asyncio.create_subprocess_exec(
        *(*network, sys.executable, "-m", "tests.support.documents", str(folder), str(page)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.fixture
def clone(tmp_path: Path, digits_models: Path) -> Path:
    """A folder that looks like a clone in which a suite ran before: the models are trained."""
    documents.clone(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/models").symlink_to(digits_models)
    return tmp_path


@pytest.fixture
async def own_network_of_the_reader(clone: Path) -> None:
    """`net.onnx` and `val.npz` in the clone, as the tutorial makes them."""
    blocks = (step for step in documents.steps(TUTORIAL) if isinstance(step, documents.Block))
    program = next(block for block in blocks if block.title == "net.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", "\n".join(program.lines)), cwd=clone
    )
    assert await process.wait() == 0
    shutil.copy(clone / "large.onnx", clone / "net.onnx")


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("own_network_of_the_reader")
async def test_the_readme_does_what_it_says(clone: Path) -> None:
    """Each of its blocks runs as printed, the demo for a few seconds."""
    status, printed = await cinquefoil_page(README, clone)
    assert status == 0, printed


@pytest.mark.timeout(900)
async def test_the_tutorial_does_what_it_says(clone: Path) -> None:
    """Each of its blocks runs as printed, one after the other."""
    status, printed = await cinquefoil_page(TUTORIAL, clone)
    assert status == 0, printed
