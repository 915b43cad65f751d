"""`init` for networks of every kind: branches, loops, texts, states, any metric."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from services.cli.main import app
from services.kit.config.loader import load
from services.kit.profiles.table import TableProfile

pytestmark = [pytest.mark.usefixtures("forked_readers"), pytest.mark.timeout(180)]

BRANCHES = """
<ir_version: 10, opset_import: ["": 21]>
net (float[N, 512] x, int64 rate) => (float[N, M] y)
<float[512, 4] small, float[512, 512] large, int64 limit = {8000}>
{
    fast = Greater(rate, limit)
    y = If(fast) <
        then_branch = many () => (float[N, 512] a) { a = MatMul(x, large) },
        else_branch = few () => (float[N, 4] b) { b = MatMul(x, small) }
    >
}
"""
LOOP = """
<ir_version: 10, opset_import: ["": 21]>
net (float[N, 64] x) => (float[N, 64] y)
<float[64, 64] w, int64 times = {5}, bool always = {1}>
{
    y = Loop(times, always, x) <
        body = step (int64 i, bool c, float[N, 64] v) => (bool d, float[N, 64] u)
        { d = Identity(c) u = MatMul(v, w) }>
}
"""
STATE = """
<ir_version: 10, opset_import: ["": 21]>
net (float[N, 4] x, float[2, N, 4] state) => (float[N, 4] y, float[2, N, 4] next)
{ y = Relu(x) next = Neg(state) }
"""
FIXED = """
<ir_version: 10, opset_import: ["": 21]>
net (float[3, 2] x) => (float[3, 2] y) { y = Neg(x) }
"""
TEXTS = """
<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
net (string[N, 1] colour) => (int64[N, 1] y)
{ y = ai.onnx.ml.LabelEncoder<keys_strings = ["red", "green"], values_int64s = [0, 1]>(colour) }
"""
LINEAR = """
<ir_version: 10, opset_import: ["": 21]>
net (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {1.0, 1.0}> { y = MatMul(x, w) }
"""


def write(folder: Path, text: str, name: str = "net") -> Path:
    """Write a network; what its text declares and nothing gives is a weight of halves."""
    model = onnx.parser.parse_model(text)
    given = {each.name for each in model.graph.initializer}
    made = {made for node in model.graph.node for made in node.output}
    for each in model.graph.value_info:
        if each.name not in given | made:
            sizes = [size.dim_value for size in each.type.tensor_type.shape.dim]
            halves = onnx.numpy_helper.from_array(np.full(sizes, 0.5, np.float32), each.name)
            model.graph.initializer.append(halves)
    onnx.save(model, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def init(folder: Path, *words: object) -> Result:
    return CliRunner().invoke(app, ["init", str(folder), "--no-control", *map(str, words)])


def section(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML().load(folder / "cinquefoil.yaml")["models"]["net"]["variants"]
    return found


@pytest.mark.parametrize(("rate", "macs"), [(16_000, 512 * 512), (4_000, 512 * 4)])
def test_the_branch_that_an_item_takes_is_counted(tmp_path: Path, rate: int, macs: int) -> None:
    """Arithmetic is that of the branch which the items of --data take."""
    np.savez(tmp_path / "val.npz", x=np.ones((4, 512)), rate=np.array(rate))
    result = init(tmp_path, "--onnx", write(tmp_path, BRANCHES), "--data", tmp_path / "val.npz")
    assert result.exit_code == 0, result.output
    assert section(tmp_path)["net"]["profile"]["gmacs_per_item"] == pytest.approx(
        macs / 1e9, rel=0.1
    )
    assert section(tmp_path)["net"]["max_batch"] == 1


def test_every_iteration_of_a_loop_is_counted(tmp_path: Path) -> None:
    result = init(tmp_path, "--onnx", write(tmp_path, LOOP))
    assert result.exit_code == 0, result.output
    found = section(tmp_path)["net"]["profile"]["gmacs_per_item"]
    assert found == pytest.approx(5 * 64 * 64 / 1e9, rel=0.1)


@pytest.mark.parametrize(
    ("network", "arrays"),
    [
        (STATE, {"x": np.ones((4, 4)), "state": np.zeros((2, 1, 4))}),
        (FIXED, {"x": np.ones((9, 2))}),
        (TEXTS, {"colour": np.array([["red"], ["green"]])}),
    ],
    ids=["state", "fixed", "texts"],
)
def test_networks_are_examined_with_items_of_theirs_and_without(
    tmp_path: Path, network: str, arrays: dict[str, Any]
) -> None:
    """States whose batch is not first, fixed batches above one, texts."""
    file = write(tmp_path, network)
    np.savez(tmp_path / "val.npz", **arrays)
    for place, words in enumerate(((), ("--data", tmp_path / "val.npz"))):
        result = init(tmp_path / str(place), "--onnx", file, *words)
        assert result.exit_code == 0, result.output


def test_times_on_the_cores_are_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice and batch size has a time that was measured here; the planner reads the table."""
    monkeypatch.setattr("services.kit.cgroup.whole_cores", lambda: 2)
    assert init(tmp_path, "--onnx", write(tmp_path, LINEAR)).exit_code == 0
    profile = load(tmp_path / "cinquefoil.yaml").models["net"].variants["net"].profile
    assert profile.kind == "table"
    table = TableProfile.read(profile.path, gpu=profile.gpu, gmacs_per_item=1)
    assert {place[:2] for place in table.clocks} == {("cpu-2", "1c"), ("cpu-2", "2c")}
    for points in table.points.values():
        assert [each.batch_size for each in points] == [1, 2, 4, 8]
        assert all(each.latency_s for each in points)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A network, and one whose answers are half of its."""
    best, rough = onnx.parser.parse_model(LINEAR), onnx.parser.parse_model(LINEAR)
    weight = rough.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((2, 1), 0.5, np.float32), "w"))
    onnx.save(best, tmp_path / "best.onnx")
    onnx.save(rough, tmp_path / "rough.onnx")
    return tmp_path / "rough.onnx", tmp_path / "best.onnx"


SCORE = (
    "def score(outputs, labels):\n    return float(abs(outputs['y'][:, 0] - labels).mean() < 3)\n"
)


@pytest.mark.parametrize(
    ("metric", "labelled", "rough"),
    [
        ("mse", True, 0.0),
        ("mae", True, 0.0),
        ("agreement", False, 1.0),
        ("embedding-cosine", False, 1.0),
        ("FILE:FUNCTION", True, 1.0),
    ],
)
def test_accuracies_by_any_metric(
    tmp_path: Path, pair: tuple[Path, Path], metric: str, labelled: bool, rough: float
) -> None:
    """With labels, or against the last network's answers; by a function of the user's."""
    x = np.array([[3.0, 1], [2, 2], [1, 4], [2, 1]])
    np.savez(tmp_path / "val.npz", x=x, **({"labels": x.sum(axis=1)} if labelled else {}))
    (tmp_path / "score.py").write_text(SCORE)
    chosen = f"{tmp_path / 'score.py'}:score" if ":" in metric else metric
    words = ("--onnx", pair[0], "--onnx", pair[1], "--data", tmp_path / "val.npz")

    result = init(tmp_path, *words, "--name", "net", "--metric", chosen)

    if not rough:
        assert "rough.onnx: mse is 0" in result.output or "rough.onnx: mae is 0" in result.output
        return
    assert result.exit_code == 0, result.output
    found = {name: each["accuracy"] for name, each in section(tmp_path).items()}
    assert found == {"rough": pytest.approx(rough), "best": 1.0}
    assert (
        f"measured on 4 items by {'' if ':' in metric else metric}"
        in (tmp_path / "cinquefoil.yaml").read_text()
    )


def test_a_metric_of_the_user_reads_no_other_file(
    tmp_path: Path, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It runs where networks run: confined."""
    np.savez(tmp_path / "val.npz", x=np.ones((4, 2)))
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("1")
    (tmp_path / "spy.py").write_text(
        f"def score(outputs, labels):\n    return len(open({str(secret)!r}).read())\n"
    )
    words = ("--onnx", pair[1], "--data", tmp_path / "val.npz")
    result = init(tmp_path, *words, "--metric", f"{tmp_path / 'spy.py'}:score")
    assert "PermissionError" in result.output


def test_a_variant_that_is_slower_and_no_better_is_named(tmp_path: Path) -> None:
    """One that nothing on cores would ever choose; and a model with nothing to save says so."""
    slow = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w, float[512, 512] big>
    {
        sum = ReduceSum<keepdims = 0>(x)
        given = Add(big, sum)
        p = MatMul(given, given)
        q = ReduceSum<keepdims = 0>(p)
        z = Sub(q, q)
        a = Add(x, z)
        y = MatMul(a, w)
    }
    """
    model = write(tmp_path, slow, "slow")
    fast = write(tmp_path, LINEAR, "fast")
    np.savez(tmp_path / "val.npz", x=np.random.default_rng(0).normal(size=(8, 2)))
    result = init(tmp_path, "--onnx", model, "--onnx", fast, "--data", tmp_path / "val.npz")
    assert result.exit_code == 0, result.output
    assert "slow: slower here and no more accurate than fast" in result.output
    assert "nothing to save by choosing between these variants on cores" in result.output


def test_the_commands_that_follow_can_be_typed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name the deployment file where that is not the one that commands read by default."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, LINEAR)
    words = ["--no-control", "--onnx", "net.onnx", "--shape", "2"]
    elsewhere = CliRunner().invoke(app, ["init", "my models", *words])
    here = CliRunner().invoke(app, ["init", *words])

    given = "--config 'my models/cinquefoil.yaml'"
    assert (
        f"next: cinquefoil up {given}, and beside it: cinquefoil infer net {given} "
        "--input FILE.npz" in elsewhere.output
    )
    assert "next: cinquefoil up, and beside it: cinquefoil infer net --input FILE" in here.output


def test_sizes_of_one_name_are_given_once(tmp_path: Path) -> None:
    """A mask is as long as its text: the advice names every input whose sizes nothing says."""
    network = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[batch, length] x, float[batch, length] mask, float[batch, other] z)
        => (float[batch, length] y)
    { s = ReduceSum(z) t = Mul(x, mask) y = Add(t, s) }
    """
    file = write(tmp_path, network)
    said = init(tmp_path, "--onnx", file).output
    assert "--shape x=128 --shape z=128, or" in said.replace("\n", " ") or "--shape z=128" in said
    result = init(tmp_path, "--onnx", file, "--shape", "x=16", "--shape", "z=4")
    assert result.exit_code == 0, result.output
