"""The electricity zone of a pod's machine, from a label in Kubernetes' API."""

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.gpuagent.node_label import node_label
from services.gpuagent.node_place import joining
from services.kit import config
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    ServiceError,
    Unavailable,
)
from tests.support.certificates import issued
from tests.support.fake_agent import deployment

LABEL = "cinquefoil.io/electricity-zone"


@dataclass
class ApiServer:
    """Answers as the API server does; `requests` keeps paths and credentials."""

    environment: dict[str, str]
    account: Path
    status: int = 200
    body: bytes = b"{}"
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    tls = issued(tmp_path / "pki", "planner").of("planner")
    found = ApiServer({}, tmp_path / "account")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.requests.append((self.path, self.headers["Authorization"]))
            self.send_response(found.status)
            self.end_headers()
            self.wfile.write(found.body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(tls.certificate_file), str(tls.key_file))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found.environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_port),
    }
    found.account.mkdir()
    (found.account / "token").write_text("secret\n")
    (found.account / "ca.crt").write_bytes(Path(str(tls.ca_file)).read_bytes())
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def zone_of(folder: Path, file: Path, others: str = "Z") -> str:
    """Return the zone of an agent that joins with a file; `others` is the template's."""
    here = config.ThisNode(name="a", zone_file=file)
    join = config.Join(listen="127.0.0.1:8463", zone=others)
    deployed = deployment(folder, 1, (), join).model_copy(update={"node": here})
    return joining(deployed)[0].nodes["a"].zone


def node(**of: str) -> bytes:
    return json.dumps({"kind": "PartialObjectMetadata", "metadata": {"labels": of}}).encode()


def test_the_zone_is_the_label_of_the_pods_node_and_the_agent_joins_with_it(
    api: ApiServer, tmp_path: Path
) -> None:
    """By the command of the chart's first container; requested with the account's token."""
    api.body = node(**{LABEL: "Z", "other": "x"})
    file = tmp_path / "zone"
    environment = {**api.environment, "CINQUEFOIL_NODE__NAME": "rack/7"}
    result = CliRunner().invoke(
        app,
        ["gpuagent", "zone", "--file", str(file), "--account", str(api.account)],
        env=environment,
    )
    assert result.exit_code == 0, result.output

    assert zone_of(tmp_path, file, others="") == "Z"
    assert api.requests == [("/api/v1/nodes/rack%2F7", "Bearer secret")]


@pytest.mark.parametrize("body", [node(), node(other="x"), b'{"metadata": {}}'])
def test_a_node_without_the_label_leaves_the_zone_to_what_comes_next(
    api: ApiServer, body: bytes, tmp_path: Path
) -> None:
    api.body = body
    file = tmp_path / "zone"
    file.write_text(node_label("a", LABEL, api.environment, api.account) + "\n")

    assert zone_of(tmp_path, file) == "Z"


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (403, b"{}", PermissionDenied, "ClusterRole with `get` of `nodes`"),
        (401, b"{}", PermissionDenied, "status 401"),
        (404, b"{}", InvalidArgument, "node.name: the cluster has no node 'a'"),
        (500, b"{}", Unavailable, "status 500"),
        (200, b"[]", Unavailable, "not a Node"),
        (200, b"no", Unavailable, "not a Node"),
        (200, bytes(2**20 + 1), Unavailable, "more than 1048576 bytes"),
    ],
)
def test_what_the_api_server_refuses_is_said(
    api: ApiServer, status: int, body: bytes, error: type[ServiceError], said: str
) -> None:
    api.status, api.body = status, body
    with pytest.raises(error, match=said):
        node_label("a", LABEL, api.environment, api.account)


def test_a_machine_without_a_pod_and_a_foreign_server_are_reported(
    api: ApiServer, tmp_path: Path
) -> None:
    """Nothing is sent to a server whose certificate the cluster's authority did not sign."""
    other = issued(tmp_path / "other", "planner").of("planner")
    with pytest.raises(FailedPrecondition, match="this is no pod"):
        node_label("a", LABEL, {}, api.account)
    with pytest.raises(FailedPrecondition, match="no token of the pod's account"):
        node_label("a", LABEL, api.environment, tmp_path / "nowhere")
    (api.account / "ca.crt").write_bytes(Path(str(other.ca_file)).read_bytes())
    with pytest.raises(Unavailable, match="certificate verify failed"):
        node_label("a", LABEL, api.environment, api.account)

    assert api.requests == []


@pytest.mark.parametrize("token", [b"\xff\xfe", b"t\xc3\xb6k", b"", b"two\nlines"])
def test_no_token_ends_the_command_otherwise_than_with_a_sentence(
    api: ApiServer, token: bytes
) -> None:
    """Any bytes are sent as they are, or refused."""
    api.status = 401
    (api.account / "token").write_bytes(token)
    with pytest.raises((PermissionDenied, Unavailable)):
        node_label("a", LABEL, api.environment, api.account)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"KUBERNETES_SERVICE_PORT": "abc"}, "Invalid port"),
        ({"KUBERNETES_SERVICE_PORT": "1"}, "refused"),
    ],
)
def test_an_address_that_leads_nowhere_is_said(
    api: ApiServer, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(Unavailable, match=said):
        node_label("a", LABEL, api.environment | changed, api.account)


def test_a_file_that_cannot_be_written_is_said(api: ApiServer, tmp_path: Path) -> None:
    api.body = node()
    options = ["--node", "a", "--file", str(tmp_path), "--account", str(api.account)]
    result = CliRunner().invoke(app, ["gpuagent", "zone", *options], env=api.environment)

    assert result.exit_code == 2
    assert "Is a directory" in result.output


@pytest.mark.parametrize(
    ("written", "said"),
    [(b"Mars\n", "got 'Mars'"), (b"\xff", "zone_file: cannot be read"), (None, "cannot be read")],
)
def test_a_file_that_has_no_zone_of_the_deployment_is_refused(
    written: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "zone"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(InvalidArgument, match=said):
        zone_of(tmp_path, file)
