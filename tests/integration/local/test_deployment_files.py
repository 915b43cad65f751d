"""The two suites differ in how they decide, and share nothing but the grid."""

from pathlib import Path

from services.kit.config.loader import load
from services.local.demo import deployment_files
from services.local.up.suite import programs
from tests.support.paths import ROOT


def test_both_suites_serve_the_same_models(tmp_path: Path) -> None:
    setting = deployment_files.write(load(ROOT / "demo.yaml"), tmp_path, seconds=60)
    base, ours = (load(setting.suites[name]) for name in ("base", "cinquefoil"))
    assert (base.planner.strategy, ours.planner.strategy) == ("base", "exact")
    for name in ("post-codes", "cheques", "meters"):
        assert base.models[name].instance_choice == "idle_longest"
        assert ours.models[name].instance_choice == "shares"
        assert base.models[name].variants == ours.models[name].variants
    assert base.planner.objective == ours.planner.objective
    assert ours.nodes["node-0"].simulated == ("a100-40gb",) * 2
    assert base.nodes["node-0"].simulated == ("a100-40gb",) * 3, "BASE needs one for each model"


def test_equal_gpus_where_there_are_enough_for_base(tmp_path: Path) -> None:
    setting = deployment_files.write(load(ROOT / "cinquefoil.yaml"), tmp_path, seconds=60)
    for file in setting.suites.values():
        assert load(file).nodes["node-0"].simulated == ("a100-40gb",) * 2


def test_a_day_passes_in_the_given_seconds_on_one_carbon_service(tmp_path: Path) -> None:
    setting = deployment_files.write(load(ROOT / "cinquefoil.yaml"), tmp_path, seconds=60)
    files = [setting.carbon, *setting.suites.values()]
    deployments = [load(file) for file in files]
    assert setting.speedup == 1440
    assert {deployment.carbon.replay.speedup for deployment in deployments} == {1440}
    assert len({deployment.carbon.dial for deployment in deployments}) == 1


def test_no_port_and_no_state_is_shared(tmp_path: Path) -> None:
    setting = deployment_files.write(load(ROOT / "cinquefoil.yaml"), tmp_path, seconds=60)
    deployments = [load(file) for file in setting.suites.values()]
    addresses = [d.carbon.dial for d in deployments[:1]]
    for deployment in deployments:
        endpoints = (deployment.planner, deployment.router, *deployment.nodes.values())
        addresses += [endpoint.dial for endpoint in endpoints]
    assert len(set(addresses)) == len(addresses)
    assert deployments[0].planner.database != deployments[1].planner.database
    assert deployments[0].nodes["node-0"].state_dir != deployments[1].nodes["node-0"].state_dir


def test_state_of_an_earlier_demo_is_removed(tmp_path: Path) -> None:
    old = tmp_path / "base/state/planner.sqlite3"
    old.parent.mkdir(parents=True)
    old.touch()
    deployment_files.write(load(ROOT / "cinquefoil.yaml"), tmp_path, seconds=60)
    assert not old.exists()


def test_models_keep_their_files(tmp_path: Path) -> None:
    """Paths of the user's file stay right in files that lie elsewhere."""
    before = load(ROOT / "cinquefoil.yaml")
    after = load(deployment_files.write(before, tmp_path, seconds=60).suites["base"])
    assert after.models["digits"].variants["svc"].file == ROOT / "out/models/svc.onnx"


def test_programs_start_with_the_carbon_service_and_end_with_the_router(tmp_path: Path) -> None:
    found = programs(load(ROOT / "cinquefoil.yaml"), ROOT / "cinquefoil.yaml")
    assert [program.name for program in found] == ["carbon", "planner", "gpuagent-node-0", "router"]
    assert found[2].argv[-2:] == ("--node", "node-0")
    assert [program.health for program in found] == [
        f"127.0.0.1:{port}" for port in (8461, 8462, 8463, 8464)
    ]
