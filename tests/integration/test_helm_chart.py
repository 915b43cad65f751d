"""The Helm chart: what it renders is valid, restricted, consistent, and passes `config check`."""

import copy
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from services.cli.main import app
from services.kit.config import Deployment
from services.kit.config.loader import load
from tests.support.paths import ROOT

CHART = ROOT / "deploy/helm/cinquefoil"
EXAMPLES = sorted(CHART.glob("ci/*-values.yaml"))
CASES = {file.name: yaml.safe_load(file.read_text()) for file in EXAMPLES}
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SUITE_VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
INFO = 1  # of Helm's linter; warnings and errors are above
CUSTOM = {"ServiceMonitor"}  # kinds that Kubernetes does not define
OLDEST = {"claim-values.yaml": "1.34"}  # of devices' claims; else 1.30
VERSIONS = [
    (name, version)
    for name in CASES
    for version in (OLDEST.get(name, "1.30"), kubernetes_validate.latest_version())
]

Object = dict[str, Any]


def helm() -> Any:
    """Return Helm's library, loaded where a test uses it: it brings the Go runtime, 85 MB."""
    return importlib.import_module("helm_python")


def rendered(values: Object) -> list[Object]:
    """Return the objects that `helm install green --namespace ai` would make."""
    with helm().Chart.load(CHART) as chart:
        files = chart.render(values, name="green", namespace="ai")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


@functools.cache
def objects_of(name: str) -> list[Object]:
    """Return what an example of `ci/` renders to."""
    return rendered(CASES[name])


def pods(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Yield component, labels and spec of each pod."""
    for each in objects:
        pod = each if each["kind"] == "Pod" else each.get("spec", {}).get("template", {})
        if "spec" in pod and "containers" in pod["spec"]:
            labels = pod["metadata"]["labels"]
            yield labels["app.kubernetes.io/component"], labels, pod["spec"]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


@pytest.mark.parametrize("name", CASES)
def test_helm_lint_finds_nothing(name: str) -> None:
    """But that an icon is recommended, which is no warning."""
    found = helm().lint(CHART, CASES[name], strict=True)
    assert [each for each in found["messages"] if each["severity"] > INFO] == []


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_object_is_valid_for_the_oldest_and_the_newest_kubernetes(
    name: str, version: str
) -> None:
    """Strictly: an unknown field is a mistake."""
    for each in objects_of(name):
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("name", CASES)
def test_the_rendered_deployment_passes_config_check(name: str, tmp_path: Path) -> None:
    """With mutual TLS unless the values say otherwise."""
    (config,) = of_kind(objects_of(name), "ConfigMap")
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(config["data"]["cinquefoil.yaml"])
    result = CliRunner().invoke(app, ["config", "check", "--no-files", str(file)])
    assert result.exit_code == 0, result.output

    secured = CASES[name].get("tls", {}).get("enabled", True)
    assert (load(file).principals is not None) == secured


@pytest.mark.parametrize("name", CASES)
def test_pods_are_restricted_but_an_agent_with_rights(name: str) -> None:
    """As of the Pod Security Standards; an agent that cuts GPUs gets one capability, no more."""
    mig = CASES[name].get("agent", {}).get("access") == "mig"
    for component, _, spec in pods(objects_of(name)):
        privileged = mig and component == "agent"
        assert spec["securityContext"].get("runAsNonRoot", False) is not privileged
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        hosted = any("hostPath" in volume for volume in spec["volumes"])
        assert hosted is privileged
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert context["capabilities"].get("add", []) == ["SYS_ADMIN"] * privileged
            assert context["capabilities"]["drop"] == ["ALL"]
            assert context.get("allowPrivilegeEscalation", True) is privileged
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", CASES)
def test_no_pod_has_service_links_or_a_token(name: str) -> None:
    for _, _, spec in pods(objects_of(name)):
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", CASES)
def test_selectors_match_the_pods_of_one_component(name: str) -> None:
    """Of Services, budgets and policies; the ports they name are containers' ports."""
    found = list(pods(objects_of(name)))
    for each in objects_of(name):
        spec = each.get("spec", {})
        selector = {
            "Service": spec.get("selector"),
            "PodDisruptionBudget": spec.get("selector", {}).get("matchLabels"),
            "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels"),
        }.get(each["kind"])
        if selector is None:
            continue
        matched = [pod for pod in found if selector.items() <= pod[1].items()]
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert {pod[0] for pod in matched} == {component}
        if each["kind"] == "Service":
            for _, _, pod in matched:
                ports = {port["name"]: port for port in pod["containers"][0]["ports"]}
                for port in spec["ports"]:
                    assert ports[port["targetPort"]]["containerPort"] == port["port"]


def test_each_pod_mounts_its_own_certificates_only() -> None:
    """At the paths that the deployment file has, as the containers of compose.yaml do."""
    mounted = {
        (component, labels.get("cinquefoil.io/node", "")): sorted(
            mount["mountPath"].removeprefix("/var/lib/cinquefoil/pki/")
            for mount in spec["containers"][0]["volumeMounts"]
            if "/pki/" in mount["mountPath"]
        )
        for component, labels, spec in pods(objects_of("cpu-values.yaml"))
    }
    assert mounted == {
        ("carbon", ""): ["carbon"],
        ("planner", ""): ["planner"],
        ("router", ""): ["router"],
        ("predictor", ""): ["predictor"],
        ("agent", "cpu-0"): ["agent/cpu-0", "worker/cpu-0"],
        ("agent", "cpu-1"): ["agent/cpu-1", "worker/cpu-1"],
        ("test", ""): ["operator"],
    }
    secrets = {
        volume["secret"]["secretName"]
        for component, _, spec in pods(objects_of("cpu-values.yaml"))
        for volume in spec["volumes"]
        if "secret" in volume and component in {"planner", "router"}
    }
    assert secrets == {"planner-identity", "green-cinquefoil-router-tls"}


def test_workers_bind_a_name_that_their_pod_knows() -> None:
    """Kubernetes writes <pod>.<subdomain>.<namespace>.svc.<domain> into the pod's /etc/hosts."""
    objects = objects_of("cpu-values.yaml")
    (config,) = of_kind(objects, "ConfigMap")
    nodes = yaml.safe_load(config["data"]["cinquefoil.yaml"])["nodes"]
    for each in of_kind(objects, "StatefulSet"):
        node = each["spec"]["template"]["metadata"]["labels"]["cinquefoil.io/node"]
        pod = f"{each['metadata']['name']}-0"
        host = f"{pod}.{each['spec']['serviceName']}.ai.svc.cluster.local"
        assert nodes[node]["worker_host"] == host
        assert nodes[node]["address"] == f"{host}:8463"
        selector = each["spec"]["template"]["spec"]["nodeSelector"]
        assert selector == CASES["cpu-values.yaml"]["agent"]["nodeSelectors"][node]


@pytest.mark.parametrize(("leave_timeout_s", "least_s"), [(0, 10), (45.5, 55.5), (300, 310)])
def test_an_agent_is_not_killed_while_it_leaves(leave_timeout_s: float, least_s: float) -> None:
    """The kubelet waits longer than `leave_timeout_s` and the 10 s that draining may take."""
    values = copy.deepcopy(CASES["simulated-values.yaml"])
    for node in values["config"]["nodes"]:
        values["config"]["nodes"][node]["leave_timeout_s"] = leave_timeout_s
    agents = [spec for component, _, spec in pods(rendered(values)) if component == "agent"]
    assert agents
    assert all(spec["terminationGracePeriodSeconds"] > least_s for spec in agents)


def test_agents_that_join_say_who_they_are_by_the_downward_api() -> None:
    """With the variables as a kubelet resolves them, the deployment file has the node."""
    objects = objects_of("ha-values.yaml")
    (agents,) = of_kind(objects, "DaemonSet")
    spec = agents["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"cinquefoil.io/serves": "true"}
    assert spec["terminationGracePeriodSeconds"] > 90 + 10

    kubelet = {"spec.nodeName": "rack-7", "status.podIP": "10.0.0.7"}
    found: dict[str, str] = {}
    for each in spec["containers"][0]["env"]:
        source = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[each["name"]] = kubelet[source] if source else each["value"]
    address = found["CINQUEFOIL_NODE__ADDRESS"].replace("$(POD_IP)", found["POD_IP"])
    (config,) = of_kind(objects, "ConfigMap")
    given = yaml.safe_load(config["data"]["cinquefoil.yaml"])
    node = {"name": found["CINQUEFOIL_NODE__NAME"], "address": address}
    deployment = Deployment.model_validate({**given, "node": node})
    assert deployment.node.name == "rack-7"
    assert deployment.join is not None
    joined = deployment.join.node(deployment.join.zone, deployment.node.address)
    assert (joined.dial, joined.worker_host) == ("10.0.0.7:8463", "10.0.0.7")


def test_each_of_several_planners_has_an_address() -> None:
    """Names of a StatefulSet's pods under its headless Service; one that stands by is in order."""
    objects = objects_of("ha-values.yaml")
    (planner,) = of_kind(objects, "StatefulSet")
    (config,) = of_kind(objects, "ConfigMap")
    settings = yaml.safe_load(config["data"]["cinquefoil.yaml"])["planner"]
    name, service = planner["metadata"]["name"], planner["spec"]["serviceName"]
    count = planner["spec"]["replicas"]
    assert settings["address"] == [f"{name}-{i}.{service}:8462" for i in range(count)]
    assert settings["standby"]
    assert service in {each["metadata"]["name"] for each in of_kind(objects, "Service")}
    (container,) = planner["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["grpc"]["service"] == "liveness"


@pytest.mark.parametrize("name", CASES)
def test_probes_ask_the_health_ports_of_the_deployment_file(name: str) -> None:
    """The kubelet shows no certificate, which only these ports permit."""
    (config,) = of_kind(objects_of(name), "ConfigMap")
    given = yaml.safe_load(config["data"]["cinquefoil.yaml"])
    for component, labels, spec in pods(objects_of(name)):
        if component in {"test", "console"}:
            continue
        node = labels.get("cinquefoil.io/node", "")
        agent = given["nodes"][node] if node else given.get("join", {})
        settings = agent if component == "agent" else given[component]
        container = spec["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = container[probe]["grpc"]["port"]
            assert settings["health"] == f"0.0.0.0:{port}"


@pytest.mark.parametrize("name", CASES)
def test_services_start_as_in_compose(name: str) -> None:
    """The same commands and images, so that one build and one set of documents fits both."""
    for component, labels, spec in pods(objects_of(name)):
        if component == "test":
            continue
        container = spec["containers"][0]
        started = " ".join(container["args"])
        composed = COMPOSE["services"]["gpuagent" if component == "agent" else component]
        node = labels.get("cinquefoil.io/node", "")
        assert started == " ".join(composed["command"]).replace(
            *(("--node node-0", "--join") if "--join" in started else ("node-0", node))
        )
        cuda = CASES[name].get("agent", {}).get("access", "none") != "none"
        image = composed["image"].partition(":")[0].replace("cpu", "cuda" if cuda else "cpu")
        assert container["image"] == f"{image}:{SUITE_VERSION}"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"routr": {}}, "routr"),
        ({"router": {"replicas": 0}}, "/router/replicas"),
        ({"agent": {"access": "all"}}, "/agent/access"),
        ({"planner": {"replicas": 2}}, "give planner.database.existingSecret"),
        ({"config": {"join": {}}, "tls": {"enabled": True}}, "need tls.enabled: false"),
        ({"config": {"noodles": {}}}, "noodles"),
        ({"config": {"nodes": {"Rack_7": {"zone": "DE"}}}}, "Rack_7"),
        ({"config": {"nodes": {"n" * 40: {"zone": "DE"}}}}, "is longer than 52 characters"),
        (
            {"agent": {"nodeSelectors": {"rack-9": {}}}},
            "agent.nodeSelectors.rack-9: config.nodes has no such node, only node-0",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_place(change: Object, sentence: str) -> None:
    values = CASES["simulated-values.yaml"]
    changed = {key: {**values.get(key, {}), **settings} for key, settings in change.items()}
    with pytest.raises(helm().HelmError) as caught:
        rendered({**values, **changed})
    assert sentence in str(caught.value)


def test_a_deployment_must_be_given() -> None:
    """There is no default: an installation without models would serve nothing."""
    with pytest.raises(helm().HelmError, match="carbon"):
        rendered({})


def test_the_readme_lists_every_value_with_its_default() -> None:
    """And only those."""
    rows = [
        line.split("`")[1::2][:2]
        for line in (CHART / "README.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    listed: Object = {}
    for path, default in rows:
        *parents, leaf = path.split(".")
        place = listed
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = yaml.safe_load(default)
    assert listed == yaml.safe_load((CHART / "values.yaml").read_text())
