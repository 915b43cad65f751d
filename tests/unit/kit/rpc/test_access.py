"""Permissions: the roles that may call each method, without a network."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.batch.v1 import batch_pb2
from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.gpuagent.v1 import gpuagent_pb2, worker_pb2
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.predictor.v1 import predictor_pb2
from cinquefoil.regions.v1 import regions_pb2
from cinquefoil.router.v1 import router_pb2
from envoy_ext_proc import ext_proc_pb2
from inference import grpc_service_pb2
from keda import externalscaler_pb2
from services.kit.config import Access as Settings
from services.kit.errors import PermissionDenied, Unauthenticated
from services.kit.rpc.access import (
    _CALLER,
    ALLOWED,
    ANYBODY,
    METRICS,
    ON_BEHALF_OF,
    Access,
    Token,
    caller,
)

FILES = (
    batch_pb2,
    carbon_pb2,
    gpuagent_pb2,
    worker_pb2,
    planner_pb2,
    predictor_pb2,
    regions_pb2,
    router_pb2,
    grpc_service_pb2,
    ext_proc_pb2,
    externalscaler_pb2,
)
APPLY = "/cinquefoil.planner.v1.PlannerService/Apply"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STATISTICS = "/inference.GRPCInferenceService/ModelStatistics"
EXCHANGE = "/cinquefoil.regions.v1.RegionService/Exchange"


class Call:
    """A call as its servicer sees it, of a peer with a certificate, a token, or nothing."""

    def __init__(self, name: str = "", token: str = "", person: str = "") -> None:
        self._name, self._token, self._person = name, token, person

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_spiffe_id": [self._name.encode()]} if self._name else {}

    def invocation_metadata(self) -> Any:
        shown = (("authorization", f"Bearer {self._token}"),) if self._token else ()
        return (*shown, *(((ON_BEHALF_OF, self._person),) if self._person else ()))

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def access(**roles: tuple[str, ...]) -> Access:
    return Access(Settings.model_validate({"roles": roles}).principals)


@pytest.fixture(autouse=True)
def _callers_end_with_their_test() -> Iterator[None]:
    """A server's call has a context of its own; here it is that of all later tests, too."""
    before = _CALLER.set(ANYBODY)
    yield
    _CALLER.reset(before)


def test_every_method_of_every_service_is_listed() -> None:
    """A new rpc is closed until somebody decides who may call it."""
    served = {
        f"/{service.full_name}/{method.name}"
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    listed = {each for each in ALLOWED if not each.startswith("/grpc.")} - {METRICS}

    assert listed == served
    assert descriptor_pool.Default() is not None
    assert all(ALLOWED.values()), "a method that no role may call"


@given(method=st.text(max_size=60))
def test_what_the_table_does_not_name_is_refused_to_everybody(method: str) -> None:
    bearer = Call("spiffe://cinquefoil/operator/ada")
    if method not in ALLOWED:
        with pytest.raises(PermissionDenied, match="may not call"):
            access().admit(method, bearer)


@pytest.mark.parametrize(
    ("bearer", "method", "admitted"),
    [
        ("operator/ada", APPLY, True),
        ("viewer/console", APPLY, False),
        ("client/app", APPLY, False),
        ("agent/node-0", APPLY, False),
        ("router", APPLY, False),
        ("client/app", INFER, True),
        ("agent/node-0", INFER, False),
        ("client", INFER, False),
        ("client/", INFER, False),
        ("client/app", STATISTICS, False),
        ("viewer/console", STATISTICS, True),
        ("region/eu-north", EXCHANGE, True),
        ("region/eu-north", INFER, True),
        ("region/eu-north", STATISTICS, False),
        ("planner", EXCHANGE, False),
        ("router", EXCHANGE, False),
        ("client/app", EXCHANGE, False),
    ],
)
def test_a_role_is_permitted_its_methods_only(bearer: str, method: str, admitted: bool) -> None:
    call = Call(f"spiffe://cinquefoil/{bearer}")
    if admitted:
        access().admit(method, call)
        assert caller().name == f"spiffe://cinquefoil/{bearer}"
    else:
        with pytest.raises(PermissionDenied, match="may not call"):
            access().admit(method, call)


def test_roles_that_are_given_replace_those_that_are_issued() -> None:
    mine = access(operator=("spiffe://example/ops/*",))
    mine.admit(APPLY, Call("spiffe://example/ops/ada"))
    with pytest.raises(PermissionDenied):
        mine.admit(APPLY, Call("spiffe://cinquefoil/operator/ada"))


def test_an_agent_is_its_node_s() -> None:
    access().admit(
        "/cinquefoil.planner.v1.PlannerService/Join", Call("spiffe://cinquefoil/agent/node-7")
    )
    assert caller().node == "node-7"


def test_a_token_lets_a_client_in_and_never_a_service() -> None:
    """An issuer of tokens cannot make itself operator or planner, whatever subject it writes."""

    def subject(token: str) -> Token:
        return Token(token, 4e9)

    checked = Access(Settings().principals, subject)
    bearer = Call("", "spiffe://cinquefoil/operator/ada")
    checked.admit(INFER, bearer)
    assert caller().roles == frozenset({"client"})
    with pytest.raises(PermissionDenied):
        checked.admit(APPLY, bearer)


def test_a_refusal_without_credentials_names_those_that_count() -> None:
    with pytest.raises(Unauthenticated, match="show a certificate"):
        access().admit(INFER, Call())


def test_identities_that_others_choose_do_not_grow_the_memory() -> None:
    checked = access()
    for number in range(5000):
        with pytest.raises(PermissionDenied):
            checked.admit(APPLY, Call(f"spiffe://cinquefoil/client/{number}"))
    assert len(checked._known) <= 4096
    assert len(checked._refusals) <= 4096


def test_a_worker_is_used_by_the_agent_of_its_own_node_only() -> None:
    execute = "/cinquefoil.gpuagent.v1.WorkerService/Execute"
    mine = Access(Settings().principals, node="node-0")
    mine.admit(execute, Call("spiffe://cinquefoil/agent/node-0"))
    mine.admit(execute, Call("spiffe://cinquefoil/router"))
    with pytest.raises(PermissionDenied):
        mine.admit(execute, Call("spiffe://cinquefoil/agent/node-1"))


def test_connections_of_one_host_are_one_line_in_the_log() -> None:
    """A peer without an identity has a new port for each connection: none may fill the disk."""
    checked = access()
    for port in range(100):
        call = Call()
        call.peer = lambda port=port: f"ipv4:10.0.0.1:{port}"  # type: ignore[method-assign, misc]
        with pytest.raises(Unauthenticated):
            checked.admit(INFER, call)
    assert len(checked._refusals) == 1


@pytest.mark.parametrize(
    ("person", "name"),
    [
        ("ada", "ada via spiffe://cinquefoil/operator/console"),
        ("Ad%C3%A9le", "Adéle via spiffe://cinquefoil/operator/console"),
        ("a%0Ab", "ab via spiffe://cinquefoil/operator/console"),
        ("a" * 200, f"{'a' * 100} via spiffe://cinquefoil/operator/console"),
    ],
)
def test_an_order_names_the_person_beside_the_program_that_passes_it_on(
    person: str, name: str
) -> None:
    access().admit(APPLY, Call("spiffe://cinquefoil/operator/console", person=person))

    assert caller().name == name


def test_only_operators_can_name_somebody_else() -> None:
    client = "spiffe://cinquefoil/client/shop"
    access().admit(INFER, Call(client, person="ada"))

    assert caller().name == client


@pytest.mark.parametrize(
    ("agent", "permitted"), [("rack-7", True), ("rack-8", False), ("joined", True)]
)
def test_a_worker_is_called_by_its_own_nodes_agent_or_by_one_that_shares_its_identity(
    agent: str, permitted: bool
) -> None:
    """Pods of a DaemonSet share a certificate, which is of none of their nodes."""
    execute = "/cinquefoil.gpuagent.v1.WorkerService/Execute"
    shared = "spiffe://cinquefoil/agent/joined"
    worker = Access(Settings().principals, node="rack-7", lent=(shared,))
    call = Call(f"spiffe://cinquefoil/agent/{agent}")

    if permitted:
        worker.admit(execute, call)
        return
    with pytest.raises(PermissionDenied):
        worker.admit(execute, call)
