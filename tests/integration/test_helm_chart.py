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
from services.gpuagent.node_place import joining
from services.kit.config.loader import load
from services.kit.rpc.certificates import server_name
from services.local.pki import identities
from tests.support.paths import ROOT

CHART = ROOT / "deploy/helm/cinquefoil"
EXAMPLES = sorted(CHART.glob("ci/*-values.yaml"))
CASES = {file.name: yaml.safe_load(file.read_text()) for file in EXAMPLES}
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SUITE_VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
INFO = 1  # of Helm's linter; warnings and errors are above
CUSTOM = {
    "ServiceMonitor",
    "PrometheusRule",
    "Certificate",
}  # kinds that Kubernetes does not define
OLDEST = {"claim-values.yaml": "1.34"}  # else what the chart says; the first with ResourceClaims
NEWEST = kubernetes_validate.latest_version()
HEALTH_PORT = 8471
ADDRESSES = "listen", "metrics", "http_listen", "token_listen", "picker_listen"

Object = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _read_each_schema_once() -> Iterator[None]:
    """Cache schemas: the validator reads a megabyte again for every object."""
    with pytest.MonkeyPatch.context() as patch:
        read = kubernetes_validate.utils.schema_contents
        patch.setattr(kubernetes_validate.utils, "schema_contents", functools.cache(read))
        yield


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


def component_of(found: Object) -> str:
    """Return the component that an object is of."""
    component: str = found["metadata"]["labels"]["app.kubernetes.io/component"]
    return component


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


@pytest.mark.parametrize("name", CASES)
def test_helm_lint_finds_nothing(name: str) -> None:
    """No warning: only the information that an icon is recommended."""
    found = helm().lint(CHART, CASES[name], strict=True)
    assert [each for each in found["messages"] if each["severity"] > INFO] == []


@pytest.mark.parametrize("newest", [False, True], ids=["oldest", "newest"])
@pytest.mark.parametrize("name", CASES)
def test_every_object_is_valid_for_the_oldest_and_the_newest_kubernetes(
    name: str, newest: bool
) -> None:
    """Strictly: an unknown field is a mistake."""
    version = NEWEST if newest else OLDEST.get(name, "1.30")
    for each in objects_of(name):
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("name", CASES)
def test_the_rendered_deployment_passes_config_check(name: str, tmp_path: Path) -> None:
    """With mutual TLS unless the values say otherwise."""
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(config_of(name)))
    result = CliRunner().invoke(app, ["config", "check", "--no-files", str(file)])
    assert result.exit_code == 0, result.output

    secured = CASES[name].get("tls", {}).get("enabled", True)
    assert (load(file).principals is not None) == secured


@pytest.mark.parametrize("name", CASES)
def test_pods_are_restricted_but_an_agent_with_rights(name: str) -> None:
    """Pods meet the restricted standard; an agent that cuts GPUs gets one capability, no more."""
    mig = CASES[name].get("agent", {}).get("access") == "mig"
    for component, _, spec in pods(objects_of(name)):
        privileged = mig and component == "agent"
        assert spec["securityContext"].get("runAsNonRoot", False) is not privileged
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        given = [each for each in spec.get("initContainers", ()) if each["name"] == "own-folders"]
        for each in given:  # the only one that is root, and that only gives folders away
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        hosted = {volume["name"] for volume in spec["volumes"] if "hostPath" in volume}
        wanted = {"state"} if privileged else set()
        if CASES[name].get("models", {}).get("hostPath") and component == "agent":
            wanted.add("models")
        assert hosted == wanted
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            if container in given:
                continue
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
    assert mounted.pop(("front", "")) == []  # at /etc/front
    assert mounted == {
        ("carbon", ""): ["carbon"],
        ("planner", ""): ["planner"],
        ("router", ""): ["router"],
        ("predictor", ""): ["predictor"],
        ("batch", ""): ["batch"],
        ("agent", "cpu-0"): ["agent/cpu-0", "worker/cpu-0"],
        ("agent", "cpu-1"): ["agent/cpu-1", "worker/cpu-1"],
        ("test", ""): ["operator"],
        ("cli", ""): ["operator"],
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
    nodes = config_of("cpu-values.yaml")["nodes"]
    for each in of_kind(objects, "StatefulSet"):
        node = each["spec"]["template"]["metadata"]["labels"].get("cinquefoil.io/node")
        if node is None:  # the planner
            continue
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


@pytest.mark.parametrize("name", CASES)
def test_services_start_as_in_compose(name: str) -> None:
    """Commands and images are compose's, so that one build and one set of documents fits both."""
    for component, labels, spec in pods(objects_of(name)):
        if component in {"test", "cli", "front"}:
            continue
        container = spec["containers"][0]
        started = " ".join(container["args"]).replace("--join", "--node joined")
        composed = COMPOSE["services"]["gpuagent" if component == "agent" else component]
        node = labels.get("cinquefoil.io/node", "")
        assert started == " ".join(composed["command"]).replace("node-0", node)
        cuda = CASES[name].get("agent", {}).get("access", "none") != "none"
        image = composed["image"].partition(":")[0].replace("cpu", "cuda" if cuda else "cpu")
        assert container["image"] == f"{image}:{SUITE_VERSION}"


def config_of(name: str) -> Object:
    """Return the deployment file of an example."""
    maps = of_kind(objects_of(name), "ConfigMap")
    (config,) = (each["data"] for each in maps if "cinquefoil.yaml" in each.get("data", {}))
    found: Object = yaml.safe_load(config["cinquefoil.yaml"])
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_kubelet_probes_where_the_service_answers_in_plaintext(name: str) -> None:
    """Of every service; the console has pages only."""
    config = config_of(name)
    for component, labels, spec in pods(objects_of(name)):
        if component in {"test", "cli", "console", "front"}:
            continue
        node = labels.get("cinquefoil.io/node", "")
        section = config.get(component) or config["nodes"].get(node) or config["join"]
        assert section["health"] == f"0.0.0.0:{HEALTH_PORT}"
        (container,) = spec["containers"]
        assert {"name": "health", "containerPort": HEALTH_PORT} in container["ports"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["grpc"]["port"] == HEALTH_PORT
        assert container["livenessProbe"]["grpc"]["service"] == "liveness"
        stands_by = component == "planner" and config["planner"].get("standby", False)
        ready = container["readinessProbe"]["grpc"]["service"]
        assert ready == ("liveness" if stands_by else "readiness")


def resolved_environment(container: Object, pod: Object) -> dict[str, str]:
    """Return a container's variables as the kubelet makes them, in order."""
    found: dict[str, str] = {}
    for each in container["env"]:
        if "valueFrom" in each:
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            found[each["name"]] = pod[path]
        else:
            value = each["value"]
            for name, known in found.items():
                value = value.replace(f"$({name})", known)
            found[each["name"]] = value
    return found


@pytest.mark.parametrize(("topology", "zone"), [("eu-west-3a", "FR"), ("", "DE")])
def test_an_agent_that_joins_knows_its_name_address_and_zone(
    topology: str, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the downward API alone: no right to read anything of the cluster."""
    (daemons,) = of_kind(objects_of("join-values.yaml"), "DaemonSet")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    pod = {
        "status.podIP": "10.1.2.3",
        "spec.nodeName": "rack-7",
        "metadata.labels['topology.kubernetes.io/zone']": topology,
    }
    for name, value in resolved_environment(container, pod).items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(config_of("join-values.yaml")))
    deployment, name = joining(load(file))
    node = deployment.nodes[name]
    tls = deployment.identity("agent", name)

    assert container["args"] == ["gpuagent", "serve", "--join"]
    assert (name, node.zone, node.dial) == ("rack-7", zone, "10.1.2.3:8463")
    assert tls is not None
    assert server_name(tls, node.dial) == "green-cinquefoil-agent"
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(Path(str(tls.key_file)).parent) in mounts
    worker = deployment.identity("worker", name)
    assert worker is not None
    assert str(Path(str(worker.key_file)).parent) in mounts


RBAC = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def test_the_chart_requests_one_right_where_a_label_of_nodes_is_read_and_else_for_none() -> None:
    """To get nodes, for the agents' account only; the other pods keep theirs."""
    for name in CASES:
        if name not in {"zone-label-values.yaml", "servers-values.yaml", "objects-values.yaml"}:
            assert not RBAC & {each["kind"] for each in objects_of(name)}
    objects = objects_of("zone-label-values.yaml")
    (role,), (binding,) = of_kind(objects, "ClusterRole"), of_kind(objects, "ClusterRoleBinding")
    account = {"kind": "ServiceAccount", "name": "green-cinquefoil-agent", "namespace": "ai"}

    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert binding["subjects"] == [account]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    for component, _, spec in pods(objects):
        own = "green-cinquefoil-agent" if component == "agent" else "green-cinquefoil"
        assert spec["serviceAccountName"] == own


def test_a_router_reads_what_its_pools_name_and_nothing_else() -> None:
    """Pods of an InferencePool here, slices of a Service there; only the router has the token."""
    objects = objects_of("servers-values.yaml")
    rules = {
        role["metadata"]["namespace"]: {
            rule["resources"][0]: (rule["apiGroups"][0], tuple(rule["verbs"]))
            for rule in role["rules"]
        }
        for role in of_kind(objects, "Role")
    }
    read = ("get", "list", "watch")

    assert rules == {
        "ai": {"pods": ("", read), "inferencepools": ("inference.networking.k8s.io", read)},
        "models": {"endpointslices": ("discovery.k8s.io", read)},
    }
    for binding in of_kind(objects, "RoleBinding"):
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == ("green-cinquefoil-router", "ai")
    for component, _, spec in pods(objects):
        mounted = {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
        of_router = component == "router"
        assert (spec["serviceAccountName"] == "green-cinquefoil-router") is of_router
        assert ("/var/run/secrets/kubernetes.io/serviceaccount" in mounted) is of_router


def test_a_planner_changes_what_its_values_name_and_nothing_else() -> None:
    """Rights at the API server: Model objects here, one Deployment's number there, nodes."""
    objects = objects_of("objects-values.yaml")
    found = [
        (role["metadata"].get("namespace", ""), resource, rule.get("resourceNames"), rule["verbs"])
        for kind in ("Role", "ClusterRole")
        for role in of_kind(objects, kind)
        if "planner" in role["metadata"]["name"]
        for rule in role["rules"]
        for resource in rule["resources"]
    ]
    assert found == [
        ("", "models", None, ["list", "watch"]),
        ("", "models/status", None, ["patch"]),
        ("", "configmaps", ["green-cinquefoil-models"], ["patch"]),
        ("", "events", None, ["create"]),
        ("models", "deployments/scale", ["vllm"], ["get", "patch"]),
        ("", "nodes", None, ["get", "patch"]),
    ]
    for component, _, spec in pods(objects):
        mounted = {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
        has = "/var/run/secrets/kubernetes.io/serviceaccount" in mounted
        assert has is (component in {"planner", "router"})
        volumes = {each["name"]: each for each in spec["volumes"]}
        sources = [each["configMap"]["name"] for each in volumes["config"]["projected"]["sources"]]
        assert sources == ["green-cinquefoil-config", "green-cinquefoil-models"]


def test_who_reads_the_zone_has_no_capability_though_the_agent_has() -> None:
    """An agent that cuts GPUs is root with CAP_SYS_ADMIN; its first container needs neither."""
    values = copy.deepcopy(CASES["zone-label-values.yaml"])
    values["agent"]["access"] = "mig"
    (spec,) = (spec for component, _, spec in pods(rendered(values)) if component == "agent")
    (first,), (agent,) = spec["initContainers"], spec["containers"]

    assert agent["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert first["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_token_is_the_first_containers_and_the_agent_reads_what_that_wrote(
    tmp_path: Path,
) -> None:
    """Workers run what users give them: they must not find a token of the cluster."""
    objects = objects_of("zone-label-values.yaml")
    (spec,) = (spec for component, _, spec in pods(objects) if component == "agent")
    (first,), (agent,) = spec["initContainers"], spec["containers"]
    token = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a folder
    mounted = {each["mountPath"]: each["name"] for each in first["volumeMounts"]}
    (volume,) = (each for each in spec["volumes"] if each["name"] == mounted[token])
    written = first["args"][first["args"].index("--file") + 1]
    environment = {each["name"]: each.get("value") for each in agent["env"]}
    help_text = CliRunner().invoke(app, [*first["args"][:2], "--help"]).output

    assert "projected" in volume
    assert volume["name"] not in {each["name"] for each in agent["volumeMounts"]}
    assert environment["CINQUEFOIL_NODE__ZONE_FILE"] == written
    assert str(Path(written).parent) in {each["mountPath"] for each in agent["volumeMounts"]}
    assert all(option in help_text for option in first["args"] if option.startswith("--"))


@pytest.mark.parametrize(
    ("name", "path", "value", "restarted"),
    [
        ("cpu-values.yaml", "models.digits.slo.latency_s", 0.3, set()),
        ("cpu-values.yaml", "planner.objective.goals", {"clover": 1}, set()),
        ("cpu-values.yaml", "planner.strategy", "base", set()),
        ("cpu-values.yaml", "log_level", "debug", set()),
        ("cpu-values.yaml", "nodes.cpu-0.cpu.cores", 1, {"cpu-0"}),
        ("cpu-values.yaml", "planner.max_processes", 2, {"planner"}),
        ("cpu-values.yaml", "router.max_request_bytes", 2**20, {"router", "batch"}),
        ("cpu-values.yaml", "carbon.zones.DE.source.kind", "csv", {"carbon"}),
        ("join-values.yaml", "models.digits.demand_rps", 20, set()),
        ("join-values.yaml", "models.digits.variants.conv-384.sha256", "0" * 64, {"joined"}),
        ("join-values.yaml", "join.zone_of_topology", {"eu-west-3a": "FR"}, {"joined"}),
        (
            "join-values.yaml",
            "join.zone_of_topology",
            {"a": "FR", "b": "PL"},
            {"joined", "planner"},
        ),
    ],
)
def test_an_upgrade_restarts_only_pods_whose_service_cannot_take_the_setting_over(
    name: str, path: str, value: Any, restarted: set[str]
) -> None:
    """An objective restarts none: the mounted file is followed."""

    def pods_of(values: Object) -> dict[str, Object]:
        return {
            labels.get("cinquefoil.io/node", component): each["spec"]["template"]["metadata"]
            for each in rendered(values)
            for component, labels, _ in pods([each])
            if "template" in each.get("spec", {})
        }

    values = copy.deepcopy(CASES[name])
    *parents, last = path.split(".")
    section = values["config"]
    for key in parents:
        section = section.setdefault(key, {})
    before, section[last] = pods_of(values), value
    after = pods_of(values)

    assert {each for each in before if before[each] != after[each]} == restarted


def test_planners_that_stand_by_have_addresses_of_their_own_and_one_database() -> None:
    objects = objects_of("ha-values.yaml")
    (planner,) = of_kind(objects, "StatefulSet")
    (service,) = (
        each
        for each in of_kind(objects, "Service")
        if each["metadata"]["name"] == planner["spec"]["serviceName"]
    )
    config = config_of("ha-values.yaml")["planner"]
    (container,) = planner["spec"]["template"]["spec"]["containers"]
    database = next(e for e in container["env"] if e["name"] == "CINQUEFOIL_PLANNER__DATABASE")

    assert service["spec"]["clusterIP"] == "None"
    assert config["standby"] is True
    assert config["address"] == [
        f"green-cinquefoil-planner-{at}.green-cinquefoil-planner.ai.svc.cluster.local:8462"
        for at in range(planner["spec"]["replicas"])
    ]
    assert database["valueFrom"]["secretKeyRef"] == {"name": "planner-database", "key": "url"}
    assert not of_kind(objects, "PersistentVolumeClaim")


@pytest.mark.parametrize("name", CASES)
def test_no_single_machine_has_every_carbon_service(name: str) -> None:
    """Two, spread over machines: the planner that leads next finds one."""
    (carbon,) = (
        each
        for each in of_kind(objects_of(name), "Deployment")
        if each["metadata"]["name"].endswith("-carbon")
    )
    (spread,) = carbon["spec"]["template"]["spec"]["topologySpreadConstraints"]

    assert carbon["spec"]["replicas"] == 2
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"] == carbon["spec"]["selector"]


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("simulated-values.yaml", set()),
        ("read-values.yaml", {"VISIBLE_DEVICES", "DRIVER_CAPABILITIES", "MIG_MONITOR_DEVICES"}),
        ("claim-values.yaml", {"DRIVER_CAPABILITIES"}),
        (
            "mig-values.yaml",
            {
                "VISIBLE_DEVICES",
                "DRIVER_CAPABILITIES",
                "MIG_MONITOR_DEVICES",
                "MIG_CONFIG_DEVICES",
            },
        ),
    ],
)
def test_an_agent_has_the_access_to_gpus_that_it_was_given(name: str, variables: set[str]) -> None:
    (agent,) = (spec for component, _, spec in pods(objects_of(name)) if component == "agent")
    (container,) = agent["containers"]
    names = {each["name"] for each in container.get("env", ())}
    templates = of_kind(objects_of(name), "ResourceClaimTemplate")

    assert {each.removeprefix("NVIDIA_") for each in names if "NVIDIA" in each} == variables
    assert bool(templates) is (name == "claim-values.yaml")
    for template in templates:
        (claim,) = agent["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
        assert container["resources"]["claims"] == [{"name": claim["name"]}]


@pytest.mark.parametrize(
    ("name", "kind", "read_only"),
    [
        ("simulated-values.yaml", "emptyDir", None),
        ("cpu-values.yaml", "persistentVolumeClaim", True),
        ("join-values.yaml", "hostPath", None),
        ("claim-values.yaml", "image", None),
    ],
)
def test_models_come_from_where_the_values_say(
    name: str, kind: str, read_only: bool | None
) -> None:
    """The agent itself never writes them; the init containers that bring them do."""
    for component, _, spec in pods(objects_of(name)):
        if component != "agent":
            continue
        (volume,) = (each for each in spec["volumes"] if each["name"] == "models")
        (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "models")
        assert set(volume) == {"name", kind}
        assert volume[kind].get("readOnly") is read_only
        assert mount["readOnly"] is True
        assert mount["mountPath"] == "/var/lib/cinquefoil/models"
        brings = [each.get("args") for each in spec.get("initContainers", ())]
        fetched = bool(CASES[name]["models"].get("fetch"))
        assert (["models", "fetch"] in brings) is fetched


@pytest.mark.parametrize("name", CASES)
def test_policies_let_in_callers_and_no_others(name: str) -> None:
    """The ports are those that the deployment file has."""
    config = config_of(name)
    policies = of_kind(objects_of(name), "NetworkPolicy")
    served = {component for component, _, _ in pods(objects_of(name))} - {"test", "cli"}
    assert {component_of(each) for each in policies} == served
    for each in policies:
        component = component_of(each)
        if component == "front":
            assert each["spec"]["ingress"] == [{"ports": [{"port": 8443}]}]
            continue
        section = config["join"] if component == "agent" and "join" in config else None
        section = section or config.get(component) or next(iter(config["nodes"].values()))
        ports = {
            port["port"]
            for rule in each["spec"]["ingress"]
            for port in rule["ports"]
            if "endPort" not in port
        }
        addresses = {section.get(key, "") for key in ADDRESSES} - {""}
        assert ports == {int(address.rpartition(":")[2]) for address in addresses}
        assert each["spec"]["policyTypes"] == ["Ingress"]


def test_the_front_stands_before_the_port_of_tokens_and_knows_the_router() -> None:
    """The router's headless Service and identity; the router's key stays the router's."""
    objects = objects_of("cpu-values.yaml")
    (found,) = (
        each["data"] for each in of_kind(objects, "ConfigMap") if "envoy.yaml" in each["data"]
    )
    envoy = yaml.safe_load(found["envoy.yaml"])
    (names,) = yaml.safe_load(found["authority.yaml"])["resources"][0]["validation_context"][
        "match_typed_subject_alt_names"
    ]
    places = [
        each["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        for each in envoy["static_resources"]["clusters"]
    ]
    (pod,) = (spec for component, _, spec in pods(objects) if component == "front")
    volumes = {each["name"]: each for each in pod["volumes"]}
    router = config_of("cpu-values.yaml")["router"]

    assert {each["socket_address"]["address"] for each in places} == {
        "green-cinquefoil-router-headless"
    }
    assert [f"0.0.0.0:{each['socket_address']['port_value']}" for each in places] == [
        router["token_listen"],
        router["http_listen"],
    ]
    assert names["matcher"]["exact"] == "spiffe://cinquefoil/router"
    assert set(found) == {"envoy.yaml", "certificate.yaml", "authority.yaml"}
    assert volumes["tls"]["secret"]["secretName"] == "green-cinquefoil-front-tls"
    assert volumes["router"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    limit = pod["containers"][0]["resources"]["limits"]["memory"]
    (heap,) = (
        each["typed_config"]["max_heap_size_bytes"]
        for each in envoy["overload_manager"]["resource_monitors"]
        if each["name"].endswith("fixed_heap")
    )
    assert (limit, heap) == ("512Mi", 384 * 2**20)


def test_the_port_of_tokens_is_the_front_s_or_where_there_is_none_the_clients() -> None:
    """By Services and by policies."""

    def reached(values: Object) -> tuple[bool, bool]:
        objects = rendered(values)
        (service,) = (
            each
            for each in of_kind(objects, "Service")
            if each["metadata"]["name"] == "green-cinquefoil-router"
        )
        (policy,) = (e for e in of_kind(objects, "NetworkPolicy") if component_of(e) == "router")
        clients = next(
            rule for rule in policy["spec"]["ingress"] if rule["from"] == [{"podSelector": {}}]
        )
        ports = {each["port"] for each in service["spec"]["ports"]}
        return 8474 in ports, {"port": 8474} in clients["ports"]

    values = CASES["cpu-values.yaml"]
    assert reached(values) == (False, False)
    assert reached({**values, "front": {"enabled": False}}) == (True, True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"routr": {}}, "routr"),
        ({"router": {"replicas": 0}}, "/router/replicas"),
        ({"agent": {"access": "all"}}, "/agent/access"),
        ({"agent": {"observe": True}}, "agent.observe: needs agent.access read, claim or mig"),
        ({"config": {"noodles": {}}}, "noodles"),
        ({"config": {"nodes": {"Rack_7": {"zone": "DE"}}}}, "Rack_7"),
        ({"config": {"access": {}}}, "say so in config: {access: {insecure: true}}"),
        ({"planner": {"replicas": 2}}, "give planner.database.existingSecret"),
        ({"config": {"nodes": {"n" * 40: {"zone": "DE"}}}}, "is longer than 52 characters"),
        (
            {"agent": {"nodeSelectors": {"rack-9": {}}}},
            "agent.nodeSelectors.rack-9: config.nodes has no such node, only node-0",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_place(change: Object, sentence: str) -> None:
    values = CASES["simulated-values.yaml"]
    ((key, changed),) = change.items()
    with pytest.raises(helm().HelmError) as caught:
        rendered({**values, key: {**values.get(key, {}), **changed}})
    assert sentence in str(caught.value)


def millicores(container: Object) -> float:
    cpu = container["resources"]["requests"].get("cpu", "0")
    return float(cpu[:-1]) if cpu.endswith("m") else 1000 * float(cpu)


def test_the_example_for_trying_fits_a_machine_of_two_cpus_also_while_it_is_upgraded() -> None:
    """Kubernetes' own pods take up to half a CPU; a rollout starts one more of each Deployment."""
    requested = 0.0
    for each in objects_of("simulated-values.yaml"):
        for _, _, spec in pods([each]):
            replicas = each.get("spec", {}).get("replicas", 1) + (each["kind"] == "Deployment")
            most = max(
                sum(map(millicores, spec["containers"])),
                *map(millicores, spec.get("initContainers", [spec["containers"][0]])),
            )
            requested += replicas * most
    assert requested <= 1500


def test_one_container_tests_every_service() -> None:
    """By the command that a user has; of planners, one has to serve."""
    (pod,) = (e for e in objects_of("cpu-values.yaml") if e["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    services = ["carbon", "planner", "router", "predictor", "batch", "cpu-0", "cpu-1"]
    assert container["args"] == ["health", *services]


def test_each_component_is_scraped_once_under_the_job_that_alerts_name() -> None:
    """By one Service, whose label is the job; with the operator's certificate by default."""
    objects = objects_of("cpu-values.yaml")
    services = of_kind(objects, "Service")
    monitors = of_kind(objects, "ServiceMonitor")
    scraped = {}
    for each in monitors:
        spec = each["spec"]
        wanted = spec["selector"]["matchLabels"].items()
        (service,) = (e for e in services if wanted <= e["metadata"]["labels"].items())
        (endpoint,) = spec["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert service["metadata"]["labels"][spec["jobLabel"]] == "cinquefoil"
        assert endpoint["tlsConfig"]["cert"]["secret"]["name"] == "green-cinquefoil-operator-tls"
        scraped[component_of(each)] = endpoint["tlsConfig"]["serverName"]
    (rule,) = of_kind(objects, "PrometheusRule")
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    auto = {**CASES["cpu-values.yaml"], "serviceMonitor": {"enabled": "auto"}}

    assert scraped == {
        each: f"green-cinquefoil-{each}"
        for each in ("carbon", "planner", "router", "agent", "predictor", "batch")
    }
    assert rule["spec"] == alerts
    assert not of_kind(rendered(auto), "ServiceMonitor")  # a cluster without the operator


def test_dashboards_are_those_of_the_repository() -> None:
    found = next(
        each["data"]
        for each in of_kind(objects_of("cpu-values.yaml"), "ConfigMap")
        if each["metadata"]["name"].endswith("dashboards")
    )
    assert found == {each.name: each.read_text() for each in ROOT.glob("deploy/grafana/*.json")}


def test_cert_manager_makes_what_pki_makes(tmp_path: Path) -> None:
    """The same identities, with the names by which others dial them, into the Secrets of pods."""
    objects = objects_of("cpu-values.yaml")
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(config_of("cpu-values.yaml")))
    made = {each["spec"]["uris"][0]: each["spec"] for each in of_kind(objects, "Certificate")}
    mounted = {
        volume["secret"]["secretName"]
        for component, _, spec in pods(objects)
        for volume in spec["volumes"]
        if "secret" in volume and component != "front"
    }
    for each in identities(load(file)):
        if each.role == "client":
            continue
        spec = made.pop(each.spiffe_id("cinquefoil"))
        hosts = {host for host in each.hosts if host not in {"localhost", "127.0.0.1", "::1"}}
        assert hosts <= {*spec.get("dnsNames", ())}
        mounted.discard(spec["secretName"])

    assert made == {}
    assert mounted == set()


def test_folders_of_the_machine_are_given_to_the_agent_s_user() -> None:
    """The kubelet makes them for root: neither `models fetch` nor the agent could write them."""
    values = copy.deepcopy(CASES["join-values.yaml"])
    values["agent"]["stateHostPath"] = "/var/lib/cinquefoil"
    (spec,) = (spec for component, _, spec in pods(rendered(values)) if component == "agent")
    first = spec["initContainers"][0]
    hosted = {each["name"] for each in spec["volumes"] if "hostPath" in each}

    assert first["command"][:2] == ["chown", f"{spec['securityContext']['runAsUser']}:10001"]
    assert {each["name"] for each in first["volumeMounts"]} == hosted == {"models", "state"}
    assert {each["mountPath"] for each in first["volumeMounts"]} == {*first["command"][2:]}


def test_an_agent_that_observes_sees_processes_and_pods_of_its_machine_and_has_no_capability() -> (
    None
):
    """Only its own pod: and none without GPUs."""
    values = copy.deepcopy(CASES["join-values.yaml"])
    values["agent"] |= {"observe": True, "access": "read"}
    del values["config"]["join"]["cpu"]
    for component, _, spec in pods(rendered(values)):
        observes = component == "agent"
        assert spec.get("hostPID", False) is observes
        found = {
            each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
        }
        assert (found.get("pod-resources") == "/var/lib/kubelet/pod-resources") is observes
        if observes:
            context = spec["containers"][0]["securityContext"]
            assert spec["securityContext"]["runAsUser"] == 0
            assert (context["capabilities"], context["allowPrivilegeEscalation"]) == (
                {"drop": ["ALL"]}, False,
            )  # fmt: skip
            mounts = {m["name"]: m for m in spec["containers"][0]["volumeMounts"]}
            assert mounts["pod-resources"]["readOnly"] is True


def test_a_deployment_must_be_given() -> None:
    """There is no default: an installation without models would serve nothing."""
    with pytest.raises(helm().HelmError, match="carbon"):
        rendered({})


def test_the_readme_lists_every_value_with_its_default() -> None:
    """The README has all values of the chart and no others."""
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
