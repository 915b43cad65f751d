"""`cinquefoil doctor`: each line says what was found, and what to do."""

from pathlib import Path

import pytest
import yaml

from services.cli.doctor.deployment import deployment_file, surroundings
from services.cli.doctor.finding import Finding, Verdict
from services.cli.doctor.machine import machine
from services.cli.doctor.run import lines
from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.kit.net import free_port
from tests.support.paths import ROOT

NO_MPS = Path("no-such-program")


def example(folder: Path, **node: object) -> Path:
    """The example deployment on free ports, with its node changed."""
    data = yaml.safe_load((ROOT / "cinquefoil.yaml").read_text())
    for name in ("carbon", "planner", "router", "console"):
        data.setdefault(name, {})["listen"] = f"127.0.0.1:{free_port()}"
    data["nodes"]["node-0"] |= {"listen": f"127.0.0.1:{free_port()}", **node}
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {each.subject: each for each in findings}


def test_models_that_up_trains_are_no_mistake(tmp_path: Path) -> None:
    _, findings = deployment_file(example(tmp_path))

    assert {each.verdict for each in findings} == {Verdict.NOTE}
    assert {each.remedy for each in findings} == {"cinquefoil up"}


def test_a_real_gpu_that_may_only_be_read_is_bad_and_names_the_setting(tmp_path: Path) -> None:
    _, findings = deployment_file(example(tmp_path, simulated=None))

    off = by_subject(findings)["node node-0"]
    assert off.verdict is Verdict.BAD
    assert "nodes.node-0.control" in off.remedy


def test_a_file_that_cannot_be_used_is_bad_line_by_line(tmp_path: Path) -> None:
    path = example(tmp_path, zone=7, simulatd=["t4"])
    deployment, findings = deployment_file(path)

    assert deployment is None
    assert all(each.verdict is Verdict.BAD for each in findings)
    assert any("simulatd" in each.found for each in findings)


def test_ports_and_disks_of_the_deployment_are_looked_at(tmp_path: Path) -> None:
    deployment, _ = deployment_file(example(tmp_path))
    assert deployment is not None
    found = by_subject(list(surroundings(deployment)))

    assert found["ports"].verdict is Verdict.FINE
    assert "MiB are free" in found["disk"].found


@pytest.mark.parametrize(("needs_gpu", "verdict"), [(True, Verdict.BAD), (False, Verdict.NOTE)])
def test_a_machine_without_a_driver_is_bad_only_where_a_node_needs_one(
    needs_gpu: bool, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml  # noqa: PLC0415 - replaced below

    def absent() -> None:
        raise pynvml.NVMLError_LibraryNotFound(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    found = by_subject(list(machine(NO_MPS, needs_gpu=needs_gpu)))

    assert found["driver"].verdict is verdict


def test_gpus_show_mig_mode_energy_and_what_to_do(tmp_path: Path) -> None:
    """On a simulated driver: an A100, whose MIG mode is off, and a T4, which has none."""
    library = FakeNvml(
        "n", ("a100-40gb", "t4"), state_dir=tmp_path, activity=lambda _: NoActivity()
    )
    restore = install(library)
    try:
        found = by_subject(list(machine(NO_MPS, needs_gpu=True)))
    finally:
        restore()

    assert "A100" in found["GPU 0"].found
    assert found["GPU 0 energy"].verdict is Verdict.FINE
    assert "allow_mig_mode" in found["GPU 0 MIG"].remedy
    assert found["GPU 1 MIG"].found == "not supported"
    assert found["cuda"].verdict is Verdict.BAD
    assert found["MPS"].verdict is Verdict.NOTE


@pytest.mark.parametrize(
    ("gpus", "verdict", "found"),
    [
        (("h100-80gb",) * 4, Verdict.FINE, "4 of 4 GPUs (NVIDIA H100 80GB HBM3), all with NVLink"),
        (("l40s-48gb",) * 4, Verdict.NOTE, "no NVLink between GPU 0 and 1"),
        (
            ("h100-80gb",) * 3 + ("t4",),
            Verdict.BAD,
            "here: 3 x NVIDIA H100 80GB HBM3, 1 x Tesla T4",
        ),
    ],
)
def test_a_variant_on_several_gpus_needs_them_here_and_nvlink(
    gpus: tuple[str, ...], verdict: Verdict, found: str, tmp_path: Path
) -> None:
    """On a simulated driver; with a second node of real GPUs a lack is a note."""
    large = {
        "accuracy": 80.0,
        "gpus": 4,
        "profile": {"kind": "language", "parameters_b": 70},
        "runtime": {"kind": "openai", "command": ["serve", "{port}"]},
    }
    path = example(tmp_path, simulated=None)
    data = yaml.safe_load(path.read_text())
    slo = {"latency_s": 30}
    data["models"] = {"chat": {"slo": slo, "demand_rps": 1, "variants": {"70b": large}}}
    restore = install(FakeNvml("n", gpus, state_dir=tmp_path, activity=lambda _: NoActivity()))
    findings = []
    try:
        for name in ("node-0", "node-1"):
            data["nodes"][name] = {**data["nodes"]["node-0"], "listen": f"127.0.0.1:{free_port()}"}
            path.write_text(yaml.safe_dump(data))
            deployment, _ = deployment_file(path)
            assert deployment is not None
            seen = by_subject(list(machine(NO_MPS, needs_gpu=True, deployment=deployment)))
            findings.append(seen["variant chat/70b"])
    finally:
        restore()

    assert found in findings[0].found
    assert [each.verdict for each in findings] == [
        verdict,
        Verdict.NOTE if verdict is Verdict.BAD else verdict,
    ]


def test_a_line_has_mark_subject_finding_and_remedy() -> None:
    (line,) = lines([Finding("disk", Verdict.BAD, "it is full", "free space")])

    assert str(line) == "BAD   disk  it is full -> free space"
