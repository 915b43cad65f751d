"""Mistakes in a deployment file are reported in sentences, with their line."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks._secured import secure
from services.cli.config.doubts import doubts
from services.cli.main import app
from services.kit.config.loader import load
from services.local.pki import Authority, Identity
from tests.support.paths import ROOT

GOOD = """\
version: v1
carbon:
  zones:
    US-CAL: {source: {kind: synthetic}}
nodes:
  node-0:
    zone: US-CAL
    simulated: [a100-40gb]
models:
  digits:
    slo: {latency_s: 0.2}
    demand_rps: 60
    variants:
      tree:
        file: models/tree.onnx
        accuracy: 0.8373
        profile: {kind: analytic, gmacs_per_item: 0.7}
      svc:
        file: models/svc.onnx
        accuracy: 0.9917
        profile: {kind: analytic, gmacs_per_item: 37}
planner:
  listen: 127.0.0.1:8462
"""


def checked(tmp_path: Path, text: str) -> tuple[int, list[str]]:
    """Return exit status and lines of `config check`; the file's path is left out."""
    (tmp_path / "models").mkdir(exist_ok=True)
    for name in ("tree", "svc"):
        (tmp_path / f"models/{name}.onnx").touch()
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(text)
    result = CliRunner().invoke(app, ["config", "check", str(file)])
    return result.exit_code, result.output.replace(f"{file}: ", "").splitlines()


def test_a_good_file_is_fine(tmp_path: Path) -> None:
    assert checked(tmp_path, GOOD) == (0, ["fine (1 zone, 1 node, 1 model)"])


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        (
            "latency_s: 0.2",
            "latency_s: 0.001",
            "line 11: models.digits.slo.latency_s: no variant can meet 1 ms: the fastest, tree",
        ),
        ("demand_rps: 60", "demand_rps: 1e300", "line 12: models.digits.demand_rps: "),
        ("[a100-40gb]", "[]", "line 8: nodes.node-0.simulated: needs at least 1"),
        (
            "    demand_rps: 60\n",
            "    demand_rsp: 60\n",
            "line 12: models.digits.demand_rsp: unknown key",
        ),
        (
            "latency_s: 0.2",
            "latency_s: -1",
            "line 11: models.digits.slo.latency_s: must be",
        ),
        (
            "zone: US-CAL",
            "zone: US-TEX",
            "nodes.node-0.zone: no zone 'US-TEX'; carbon.zones has US",
        ),
        (
            "accuracy: 0.8373",
            "accuracy: 83.73",
            "line 20: models.digits.variants.svc.accuracy: 0.9917 is a fraction, but others",
        ),
        (
            "models/svc.onnx",
            "models/svm.onnx",
            "line 19: models.digits.variants.svc.file: no file",
        ),
        (
            "listen: 127.0.0.1:8462",
            "listen: 127.0.0.1:8461",
            "line 23: planner.listen: 127.0.0.1:8461 is taken by carbon.listen",
        ),
        ("listen: 127.0.0.1:8462", "listen: 127.0.0.1:0", "planner.address: others cannot dial"),
        ("listen: 127.0.0.1:8462", "listen: here", "planner.listen: address must be host:port"),
        (
            "{kind: synthetic}",
            "{kind: trace, path: gone.csv}",
            "line 4: carbon.zones.US-CAL.source.path: no file",
        ),
        (
            "    demand_rps: 60\n",
            "    demand_rps: 60\n    discipline: ssjf\n",
            "line 13: models.digits.discipline: ssjf orders requests by predicted length",
        ),
        (
            "    demand_rps: 60\n",
            "    demand_rps: 60\n    instance_choice: consolidated\n",
            "models.digits: instance_choice: consolidated fills instances up to slo.tpot_s",
        ),
        (
            "latency_s: 0.2",
            "latency_s: 0.2, tpot_s: 0.05",
            "line 10: models.digits: slo.tpot_s: only of models that generate text, and the",
        ),
        ("version: v1", "version: [", "yaml: "),
        (
            "{kind: synthetic}",
            "{kind: syntetic}",
            "line 4: carbon.zones.US-CAL.source.kind: must be one of carbon-aware-sdk, ",
        ),
        (
            "{kind: analytic, gmacs_per_item: 0.7}",
            "{gmacs_per_item: 0.7}",
            "line 17: models.digits.variants.tree.profile.kind: required, but missing; one of ana",
        ),
        (
            "{kind: analytic, gmacs_per_item: 0.7}",
            "{kind: table, path: models/tree.onnx, gpu: t4, gmacs_per_item: 1}",
            "line 17: models.digits.variants.tree.profile.path: /",
        ),
        (
            "planner:",
            "predictor: {listen: '127.0.0.1:8464', model: gone.onnx}\nplanner:",
            "line 22: predictor.listen: 127.0.0.1:8464 is taken by router.listen",
        ),
        (
            "planner:",
            "predictor: {model: gone.onnx}\nplanner:",
            "line 22: predictor.model: no file",
        ),
        ("planner:", "tls: {ca_file: gone.pem}\nplanner:", "line 22: tls.ca_file: no file"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(
    tmp_path: Path, right: str, wrong: str, sentence: str
) -> None:
    assert right in GOOD
    status, lines = checked(tmp_path, GOOD.replace(right, wrong))
    assert status == 2
    assert any(sentence in line for line in lines), lines


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        (
            "slo: {latency_s: 0.2}",
            "slo: {latency_s: 400}",
            "models.digits.slo.latency_s: 400 seconds; if milliseconds are meant, write 0.4",
        ),
        (
            "slo: {latency_s: 0.2}",
            "slo: {latency_s: 0.2, percentile: 0.95}",
            "line 11: models.digits.slo.percentile: 0.95 of 100; if a share is meant, write 95",
        ),
        (
            "gmacs_per_item: 37",
            "gmacs_per_item: 9.4e10",
            "gmacs_per_item: 9.4e+10 billions; if multiply-accumulates are meant, write 94",
        ),
        (
            "version: v1",
            "version: v1\nsites: {s: {nodes: [node-0], power_budget_w: 12}}",
            "sites.s.power_budget_w: 12 watts; if kilowatts are meant, write 12000",
        ),
        (
            "version: v1",
            "version: v1\nsites: {s: {nodes: [node-0], host_power_w: 90, power_budget_w: 100}}",
            "below the 119 W that its nodes draw without work: nothing would be served there",
        ),
        (
            "version: v1",
            "version: v1\nsites: {s: {nodes: [node-0], power_budget_w: 5000}}",
            "5000 W is never reached: its nodes draw at most 400 W",
        ),
        (
            "version: v1",
            "version: v1\ngrid: {prices: {US-CAL: {kind: static, eur_per_kwh: 9}}}",
            "grid.prices.US-CAL.eur_per_kwh: 9 euros; if cents are meant, write 0.09",
        ),
        (
            "demand_rps: 60",
            "demand_rps: 60\n    default_deadline_s: 0.1",
            (
                "given up after 0.1 s, before the objective's 0.2; "
                "write models.digits.default_deadline_s: 0.2 or more"
            ),
        ),
        (
            "latency_s: 0.2",
            "latency_s: 45",
            (
                "given up after router.default_timeout_s, 30 s, before the objective's 45; "
                "write models.digits.default_deadline_s: 45 or more"
            ),
        ),
        (
            "  listen: 127.0.0.1:8462",
            "  objective: {kind: cost, accuracy_value_eur: 1}",
            "neither energy nor carbon has a price in US-CAL: give grid.prices",
        ),
    ],
)
def test_a_value_that_is_allowed_and_unlikely_is_doubted(
    right: str, wrong: str, sentence: str, tmp_path: Path
) -> None:
    """Units that were mixed up: the file is fine, or no GPU could serve it; the doubt is there."""
    (tmp_path / "cinquefoil.yaml").write_text(GOOD.replace(right, wrong))
    deployment = load(tmp_path / "cinquefoil.yaml")

    (found,) = doubts(tmp_path / "cinquefoil.yaml", deployment)
    assert str(found).endswith(sentence)
    _, lines = checked(tmp_path, GOOD.replace(right, wrong))
    assert any(sentence in line for line in lines)


@pytest.mark.parametrize(("host", "doubted"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_grpcio_beyond_this_machine_is_doubted(host: str, doubted: bool, tmp_path: Path) -> None:
    """Floods delay others there, as measured; on loopback there is no stranger."""
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(
        f"{GOOD}\nrpc: {{transport: grpcio}}\nrouter: {{listen: '{host}:8464'}}\n"
        "access: {insecure: true}\n"
    )
    found = [each.where for each in doubts(file, load(file))]

    assert found == (["rpc.transport"] if doubted else [])


def test_one_accuracy_in_percent_among_shares_is_the_one_that_is_named(tmp_path: Path) -> None:
    """The one that differs, not those that it differs from."""
    third = """      lin:
        file: models/svc.onnx
        accuracy: 95.2
        profile: {kind: analytic, gmacs_per_item: 37}
"""
    status, lines = checked(tmp_path, GOOD.replace("planner:\n", f"{third}planner:\n"))

    assert status == 2
    assert [line for line in lines if "accuracy" in line] == [
        (
            "line 24: models.digits.variants.lin.accuracy: 95.2 is in %, but most of the model are "
            "fractions"
        )
    ]


def test_a_pipeline_names_which_stage_is_missing_and_what_writes_it(tmp_path: Path) -> None:
    """The mistake names the stage; a model of pipelines alone needs a strategy that plans them."""
    tree = "        file: models/tree.onnx\n"
    staged = GOOD.replace(tree, "        stages: [models/tree.onnx, models/cut.onnx]\n")
    status, lines = checked(tmp_path, staged)
    assert status == 2
    assert [line.split(": ")[0:2] for line in lines] == [
        ["line 15", "models.digits.variants.tree.stages.1"]
    ]
    assert "`cinquefoil partition` writes" in lines[0]

    alone = staged[: staged.index("      svc:")] + staged[staged.index("planner:") :]
    alone = alone.replace("models/cut.onnx", "models/svc.onnx")
    assert checked(tmp_path, alone)[0] == 0
    status, lines = checked(tmp_path, alone + "  strategy: annealing\n")
    assert status == 2
    assert "annealing plans neither: choose exact" in lines[0]


def test_several_mistakes_are_reported_at_once_in_order_of_line(tmp_path: Path) -> None:
    text = GOOD.replace("models/svc", "models/svm").replace("models/tree", "models/bush")
    _, lines = checked(tmp_path, text)
    assert [line.split(":")[0] for line in lines] == ["line 15", "line 19"]


def test_an_unknown_gpu_type_lists_the_known(tmp_path: Path) -> None:
    status, lines = checked(tmp_path, GOOD.replace("[a100-40gb]", "[a100-41gb]"))
    assert status == 2
    assert lines[0].startswith("line 8: nodes.node-0.simulated: no GPU type 'a100-41gb'; known are")
    assert "a100-40gb" in lines[0]


def test_an_accuracy_that_was_measured_otherwise_is_reported(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    measured = {"accuracy": {"tree": 0.8373, "svc": 0.95}}
    (tmp_path / "models/accuracy.json").write_text(json.dumps(measured))
    status, lines = checked(tmp_path, GOOD)
    assert status == 2
    assert lines == [
        "line 20: models.digits.variants.svc.accuracy: says 0.9917, but 0.9500 was measured"
    ]


def test_the_file_that_ships_is_read_without_a_mistake_but_untrained_models(tmp_path: Path) -> None:
    shutil.copy(ROOT / "cinquefoil.yaml", tmp_path)
    result = CliRunner().invoke(app, ["config", "check", str(tmp_path / "cinquefoil.yaml")])
    lines = result.output.splitlines()
    assert result.exit_code == 2
    assert len(lines) == 5
    assert all("`cinquefoil up` trains it" in line for line in lines)


def test_without_files_only_what_the_deployment_says_itself_is_checked(tmp_path: Path) -> None:
    """A machine that renders the file for others has neither models nor certificates."""
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(GOOD + "tls: {ca_file: gone.pem}\n")
    command = ["config", "check", "--no-files", str(file)]
    assert CliRunner().invoke(app, command).exit_code == 0

    file.write_text(GOOD.replace("latency_s: 0.2", "latency_s: 0.001"))
    assert "no variant can meet 1 ms" in CliRunner().invoke(app, command).output


def test_schema_describes_every_section() -> None:
    schema = json.loads(CliRunner().invoke(app, ["config", "schema"]).output)
    assert set(schema["properties"]) >= {"version", "carbon", "nodes", "models", "planner"}
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("wrong", ["expired", "stranger"])
def test_a_certificate_that_others_will_not_trust_is_named(tmp_path: Path, wrong: str) -> None:
    """Expired, or of an authority that is lost: the sentence says which file, and why."""
    file, pki = tmp_path / "cinquefoil.yaml", tmp_path / "pki"
    file.write_text(GOOD)
    authority = secure(file, pki)
    fine, _ = checked(tmp_path, file.read_text())
    if wrong == "expired":
        authority.issue(Identity("planner"), days=-0.001)
    else:
        theirs = Authority.made(tmp_path / "other", "cinquefoil").issue(Identity("planner"), 1)
        (theirs / "tls.crt").replace(pki / "planner/tls.crt")
    status, (sentence,) = checked(tmp_path, file.read_text())

    assert (fine, status) == (0, 2)
    assert f"tls.certificate_file: {pki}/planner/tls.crt" in sentence
    assert ("expired at" if wrong == "expired" else "is not signed by") in sentence


def test_objectives_of_tokens_need_a_profile_that_knows_them(tmp_path: Path) -> None:
    """Objectives of tokens are refused without such a profile, or a fleet that can meet them."""
    runtime = "        runtime: {kind: openai, address: '127.0.0.1:1'}"
    text = GOOD.replace("latency_s: 0.2", "latency_s: 60, tpot_s: 0.001")
    for profile, known in (("gmacs_per_item: 0.7", False), ("gmacs_per_item: 37", True)):
        found = "{kind: language, parameters_b: 8}" if known else f"{{kind: analytic, {profile}}}"
        text = text.replace(f"{{kind: analytic, {profile}}}", f"{found}\n{runtime}")
    status, lines = checked(tmp_path, text)

    assert status == 2
    assert any("analytic knows no tokens, so that no plan keeps slo.tpot_s" in x for x in lines)
    assert any("no variant can meet slo.tpot_s: 1 ms are there for it" in x for x in lines), lines
