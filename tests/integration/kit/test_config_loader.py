"""The deployment file: mistakes have their line, the environment overrides, paths hold."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from services.datasets.catalog import folder
from services.kit.config import Deployment
from services.kit.config.carbon_sources import SyntheticSource, TraceSource
from services.kit.config.loader import ConfigError, config_path, load
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.conftest import Deploy

TEXT = """\
version: v1
carbon:
  zones:
    US-CAL:
      source: {kind: synthetic}
nodes:
  node-0:
    zone: US-CAL
models:
  digits:
    slo: {latency_s: 0.2}
    demand_rps: 10
    variants:
      small:
        file: models/small.onnx
        accuracy: 0.9
        profile: {kind: analytic, gmacs_per_item: 0.4}
"""


@pytest.fixture(autouse=True)
def _own_environment(deployment: Deploy) -> None:
    """The fixture takes this process's CINQUEFOIL_ variables away."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cinquefoil.yaml"


def mistakes(path: Path, text: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_the_smallest_file_gets_every_default(path: Path) -> None:
    """Loopback addresses, one port each, no metrics, an SLO at the 95th percentile."""
    path.write_text(TEXT)
    found = load(path)

    listens = [found.carbon, found.planner, *found.nodes.values(), found.router]
    assert [endpoint.listen for endpoint in listens] == [
        f"127.0.0.1:846{port}" for port in (1, 2, 3, 4)
    ]
    assert [endpoint.dial for endpoint in listens] == [endpoint.listen for endpoint in listens]
    assert {endpoint.metrics for endpoint in listens} == {""}
    assert found.models["digits"].slo.percentile == 95
    assert found.carbon.replay.speedup == 1
    assert found.carbon.zones["US-CAL"].average_window_s == timedelta(days=1).total_seconds()
    source = found.carbon.zones["US-CAL"].source
    assert isinstance(source, SyntheticSource)
    assert (source.mean_gco2e_per_kwh, source.std_gco2e_per_kwh) == (207.13, 69.23)


def test_others_dial_the_address_where_one_is_given(deployment: Deploy) -> None:
    changed = deployment({"planner": {"listen": "127.0.0.1:1", "address": "planner:1"}})

    assert changed.planner.dial == "planner:1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("demand_rps: 10", "demand_rsp: 10", "line 12: models.digits.demand_rsp: unknown key"),
        (
            "demand_rps: 10",
            "demand_rps: 0",
            "line 12: models.digits.demand_rps: must be greater than 0; got 0",
        ),
        (
            "demand_rps: 10",
            "demand_rps: .inf",
            "line 12: models.digits.demand_rps: must be a finite number; got inf",
        ),
        ("    demand_rps: 10\n", "", "line 10: models.digits.demand_rps: required, but missing"),
        (
            "zone: US-CAL",
            "zone: MARS",
            "line 8: nodes.node-0.zone: no zone 'MARS'; carbon.zones has US-CAL",
        ),
        ("version: v1", "version: v2", "line 1: version: must be 'v1'; got 'v2'"),
        ("kind: synthetic", "kind: guess", "line 5: carbon.zones.US-CAL.source"),
        (
            "synthetic}",
            "synthetic, setp_s: 1}",
            "line 5: carbon.zones.US-CAL.source.setp_s: unknown key; did you mean step_s?",
        ),
        (
            "    zone: US-CAL",
            "    zone: US-CAL\n    gpus: G",
            "line 9: nodes.node-0.gpus: must be a list",
        ),
        (
            "    zone: US-CAL",
            "    zone: US-CAL\n    cpu: {cores: 0}",
            "line 9: nodes.node-0.cpu.cores: must be greater than or equal to 1; got 0",
        ),
        ("  digits:", "  a/b:", "line 10: models.a/b: cannot be a name"),
        ("{kind: synthetic}", "[]", "line 5: carbon.zones.US-CAL.source: needs at least 1; got []"),
        ("  node-0:\n", "  node-0:\n    listen: here\n", "line 8: nodes.node-0.listen: address"),
    ],
    ids=[
        "unknown key", "out of range", "not finite", "missing", "zone that is not there", "version",
        "kind", "unknown key in a union", "a list", "one of two types", "name", "empty list",
        "address",
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line(path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT

    assert any(message in mistake for mistake in mistakes(path, TEXT.replace(old, new)))


def test_all_mistakes_are_reported_at_once_in_order_of_line(path: Path) -> None:
    wrong = TEXT.replace("latency_s: 0.2", "latency_s: -1").replace("accuracy: 0.9", "accuracy: x")
    found = mistakes(path, wrong)

    assert [line.split(":")[0] for line in found] == ["line 11", "line 16"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: file: must be a mapping"),
        ("- v1\n", "line 1: file: must be a mapping"),
        ("version: v1\ncarbon: [\n", "line 3: yaml: "),
        ("version: v1\nx: \x01\n", "yaml: unacceptable character"),
        ("1: 2\nversion: v1\n", "carbon: required, but missing"),
    ],
    ids=["empty", "a list", "not YAML", "not text", "a number as key"],
)
def test_a_file_that_is_not_a_deployment_is_refused(path: Path, text: str, message: str) -> None:
    assert mistakes(path, text)[0].startswith(message)


def test_what_is_no_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not text"):
        load(path)


def test_a_key_that_is_given_twice_is_refused(path: Path) -> None:
    """YAML keeps the last one: a whole model, node or section would be lost without a word."""
    assert mistakes(path, f"{TEXT}nodes: {{}}\n") == [
        "line 18: nodes: given twice; line 6 has it too"
    ]


def test_off_needs_no_quotes(path: Path) -> None:
    """To YAML 1.1 it is false."""
    path.write_text(TEXT.replace("    zone: US-CAL", "    zone: US-CAL\n    clock_loop: off"))
    assert load(path).nodes["node-0"].clock_loop == "off"


def test_a_batch_size_is_at_least_one(path: Path) -> None:
    assert mistakes(path, f"{TEXT}planner: {{batch_sizes: [0]}}\n") == [
        "line 18: planner.batch_sizes.0: must be greater than or equal to 1; got 0"
    ]


def test_no_strategy_gets_more_than_five_minutes(path: Path) -> None:
    """CLOVER ends an optimisation after five minutes (section 4.2)."""
    assert mistakes(path, f"{TEXT}planner: {{time_limit_s: 301}}\n") == [
        "line 18: planner.time_limit_s: must be less than or equal to 300; got 301"
    ]


def test_a_missing_file_is_reported_by_name(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cinquefoil\.yaml: file: cannot be read"):
        load(path)


def test_the_environment_overrides_single_values_of_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(TEXT + "planner: {strategy: base, seed: 7}\n")
    monkeypatch.setenv("CINQUEFOIL_PLANNER__STRATEGY", "annealing")
    monkeypatch.setenv("CINQUEFOIL_LOG_LEVEL", "debug")
    found = load(path)

    assert (found.planner.strategy, found.planner.seed) == ("annealing", 7)
    assert found.log_level == "debug"


def test_a_wrong_value_in_the_environment_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINQUEFOIL_PLANNER__STRATEGY", "luck")

    assert "planner.strategy" in mistakes(path, TEXT)[0]


@pytest.mark.parametrize("name", ["CINQUEFOIL_PLANER__SEED", "CINQUEFOIL_SEED"])
def test_an_unknown_section_in_the_environment_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A mistyped override must not be ignored in silence."""
    monkeypatch.setenv(name, "1")

    assert f"{name}: unknown setting; sections are ACCESS" in mistakes(path, TEXT)[0]


def test_where_data_lies_is_no_setting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell in which `CINQUEFOIL_DATA` names a folder can start services, too."""
    monkeypatch.setenv("CINQUEFOIL_DATA", str(path.parent))
    path.write_text(TEXT)

    assert folder() == path.parent
    assert load(path).router.listen == "127.0.0.1:8464"


def test_variables_that_kubernetes_sets_for_services_are_no_settings(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number at the same name was meant as a setting, and is refused."""
    links = {
        "CINQUEFOIL_SERVICE_HOST": "10.0.0.7",
        "CINQUEFOIL_ROUTER_SERVICE_HOST": "10.0.0.7",
        "CINQUEFOIL_ROUTER_SERVICE_PORT": "8464",
        "CINQUEFOIL_ROUTER_SERVICE_PORT_HTTP": "8466",
        "CINQUEFOIL_ROUTER_PORT": "tcp://10.0.0.7:8464",
        "CINQUEFOIL_ROUTER_PORT_8464_TCP": "tcp://10.0.0.7:8464",
        "CINQUEFOIL_ROUTER_PORT_8464_TCP_ADDR": "10.0.0.7",
    }
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    path.write_text(TEXT)
    assert load(path).router.listen == "127.0.0.1:8464"

    monkeypatch.setenv("CINQUEFOIL_ROUTER_PORT", "8464")
    assert "CINQUEFOIL_ROUTER_PORT: unknown setting" in mistakes(path, TEXT)[0]


def test_an_unknown_key_in_the_environment_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINQUEFOIL_PLANNER__SEDE", "1")

    assert mistakes(path, TEXT) == ["planner.sede: unknown key; did you mean seed?"]


def test_relative_paths_are_relative_to_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to where a service was started; absolute ones stay."""
    text = TEXT.replace("{kind: synthetic}", "{kind: trace, path: traces/cal.csv}")
    path.write_text(f"{text}planner: {{database: /srv/plans.sqlite3}}\n")
    monkeypatch.chdir("/")
    found = load(path)
    source = found.carbon.zones["US-CAL"].source

    assert isinstance(source, TraceSource)
    assert source.path == path.parent / "traces/cal.csv"
    assert found.models["digits"].variants["small"].file == path.parent / "models/small.onnx"
    assert found.nodes["node-0"].state_dir == path.parent / "out/state"
    assert found.planner.database == Path("/srv/plans.sqlite3")


def test_a_database_may_be_a_url_whose_password_is_never_printed(path: Path) -> None:
    """`launch` logs the settings to places that many people read."""
    url = "postgresql://me:secret@db:5432/plans?password=secret"
    path.write_text(f"{TEXT}planner: {{database: {url!r}}}\n")
    found = load(path)

    assert found.planner.database == url
    assert "secret" not in found.model_dump_json()
    assert "postgresql://me:***@db:5432/plans" in found.model_dump_json()


def test_the_url_of_another_database_is_no_file_name(path: Path) -> None:
    path.write_text(f"{TEXT}planner: {{database: 'mysql://db/plans'}}\n")

    with pytest.raises(ConfigError, match=r"planner\.database: must be a file, or a URL"):
        load(path)


def test_the_file_is_the_one_given_or_the_environments_or_here(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config_path() == Path("cinquefoil.yaml")
    monkeypatch.setenv("CINQUEFOIL_CONFIG", "/etc/cinquefoil.yaml")
    assert config_path() == Path("/etc/cinquefoil.yaml")
    assert config_path(path) == path


def test_a_deployment_survives_being_printed_and_read_again(deployment: Deploy) -> None:
    """`launch` logs the whole deployment."""
    found = deployment({})

    again = Deployment.model_validate(found.model_dump(mode="json"))
    assert again.model_dump() == found.model_dump()
    assert yaml.safe_load(yaml.safe_dump(found.model_dump(mode="json")))


def test_the_examples_in_the_repository_are_valid() -> None:
    root = ROOT
    for name in ("cinquefoil.yaml", "deploy/compose/cinquefoil.yaml"):
        assert len(load(root / name).models["digits"].variants) >= 4, name
    assert (
        load(root / "examples/pipeline/cinquefoil.yaml")
        .models["digits"]
        .variants["conv-384"]
        .stages
    )
    for name in ("examples/generative/cinquefoil.yaml", "deploy/compose/generative.yaml"):
        found = load(root / name)
        assert found.predictor is not None
        assert found.models["chat"].discipline == "ssjf", name


def test_a_mistake_in_a_url_is_shown_without_its_password(path: Path) -> None:
    source = "{kind: neso, url: 'https://ada:hunter2@x.org'}"
    (found,) = mistakes(path, TEXT.replace("{kind: synthetic}", source))
    assert "carbon.zones.US-CAL.source.url: must match" in found
    assert "hunter2" not in found


CERTIFICATES = "tls: {certificate_file: a.pem, key_file: a.key, ca_file: ca.pem"


def server(said: str) -> tuple[str]:
    """Return the runtime of the deployment's variant, whose section is the last."""
    return (f"        runtime: {{kind: external, {said}}}",)


BEYOND = "planner: {listen: '0.0.0.0:1'}"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ((BEYOND,), "planner.listen: 0.0.0.0:1 listens beyond this machine: give tls and access"),
        (("router: {metrics: '10.0.0.1:9'}",), "router.metrics: 10.0.0.1:9 listens beyond"),
        ((BEYOND, CERTIFICATES + "}"), "listens beyond this machine: give access"),
        (
            (BEYOND, CERTIFICATES + ", require_client_certificate: false}", "access: {}"),
            "tls.require_client_certificate: must be true, for planner.listen",
        ),
        (("tls: {certificate_file: a.pem}",), "ca_file: needed to check the certificates of"),
        (("access: {roles: {viewer: [x]}}",), "access.roles: identities come from certificates"),
        (("access: {insecure: true, roles: {viewer: [x]}}",), "permits everything"),
        (("access: {roles: {admin: [x]}}",), "access.roles.admin"),
        (("access: {roles: {viewer: ['a*b']}}",), "access.roles.viewer.0"),
        (("router: {token_listen: '127.0.0.1:1'}",), "router.token_listen: give access.tokens"),
        (("console: {listen: '0.0.0.0:1'}",), "console.listen: 0.0.0.0:1 is beyond this machine"),
        (("console: {allow_changes: true}",), "allow_changes: give token_file"),
        (server("address: 'gpu-3:8001'"), "runtime.address: gpu-3:8001 is beyond this machine"),
        (server("command: [x, '{port}'], tls: {}"), "tls: only with address"),
        (server("address: '127.0.0.1:1', environment_file: f"), "environment_file: only with co"),
    ],
)
def test_what_others_can_reach_says_who_may_use_it(
    path: Path, said: tuple[str, ...], message: str
) -> None:
    """Both `config check` and services refuse a port that is open to everybody who finds it."""
    assert message in "\n".join(mistakes(path, "\n".join((TEXT, *said))))


@pytest.mark.parametrize(
    "said",
    [
        (BEYOND, "access: {insecure: true}"),
        (BEYOND, CERTIFICATES + "}", "access: {}"),
        (*server("address: 'gpu-3:8001', tls: {}"),),
        (*server("address: 'gpu-3:8001'"), "access: {insecure: true}"),
        (),
    ],
)
def test_who_says_so_may_listen_anywhere(path: Path, said: tuple[str, ...]) -> None:
    path.write_text("\n".join((TEXT, *said)))
    assert load(path).version == "v1"


def test_each_service_has_its_own_certificate(path: Path) -> None:
    path.write_text(TEXT + "tls: {certificate_file: 'p/{service}/{node}/c', ca_file: ca}\n")
    found = load(path)
    planner, agent = found.identity("planner"), found.identity("agent", "node-0")

    assert planner is not None
    assert agent is not None
    assert planner.certificate_file == path.parent / "p/planner/c"
    assert agent.certificate_file == path.parent / "p/agent/node-0/c"
    assert planner.ca_file == agent.ca_file == path.parent / "ca"
